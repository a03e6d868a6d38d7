"""The faults of a node's GPUs that are proven and present: what closes the Prolog's gate.

Pure and total: takes a report in JSON form (node_report.NodeReport), whatever is in it. A fault is what NVML, the
driver or PCI states now; a reading that is missing is none. What was once and may be over (ECC errors that were
contained, throttling, links that are down) is not judged here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

MAX_GPUS = 256
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_MISMATCH = "Driver/library version mismatch"

# The driver's own verdict (nvmlDeviceGpuRecoveryAction_t), where it says that new work must not go to the GPU.
# NVIDIA, GPU Memory Error Management, "Error Recovery and Response Flags": gpu_reset: after a fault that requires a
# reset the GPU can be used again when it was reset, not before; node_reboot: the operating system may be inconsistent.
# drain_and_reset is read as its name says: no new work until it was reset. drain_p2p is not here: it asks for an end of
# peer-to-peer traffic only. Nor is recover_imex_domain: it is about the domain, not this GPU.
_ASKS_FOR = {
    "gpu_reset": "a reset of the GPU",
    "bus_reset": "a reset of the GPU's PCIe bus",
    "drain_and_reset": "no new work and a reset of the GPU",
    "node_reboot": "a reboot of the node",
    "system_reboot": "a reboot of the system",
}


@dataclass(frozen=True)
class Fault:
    """`reason` is a code of attribute/reasons.py; `index` is None and `pci` "" where it is about no single GPU."""

    reason: str
    sentence: str
    index: int | None = None
    pci: str = ""


def present_faults(report: Mapping[str, object]) -> list[Fault]:
    """Every such fault, in the order of the GPUs. Never raises, whatever JSON it is given."""
    if not isinstance(report, Mapping):
        return []
    gpus = [gpu for gpu in _list(report.get("gpus"))[:MAX_GPUS] if isinstance(gpu, Mapping)]
    configured = _count(report.get("gpus_configured"))
    found = [fault for gpu in gpus for fault in _of_gpu(gpu)]
    if (missing := _missing(report, gpus, configured)) is not None:
        found.append(missing)
    if configured != 0 and any(_MISMATCH in why for why in _nvml_gaps(report)):
        found.append(Fault("driver_mismatch", f"NVML: {_MISMATCH}; no program can use a GPU."))
    return found


def _of_gpu(gpu: Mapping[str, object]) -> list[Fault]:
    if gpu.get("lost") is True:
        return [_fault(gpu, "gpu_fell_off_bus", "is lost: it answers NVML no more")]
    return [fault for rule in RULES if (fault := rule(gpu)) is not None]


def _remap_failed(gpu: Mapping[str, object]) -> Fault | None:
    if gpu.get("remap_failed") is not True:
        return None
    return _fault(gpu, "gpu_ecc_uncorrectable", "could not remap a faulty row of its memory")


def _recovery_action(gpu: Mapping[str, object]) -> Fault | None:
    action = gpu.get("recovery_action")
    asks_for = _ASKS_FOR.get(action) if isinstance(action, str) else None
    if asks_for is None:
        return None
    ecc = (_count(gpu.get("ecc_uncorrectable")) or 0) > 0 or gpu.get("remap_pending") is True
    reason = "gpu_ecc_uncorrectable" if ecc else "gpu_internal_error"
    return _fault(gpu, reason, f"needs {asks_for}, as its driver says ({action})")


RULES: tuple[Callable[[Mapping[str, object]], Fault | None], ...] = (_remap_failed, _recovery_action)


def _missing(report: Mapping[str, object], gpus: list[Mapping[str, object]], configured: int | None) -> Fault | None:
    """Fewer GPUs than configured, by NVML's count or PCI's. With MIG, Slurm counts instances instead."""
    if not configured or any(gpu.get("mig") is True for gpu in gpus):
        return None
    counts = {}
    if gpus or not _nvml_gaps(report):  # else NVML was not asked so far
        counts["known to the driver"] = len(gpus)
    on_bus, opened = _count(report.get("gpus_on_bus")), sum(bool(gpu.get("uuid")) for gpu in gpus)
    # None at all may be a node with other makers' GPUs; fewer than answer NVML are a /sys that does not show all.
    if on_bus and on_bus >= opened:
        counts["on the PCI bus"] = on_bus
    if not report.get("driver") and not gpus and not on_bus:
        return None
    where = min(counts, key=lambda one: counts[one], default="")
    if not where or counts[where] >= configured:
        return None
    return Fault("gpu_missing", f"{counts[where]} of {configured} configured GPUs are {where}.")


def _fault(gpu: Mapping[str, object], reason: str, what: str) -> Fault:
    index, pci = _count(gpu.get("index")), gpu.get("pci")
    address = pci if isinstance(pci, str) and _ADDRESS.fullmatch(pci) else ""
    name = f"GPU {'?' if index is None else index}" + (f" ({address})" if address else "")
    return Fault(reason, f"{name} {what}.", index, address)


def _nvml_gaps(report: Mapping[str, object]) -> list[str]:
    gaps = [gap for gap in _list(report.get("gaps")) if isinstance(gap, Mapping) and gap.get("source") == "nvml"]
    return [why if isinstance(why := gap.get("why"), str) else "" for gap in gaps]


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []


def _count(value: object) -> int | None:
    """A number of things; JSON's true is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64 else None

"""A node's report to evidence: its kernel's lines, and what NVML showed of its GPUs.

Owns what each reading means, as rows. Reads no file. Text in a report may be a user's (a process chooses its name), so
nothing of it is taken for a place or a time; whatever a report holds, this raises nothing and answers in linear time.

What NVML shows is a state, found after the attempt's end. It is a cause by itself (root) where no program can bring it
about and none can work with it; and only where nothing better is found (conditional) where a program may have provoked
it, or works with it all the same. node/present.py closes the Prolog's gate by the same readings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from slurm_recovery.detect.frame import frame
from slurm_recovery.detect.scan import scan
from slurm_recovery.detect.signature import Signature
from slurm_recovery.node_report import Gpu, GpuProcess, NodeReport
from slurm_recovery.records import Evidence, Gap, Role, Source, Trust

MOST_GPUS = 256  # NVML counts no more on one node
MOST_GAPS = 64
MOST_SHOWN = 6  # links or processes of one sentence
MOST_NUMBER = 10**15
MOST_XIDS = 512  # notes of repeated Xids in one report
LONGEST = 500
FIRST_USER = 1000  # login.defs(5) UID_MIN: below are the system's own services

XID_NOTE = "xid_of_gpu"  # the signature of a note that one GPU met one Xid

# NVRM: Xid (PCI:0000:9b:00): 31, pid=1536, name=python, ...
_REPEATS = re.compile(r"NVRM: Xid \(PCI:[0-9a-fA-F:.]{7,20}\): (?:13|31),")
_ACTIONS = {
    "gpu_reset": "a reset of the GPU",
    "bus_reset": "a reset of the GPU's PCIe bus",
    "drain_and_reset": "no new work and a reset of the GPU",
    "drain_p2p": "an end of the traffic between GPUs",
    "node_reboot": "a reboot of the node",
    "system_reboot": "a reboot of the system",
}
_REBOOTS = ("node_reboot", "system_reboot")
_THROTTLED = {"hw_slowdown": "hardware", "hw_thermal": "heat", "hw_power_brake": "the power supply"}
_MEANT = r"[^A-Za-z0-9 _.,:/()-]"  # brackets above all: what stands in them is taken for a rank
_MISMATCH = "version mismatch"  # NVML_ERROR_LIB_RM_VERSION_MISMATCH, by nvmlErrorString and by pynvml


class OfGpu(NamedTuple):
    """A row about one GPU: where it `applies`, and what it `says` after the GPU's name."""

    name: str
    reason: str
    role: Role
    applies: Callable[[Gpu, NodeReport], bool]
    says: Callable[[Gpu, NodeReport], str]


class OfNode(NamedTuple):
    """A row about the node as a whole; `says` is the whole sentence."""

    name: str
    reason: str
    role: Role
    applies: Callable[[NodeReport], bool]
    says: Callable[[NodeReport], str]


def evidence_of(report: NodeReport, signatures: Sequence[Signature]) -> tuple[Evidence, ...]:
    """What the report proves or suggests: the kernel's lines in their order, then readings in the order of the rows."""
    return (*_kernel(report, signatures), *_xids(report), *_readings(report))


def gaps_of(report: NodeReport) -> tuple[Gap, ...]:
    """What the node could not read. Of a job's log the controller says itself whether it could."""
    told = [
        Gap(source=_source(gap.source), what=_clean(f"{report.node}: {gap.what}"), why=_clean(gap.why))
        for gap in report.gaps[:MOST_GAPS]
    ]
    left = len(report.gaps) - len(told)
    more = Gap(source=Source.NODE, what=_clean(report.node), why=f"and {left} more gaps")
    return (*told, more) if left > 0 else tuple(told)


def _source(name: str) -> Source:
    known = (Source.KERNEL_LOG, Source.NVML, Source.CHECKPOINT)
    return {source.value: source for source in known}.get(name, Source.NODE)


def _kernel(report: NodeReport, signatures: Sequence[Signature]) -> tuple[Evidence, ...]:
    if not report.kernel:
        return ()
    text = report.kernel.encode(errors="replace")
    return scan(text, signatures=signatures, source=Source.KERNEL_LOG, path=_place(report), node=report.node)


def _place(report: NodeReport) -> str:
    return f"{report.node}:kernel"


def _xids(report: NodeReport) -> Iterator[Evidence]:
    """A note of each GPU that met an Xid which tells only by coming again: the scan counts such lines by node."""
    text, seen, tried = report.kernel, set[str](), 0
    number, counted = 1, 0
    for match in _REPEATS.finditer(text):
        if match[0] in seen:
            continue
        tried += 1
        if tried > MOST_XIDS:
            return
        begin = text.rfind("\n", 0, match.start()) + 1
        number, counted = number + text.count("\n", counted, begin), begin
        line = text[begin : begin + LONGEST].partition("\n")[0]
        head = frame(line)
        if _REPEATS.match(head.text):  # the kernel's own words, not somewhere in another's line
            seen.add(match[0])
            yield Evidence(
                source=Source.KERNEL_LOG,
                trust=Trust.ROOT,
                signature=XID_NOTE,
                reason="",
                role=Role.NOISE,
                line=_clean(line),
                place=f"{_place(report)}:{number}",
                node=report.node,
                time=head.time,
            )


def _readings(report: NodeReport) -> Iterator[Evidence]:
    for row in READINGS:
        if isinstance(row, OfNode):
            if row.applies(report):
                yield _reading(row, report, row.says(report), "nvml")
            continue
        for gpu in report.gpus[:MOST_GPUS]:
            if row.applies(gpu, report):
                sentence = f"{_named(gpu)} {row.says(gpu, report)}"
                yield _reading(row, report, sentence, f"nvml gpu{_number(gpu.index)}")


def _reading(row: OfGpu | OfNode, report: NodeReport, sentence: str, where: str) -> Evidence:
    return Evidence(
        source=Source.NVML,
        trust=Trust.ROOT,
        signature=row.name,
        reason=row.reason,
        role=row.role,
        line=_clean(sentence),
        place=f"{report.node}:{where}",
        node=report.node,
        time=report.time,
    )


def _named(gpu: Gpu) -> str:
    known = ", ".join(_word(text) for text in (gpu.pci, gpu.uuid) if text)
    return f"GPU {_number(gpu.index)}{f' ({known})' if known else ''}"


def _number(value: int) -> str:
    """A number that any report may hold, in as many digits as a line may have."""
    return str(value) if abs(value) < MOST_NUMBER else "?"


def _word(text: str) -> str:
    """A name without what may mean something in a line: brackets, blanks, quotes."""
    return re.sub(r"[^A-Za-z0-9_.:+-]", "?", text[:96])


def _clean(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text[:LONGEST]).strip()


def _listed(words: Sequence[str]) -> str:
    more = f" and {len(words) - MOST_SHOWN} more" if len(words) > MOST_SHOWN else ""
    return ", ".join(words[:MOST_SHOWN]) + more


# --- the readings' conditions


def _trouble(gpu: Gpu) -> str:
    return f': NVML says "{re.sub(_MEANT, "?", _clean(gpu.trouble))}"' if gpu.trouble else ""


def _unopened(gpu: Gpu, report: NodeReport) -> bool:
    return bool(gpu.trouble) and not gpu.lost and not gpu.uuid


def _counted(report: NodeReport) -> tuple[int, str] | None:
    """How many GPUs there are, by NVML or PCI, where that is fewer than configured. With MIG, Slurm counts instances.

    As node/present.py counts.
    """
    gpus, configured, on_bus = report.gpus[:MOST_GPUS], report.gpus_configured, report.gpus_on_bus
    nothing = not report.driver and not gpus and not on_bus
    if configured is None or not 0 < configured < MOST_NUMBER or any(gpu.mig for gpu in gpus) or nothing:
        return None
    counts: list[tuple[int, str]] = []
    if gpus or not any(gap.source == Source.NVML for gap in report.gaps):
        counts.append((len(gpus), "known to the driver"))
    # None at all may be other makers' GPUs; fewer than answer NVML are a /sys that does not show all.
    if on_bus is not None and on_bus > 0 and on_bus >= sum(bool(gpu.uuid) for gpu in gpus):
        counts.append((on_bus, "on the PCI bus"))
    fewest = min(counts, default=None)
    return fewest if fewest is not None and fewest[0] < configured else None


def _says_missing(report: NodeReport) -> str:
    count, where = _counted(report) or (0, "there")
    return f"{_number(count)} of {_number(report.gpus_configured or 0)} configured GPUs are {where}."


def _mismatch(report: NodeReport) -> bool:
    gaps = report.gaps[:MOST_GAPS]
    found = any(gap.source == Source.NVML and _MISMATCH in gap.why.lower() for gap in gaps)
    return found and report.gpus_configured != 0


def _baseline(gpu: Gpu, report: NodeReport) -> int | None:
    """The count of the last health report; None where there is none, or the counter has begun anew since."""
    before, now = report.ecc_before.get(gpu.uuid), gpu.ecc_uncorrectable
    return before if before is not None and now is not None and before <= now else None


def _ecc_grown(gpu: Gpu, report: NodeReport) -> bool:
    before = _baseline(gpu, report)
    return before is not None and (gpu.ecc_uncorrectable or 0) > before


def _ecc_counted(gpu: Gpu, report: NodeReport) -> bool:
    """Errors of any time since the driver was loaded: a kernel's log that was read tells of those that matter."""
    unread = any(gap.source == Source.KERNEL_LOG for gap in report.gaps[:MOST_GAPS])
    return unread and (gpu.ecc_uncorrectable or 0) > 0 and _baseline(gpu, report) is None


def _says_grown(gpu: Gpu, report: NodeReport) -> str:
    more = (gpu.ecc_uncorrectable or 0) - (_baseline(gpu, report) or 0)
    return f"counted {_number(more)} more memory errors that ECC cannot correct since its last health check."


def _links_down(gpu: Gpu, report: NodeReport) -> bool:
    """Where most GPUs of a node have links down, the node is built so, or its switch failed and says so itself."""
    if not gpu.links_down:
        return False
    gpus = report.gpus[:MOST_GPUS]
    return 2 * sum(bool(one.links_down) for one in gpus) <= len(gpus) and len(gpus) > 2


def _strays(gpu: Gpu) -> list[GpuProcess]:
    """Processes of people that are in no job. Those of another job may be there by right: nodes are shared."""
    known = [process for process in gpu.processes[:MOST_GPUS] if process.uid is not None]
    return [process for process in known if process.job_id is None and (process.uid or 0) >= FIRST_USER]


def _says_strays(gpu: Gpu, report: NodeReport) -> str:
    told = [f"{_number(one.pid)} (uid {_number(one.uid or 0)}, {_word(one.name)[:16]})" for one in _strays(gpu)]
    return f"is in use by processes of no job: {_listed(told)}."


def _neighbours(gpu: Gpu, report: NodeReport) -> list[GpuProcess]:
    return [one for one in gpu.processes[:MOST_GPUS] if one.job_id not in (None, report.job_id)]


def _slowed(gpu: Gpu) -> list[str]:
    return [_THROTTLED[word] for word in gpu.throttled[:16] if word in _THROTTLED]


# The strongest first. Why a role is what it is stands above the row.
READINGS: tuple[OfGpu | OfNode, ...] = (
    OfGpu(
        "nvml_gpu_lost",
        "gpu_fell_off_bus",
        Role.ROOT,
        lambda gpu, report: gpu.lost,
        lambda gpu, report: f"is lost{_trouble(gpu)}.",
    ),
    OfNode(
        "nvml_gpus_missing",
        "gpu_missing",
        Role.ROOT,
        lambda report: _counted(report) is not None,
        _says_missing,
    ),
    # No row of its memory is left to replace a faulty one: NVIDIA's GPU Memory Error Management says to replace it.
    OfGpu(
        "nvml_remap_failed",
        "gpu_ecc_uncorrectable",
        Role.ROOT,
        lambda gpu, report: gpu.remap_failed is True,
        lambda gpu, report: "could not replace a faulty row of its memory.",
    ),
    OfGpu("nvml_ecc_grown", "gpu_ecc_uncorrectable", Role.ROOT, _ecc_grown, _says_grown),
    # The driver's own verdict, and no program without root's rights can bring it about.
    OfGpu(
        "nvml_needs_reboot",
        "gpu_internal_error",
        Role.ROOT,
        lambda gpu, report: gpu.recovery_action in _REBOOTS,
        lambda gpu, report: f"needs {_ACTIONS[gpu.recovery_action]}, as its driver says ({gpu.recovery_action}).",
    ),
    OfNode(
        "nvml_driver_mismatch",
        "driver_mismatch",
        Role.ROOT,
        _mismatch,
        lambda report: "NVML says that the loaded driver and its library are of different releases.",
    ),
    # It works, and the next reset puts a spare row in the faulty one's place.
    OfGpu(
        "nvml_remap_pending",
        "gpu_ecc_uncorrectable",
        Role.CONDITIONAL,
        lambda gpu, report: gpu.remap_pending is True,
        lambda gpu, report: "must be reset before a faulty row of its memory is replaced.",
    ),
    OfGpu(
        "nvml_ecc_counted",
        "gpu_ecc_uncorrectable",
        Role.CONDITIONAL,
        _ecc_counted,
        lambda gpu, report: f"has counted {_number(gpu.ecc_uncorrectable or 0)} memory errors that ECC cannot correct.",
    ),
    # The driver's verdict too, but a program can provoke it: after Xid 109, a context switch that timed out.
    OfGpu(
        "nvml_needs_reset",
        "gpu_internal_error",
        Role.CONDITIONAL,
        lambda gpu, report: gpu.recovery_action in _ACTIONS and gpu.recovery_action not in _REBOOTS,
        lambda gpu, report: f"needs {_ACTIONS[gpu.recovery_action]}, as its driver says ({gpu.recovery_action}).",
    ),
    OfGpu(
        "nvml_unopened",
        "gpu_internal_error",
        Role.CONDITIONAL,
        _unopened,
        lambda gpu, report: f"cannot be opened{_trouble(gpu)}.",
    ),
    OfGpu(
        "nvml_links_down",
        "gpu_nvlink_error",
        Role.CONDITIONAL,
        _links_down,
        lambda gpu, report: f"has NVLinks that are down: {_listed([_number(one) for one in gpu.links_down])}.",
    ),
    OfGpu("nvml_strays", "stale_gpu_process", Role.CONDITIONAL, lambda gpu, report: bool(_strays(gpu)), _says_strays),
    # What is slow is not broken, and idle clocks are low anyway: to be read by people.
    OfGpu(
        "nvml_slowed",
        "",
        Role.NOISE,
        lambda gpu, report: bool(_slowed(gpu)),
        lambda gpu, report: f"is slowed down by {_listed(_slowed(gpu))}{_degrees(gpu)}.",
    ),
    OfGpu(
        "nvml_neighbours",
        "",
        Role.NOISE,
        lambda gpu, report: bool(_neighbours(gpu, report)),
        lambda gpu, report: f"is in use by {len(_neighbours(gpu, report))} processes of other jobs.",
    ),
)


def _degrees(gpu: Gpu) -> str:
    return f", at {_number(gpu.temperature)} degrees Celsius" if gpu.temperature is not None else ""

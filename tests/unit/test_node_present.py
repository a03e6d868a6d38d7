"""Which faults of a node's GPUs close the Prolog's gate, and what closes it never."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.node.gpus import MISMATCH
from slurm_recovery.node.present import Fault, present_faults
from slurm_recovery.node_report import NodeReport

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)
KEYS = (
    "index pci uuid name trouble lost ecc_uncorrectable remap_pending remap_failed recovery_action links_down "
    "throttled temperature processes mig"
).split()


def gpu(index: int, **more: Any) -> dict[str, Any]:
    return {
        "index": index,
        "pci": f"0000:{0x1B + index:02x}:00.0",
        "uuid": f"GPU-{index}",
        "ecc_uncorrectable": 0,
        "remap_pending": False,
        "remap_failed": False,
        "recovery_action": "none",
        **more,
    }


def report(*gpus: dict[str, Any], **more: Any) -> dict[str, Any]:
    count = len(gpus)
    return {"driver": "570.124.06", "gpus": list(gpus), "gpus_configured": count, "gpus_on_bus": count, **more}


def gaps(why: str) -> list[dict[str, str]]:
    return [{"source": "nvml", "what": "nvmlInit", "why": why}]


def test_sound_gpus_have_no_fault() -> None:
    assert present_faults(report(*(gpu(index) for index in range(8)))) == []


def test_a_lost_gpu_is_named() -> None:
    found = present_faults(report(gpu(0), gpu(1, lost=True, trouble="GPU is lost")))
    sentence = "GPU 1 (0000:1c:00.0) is lost: it answers NVML no more."
    assert found == [Fault("gpu_fell_off_bus", sentence, 1, "0000:1c:00.0")]


def test_a_lost_gpu_without_an_address_is_named_by_its_index() -> None:
    found = present_faults(report(gpu(0), {"index": 1, "lost": True, "trouble": "GPU is lost"}))
    assert found == [Fault("gpu_fell_off_bus", "GPU 1 is lost: it answers NVML no more.", 1)]


def test_row_remapping_that_failed() -> None:
    found = present_faults(report(gpu(0, remap_failed=True)))
    sentence = "GPU 0 (0000:1b:00.0) could not remap a faulty row of its memory."
    assert found == [Fault("gpu_ecc_uncorrectable", sentence, 0, "0000:1b:00.0")]


@pytest.mark.parametrize(
    ("action", "what"),
    [
        ("gpu_reset", "a reset of the GPU"),
        ("bus_reset", "a reset of the GPU's PCIe bus"),
        ("drain_and_reset", "no new work and a reset of the GPU"),
        ("node_reboot", "a reboot of the node"),
        ("system_reboot", "a reboot of the system"),
    ],
)
def test_recovery_actions_that_forbid_new_work(action: str, what: str) -> None:
    found = present_faults(report(gpu(0, recovery_action=action)))
    sentence = f"GPU 0 (0000:1b:00.0) needs {what}, as its driver says ({action})."
    assert found == [Fault("gpu_internal_error", sentence, 0, "0000:1b:00.0")]


@pytest.mark.parametrize("memory", [{"ecc_uncorrectable": 1}, {"remap_pending": True}])
def test_a_recovery_action_after_memory_errors_is_about_memory(memory: dict[str, Any]) -> None:
    assert present_faults(report(gpu(0, recovery_action="gpu_reset", **memory)))[0].reason == "gpu_ecc_uncorrectable"


@pytest.mark.parametrize("action", ["none", "", "drain_p2p", "recover_imex_domain", "action_8", None, 2, ["gpu_reset"]])
def test_recovery_actions_that_do_not(action: object) -> None:
    assert present_faults(report(gpu(0, recovery_action=action))) == []


@pytest.mark.parametrize(
    "was",
    [
        {"ecc_uncorrectable": 12},
        {"remap_pending": True},
        {"links_down": [1, 2]},
        {"throttled": ["hw_thermal"]},
        {"temperature": 99},
        {"trouble": "Unknown Error"},
        {"processes": [{"pid": 1}]},
    ],
)
def test_what_may_be_over_or_is_no_proof_closes_nothing(was: dict[str, Any]) -> None:
    assert present_faults(report(gpu(0, **was))) == []


def test_fewer_gpus_than_configured_by_nvml() -> None:
    found = present_faults(report(gpu(0), gpu(1), gpus_configured=3, gpus_on_bus=None))
    assert found == [Fault("gpu_missing", "2 of 3 configured GPUs are known to the driver.")]


def test_fewer_gpus_than_configured_on_the_bus() -> None:
    found = present_faults(report(gpus_configured=8, gpus_on_bus=7, driver="", gaps=gaps("Driver Not Loaded")))
    assert found == [Fault("gpu_missing", "7 of 8 configured GPUs are on the PCI bus.")]


def test_a_gpu_on_the_bus_that_the_driver_does_not_know_is_missing() -> None:
    assert present_faults(report(gpu(0), gpus_configured=2, gpus_on_bus=2))[0].reason == "gpu_missing"


def test_a_lost_gpu_is_not_missing_as_well() -> None:
    found = present_faults(report(gpu(0), {"index": 1, "lost": True}))
    assert [fault.reason for fault in found] == ["gpu_fell_off_bus"]


def test_no_gpu_at_all_by_a_driver_that_runs() -> None:
    found = present_faults(report(gpus_configured=1, gpus_on_bus=0))
    assert found == [Fault("gpu_missing", "0 of 1 configured GPUs are known to the driver.")]


@pytest.mark.parametrize(
    "shown",
    [
        report(gpu(0), gpu(1), gpus_configured=None),
        report(gpu(0), gpu(1), gpus_configured=1),
        report(gpus_configured=0, gpus_on_bus=None),
        # NVML hung or was not there before it had counted
        report(gpus_configured=8, gpus_on_bus=8, driver="", gaps=gaps("no answer within 5 s at nvmlInit")),
        report(gpus_configured=8, gpus_on_bus=None, driver="", gaps=gaps("Driver Not Loaded")),
        # another maker's GPUs
        report(gpus_configured=8, gpus_on_bus=0, driver="", gaps=gaps("NVML Shared Library Not Found")),
        # NVML was not asked at all
        report(gpus_configured=8, gpus_on_bus=None, driver=""),
        # /sys shows less than NVML: a container, a virtual machine
        report(gpu(0), gpu(1), gpus_on_bus=0),
        report(gpu(0), gpu(1), gpus_on_bus=1),
        # Slurm counts MIG instances
        report(gpu(0, mig=True), gpus_configured=7),
        # NVML hung in the middle: those not read are counted
        report(gpu(0), {"index": 1}, gaps=gaps("no answer within 5 s at nvmlDeviceGetTemperature of GPU 0")),
    ],
)
def test_a_count_that_is_unknown_is_no_fault(shown: dict[str, Any]) -> None:
    assert present_faults(shown) == []


def test_a_driver_that_does_not_match_its_library() -> None:
    shown = report(gpus_configured=8, gpus_on_bus=8, driver="", gaps=gaps(MISMATCH))
    assert present_faults(shown) == [Fault("driver_mismatch", f"NVML: {MISMATCH}; no program can use a GPU.")]
    assert present_faults(shown | {"gpus_configured": 0, "gpus_on_bus": 0}) == []
    others = [{"source": "kernel_log", "what": "", "why": MISMATCH}]
    assert present_faults(shown | {"gaps": others, "gpus_on_bus": None}) == []


def test_several_faults_in_the_order_of_the_gpus() -> None:
    shown = report(gpu(0, remap_failed=True, recovery_action="node_reboot"), gpu(1, lost=True), gpus_configured=3)
    assert [(fault.reason, fault.index) for fault in present_faults(shown)] == [
        ("gpu_ecc_uncorrectable", 0),
        ("gpu_internal_error", 0),
        ("gpu_fell_off_bus", 1),
        ("gpu_missing", None),
    ]


def test_every_reason_is_one_for_which_a_node_is_drained() -> None:
    shown = report(gpu(0, lost=True), gpu(1, remap_failed=True, recovery_action="gpu_reset"), gpu(2), gpus_configured=4)
    faults = present_faults(shown) + present_faults(report(driver="", gpus_configured=1, gaps=gaps(MISMATCH)))
    reasons = {fault.reason for fault in faults}
    assert len(reasons) == 5
    assert all(REASONS[reason].cure is not None for reason in reasons)


def test_a_report_of_the_controller_says_the_same() -> None:
    shown = report(gpu(0, remap_failed=True), {"index": 1, "lost": True}, gpus_configured=3)
    head = {"format": 1, "kind": "gate", "node": "n1", "time": 1.0}
    read = NodeReport.model_validate_json(json.dumps(head | shown)).model_dump(mode="json")
    assert present_faults(read) == present_faults(shown)
    assert len(present_faults(read)) == 3


def test_text_that_is_no_address_does_not_get_into_a_sentence() -> None:
    forged = gpu(0, pci="0000:1b:00.0) is well\nGPU 7 (", lost=True)
    assert present_faults(report(forged)) == [Fault("gpu_fell_off_bus", "GPU 0 is lost: it answers NVML no more.", 0)]


@settings(max_examples=300, deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "gpus": JSON | st.lists(JSON | st.dictionaries(st.sampled_from(KEYS), JSON), max_size=4),
            "gaps": JSON | st.lists(st.fixed_dictionaries({"source": st.just("nvml"), "why": JSON}), max_size=2),
            "driver": JSON,
            "gpus_configured": JSON,
            "gpus_on_bus": JSON,
        },
    )
    | JSON
)
def test_it_answers_any_json(shown: Any) -> None:
    for fault in present_faults(shown):
        assert fault.reason in REASONS
        assert fault.sentence.isprintable()


def test_it_imports_the_standard_library_alone() -> None:
    code = "import sys, slurm_recovery.node.present; print(*(one for one in sys.modules if 'slurm_recovery' in one))"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=30)
    ours = {name for name in done.stdout.split() if name.startswith("slurm_recovery")}
    assert ours == {"slurm_recovery", "slurm_recovery.node", "slurm_recovery.node.present"}

"""NVIDIA's Xids: what each number is, what a line of one says, and what its GPU needs before it serves again.

Owns the table of numbers and the reading of one line of the driver. Which lines of a kernel log are evidence is said by
signatures.d/gpu.toml; tests/unit/test_xid.py holds both together. Decides nothing. Text of a kernel log may quote
a process's name, so it is read as hostile: bounded, and nothing raises.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

from slurm_recovery.records import Role


class Kind(StrEnum):
    """Whose fault the number tells of."""

    HARDWARE = "hardware"
    INTERCONNECT = "interconnect"  # NVLink, NVLink-C2C, PCIe
    DRIVER = "driver"  # engines and firmware, as the driver runs them
    APPLICATION = "application"  # a program's commands, unless a fault of hardware stands beside it
    AFTERMATH = "aftermath"  # channels taken away because of something else
    INFORMATIONAL = "informational"
    UNUSED = "unused"  # printed by no driver of Ampere and later, or of displays alone


class Needs(StrEnum):
    """What the GPU needs before it serves again, the least of it first."""

    NONE = "none"
    RESTART_APP = "restart_app"
    RESET = "reset"  # of the GPU, or of the node where that is simpler
    REBOOT = "reboot"


class Xid(NamedTuple):
    """One number. `role` and `reason` are those of a line that says no more than its number."""

    number: int
    name: str  # as in the driver's nverror.h
    kind: Kind
    reason: str  # a code of attribute/reasons.py; "" where it speaks for none
    role: Role
    needs: Needs

    @property
    def source(self) -> str:
        return _SOURCE if self.number <= _CATALOGUED else _HEADER


_CATALOGUED = 172
_SOURCE = "NVIDIA Xid catalogue (docs.nvidia.com/deploy/xid-errors)"
_HEADER = "NVIDIA open-gpu-kernel-modules src/common/sdk/nvidia/inc/nverror.h (595.45.04)"

# Number, name, kind, reason, role, needs. The names are the driver's (nverror.h, 595.45.04), what is needed the
# catalogue's immediate action. Departures from the catalogue, each with its why:
# - 57, 58, 61, 122 to 125: the catalogue calls them unused since Ampere; older cards print them of their memory
#   interface, micro-controller and InfoROM, so that they are no noise. 61 stands for itself, as 62 does.
# - 32: none of its known causes is the application (NVIDIA's table of causes of driver 555): the bus, if anything.
# - 155: a link that software took down on purpose counts only where nothing better is known.
# - 94: what it struck must start again, and has lost its memory; the GPU itself serves on until its next reset.
# - 144 to 150: each line says for itself whether it is fatal, see `nvlink5`.
_TABLE = """
1 ROBUST_CHANNEL_FIFO_ERROR_FIFO_METHOD unused - noise none
2 ROBUST_CHANNEL_FIFO_ERROR_SW_METHOD unused - noise none
3 ROBUST_CHANNEL_FIFO_ERROR_UNK_METHOD unused - noise none
4 ROBUST_CHANNEL_FIFO_ERROR_CHANNEL_BUSY unused - noise none
5 ROBUST_CHANNEL_FIFO_ERROR_RUNOUT_OVERFLOW unused - noise none
6 ROBUST_CHANNEL_FIFO_ERROR_PARSE_ERR unused - noise none
7 ROBUST_CHANNEL_FIFO_ERROR_PTE_ERR unused - noise none
8 ROBUST_CHANNEL_FIFO_ERROR_IDLE_TIMEOUT application cuda_launch_failure conditional restart_app
9 ROBUST_CHANNEL_GR_ERROR_INSTANCE unused - noise none
10 ROBUST_CHANNEL_GR_ERROR_SINGLE_STEP unused - noise none
11 ROBUST_CHANNEL_GR_ERROR_MISSING_HW application cuda_launch_failure conditional restart_app
12 ROBUST_CHANNEL_GR_ERROR_SW_METHOD unused - noise none
13 ROBUST_CHANNEL_GR_EXCEPTION application illegal_memory_access conditional restart_app
14 ROBUST_CHANNEL_FAKE_ERROR informational - noise none
15 ROBUST_CHANNEL_SCANLINE_TIMEOUT unused - noise none
16 ROBUST_CHANNEL_VBLANK_CALLBACK_TIMEOUT unused - noise none
17 ROBUST_CHANNEL_PARAMETER_ERROR unused - noise none
18 ROBUST_CHANNEL_BUS_MASTER_TIMEOUT_ERROR unused - noise none
19 ROBUST_CHANNEL_DISP_MISSED_NOTIFIER unused - noise none
20 ROBUST_CHANNEL_MPEG_ERROR_SW_METHOD unused - noise none
21 ROBUST_CHANNEL_ME_ERROR_SW_METHOD unused - noise none
22 ROBUST_CHANNEL_VP_ERROR_SW_METHOD unused - noise none
23 ROBUST_CHANNEL_RC_LOGGING_ENABLED unused - noise none
24 ROBUST_CHANNEL_GR_SEMAPHORE_TIMEOUT unused - noise none
25 ROBUST_CHANNEL_GR_ILLEGAL_NOTIFY application cuda_launch_failure conditional restart_app
26 ROBUST_CHANNEL_FIFO_ERROR_FBISTATE_TIMEOUT unused - noise none
27 ROBUST_CHANNEL_VP_ERROR unused - noise none
28 ROBUST_CHANNEL_VP2_ERROR unused - noise none
29 ROBUST_CHANNEL_BSP_ERROR unused - noise none
30 ROBUST_CHANNEL_UNUSED_ERROR_30 unused - noise none
31 ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT application illegal_memory_access conditional restart_app
32 ROBUST_CHANNEL_PBDMA_ERROR interconnect pcie_error conditional restart_app
33 ROBUST_CHANNEL_SEC_ERROR unused - noise none
34 ROBUST_CHANNEL_MSVLD_ERROR unused - noise none
35 ROBUST_CHANNEL_MSPDEC_ERROR unused - noise none
36 ROBUST_CHANNEL_MSPPP_ERROR unused - noise none
37 ROBUST_CHANNEL_FECS_ERR_UNIMP_FIRMWARE_METHOD driver unknown conditional none
38 ROBUST_CHANNEL_FECS_ERR_WATCHDOG_TIMEOUT driver unknown conditional none
39 ROBUST_CHANNEL_CE0_ERROR driver unknown conditional restart_app
40 ROBUST_CHANNEL_CE1_ERROR driver unknown conditional restart_app
41 ROBUST_CHANNEL_CE2_ERROR driver unknown conditional restart_app
42 ROBUST_CHANNEL_VIC_ERROR unused - noise none
43 ROBUST_CHANNEL_RESETCHANNEL_VERIF_ERROR application cuda_launch_failure conditional restart_app
44 ROBUST_CHANNEL_GR_FAULT_DURING_CTXSW driver unknown conditional none
45 ROBUST_CHANNEL_PREEMPTIVE_REMOVAL aftermath - secondary none
46 ROBUST_CHANNEL_GPU_TIMEOUT_ERROR driver gpu_internal_error conditional reset
47 ROBUST_CHANNEL_NVENC0_ERROR unused - noise none
48 ROBUST_CHANNEL_GPU_ECC_DBE hardware gpu_ecc_uncorrectable root reset
49 SILENT_RUNNING_CONSTANT_LEVEL_SET_BY_REGISTRY unused - noise none
50 SILENT_RUNNING_LEVEL_TRANSITION_DUE_TO_RC_ERROR unused - noise none
51 SILENT_RUNNING_STRESS_TEST_FAILURE unused - noise none
52 SILENT_RUNNING_LEVEL_TRANS_DUE_TO_TEMP_RISE unused - noise none
53 SILENT_RUNNING_TEMP_REDUCED_CLOCKING unused - noise none
54 SILENT_RUNNING_PWR_REDUCED_CLOCKING hardware gpu_internal_error root reboot
55 SILENT_RUNNING_TEMPERATURE_READ_ERROR unused - noise none
56 DISPLAY_CHANNEL_EXCEPTION unused - noise none
57 FB_LINK_TRAINING_FAILURE_ERROR hardware gpu_internal_error conditional reset
58 FB_MEMORY_ERROR hardware gpu_internal_error conditional reset
59 PMU_ERROR unused - noise none
60 ROBUST_CHANNEL_SEC2_ERROR driver unknown conditional restart_app
61 PMU_BREAKPOINT hardware gpu_internal_error root reset
62 PMU_HALT_ERROR hardware gpu_internal_error root reset
63 INFOROM_PAGE_RETIREMENT_EVENT hardware gpu_ecc_uncorrectable conditional none
64 INFOROM_PAGE_RETIREMENT_FAILURE hardware gpu_ecc_uncorrectable root reset
65 ROBUST_CHANNEL_NVENC1_ERROR unused - noise none
66 ROBUST_CHANNEL_FECS_ERR_REG_ACCESS_VIOLATION driver unknown conditional none
67 ROBUST_CHANNEL_FECS_ERR_VERIF_VIOLATION driver unknown conditional none
68 ROBUST_CHANNEL_NVDEC0_ERROR driver unknown conditional restart_app
69 ROBUST_CHANNEL_GR_CLASS_ERROR application cuda_launch_failure conditional restart_app
70 ROBUST_CHANNEL_CE3_ERROR driver unknown conditional restart_app
71 ROBUST_CHANNEL_CE4_ERROR driver unknown conditional restart_app
72 ROBUST_CHANNEL_CE5_ERROR driver unknown conditional restart_app
73 ROBUST_CHANNEL_NVENC2_ERROR unused - noise none
74 NVLINK_ERROR interconnect gpu_nvlink_error root reset
75 ROBUST_CHANNEL_CE6_ERROR driver unknown conditional restart_app
76 ROBUST_CHANNEL_CE7_ERROR driver unknown conditional restart_app
77 ROBUST_CHANNEL_CE8_ERROR driver unknown conditional restart_app
78 VGPU_START_ERROR driver unknown conditional none
79 ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS hardware gpu_fell_off_bus root reboot
80 PBDMA_PUSHBUFFER_CRC_MISMATCH application cuda_launch_failure conditional restart_app
81 ROBUST_CHANNEL_VGA_SUBSYSTEM_ERROR unused - noise none
82 ROBUST_CHANNEL_NVJPG0_ERROR driver unknown conditional restart_app
83 ROBUST_CHANNEL_NVDEC1_ERROR driver unknown conditional restart_app
84 ROBUST_CHANNEL_NVDEC2_ERROR driver unknown conditional restart_app
85 ROBUST_CHANNEL_CE9_ERROR driver unknown conditional restart_app
86 ROBUST_CHANNEL_OFA0_ERROR driver unknown conditional restart_app
87 NVTELEMETRY_DRIVER_REPORT unused - noise none
88 ROBUST_CHANNEL_NVDEC3_ERROR driver unknown conditional restart_app
89 ROBUST_CHANNEL_NVDEC4_ERROR driver unknown conditional restart_app
90 LTC_ERROR unused - noise none
91 RESERVED_XID unused - noise none
92 EXCESSIVE_SBE_INTERRUPTS informational - noise none
93 INFOROM_ERASE_LIMIT_EXCEEDED informational - noise none
94 ROBUST_CHANNEL_CONTAINED_ERROR hardware gpu_ecc_uncorrectable root restart_app
95 ROBUST_CHANNEL_UNCONTAINED_ERROR hardware gpu_ecc_uncorrectable root reset
96 ROBUST_CHANNEL_NVDEC5_ERROR driver unknown conditional restart_app
97 ROBUST_CHANNEL_NVDEC6_ERROR driver unknown conditional restart_app
98 ROBUST_CHANNEL_NVDEC7_ERROR driver unknown conditional restart_app
99 ROBUST_CHANNEL_NVJPG1_ERROR driver unknown conditional restart_app
100 ROBUST_CHANNEL_NVJPG2_ERROR driver unknown conditional restart_app
101 ROBUST_CHANNEL_NVJPG3_ERROR driver unknown conditional restart_app
102 ROBUST_CHANNEL_NVJPG4_ERROR driver unknown conditional restart_app
103 ROBUST_CHANNEL_NVJPG5_ERROR driver unknown conditional restart_app
104 ROBUST_CHANNEL_NVJPG6_ERROR driver unknown conditional restart_app
105 ROBUST_CHANNEL_NVJPG7_ERROR driver unknown conditional restart_app
106 SMBPBI_TEST_MESSAGE informational - noise none
107 SMBPBI_TEST_MESSAGE_SILENT informational - noise none
108 NVLINK_REMOTE_TRANSLATION_ERROR informational - noise none
109 ROBUST_CHANNEL_CTXSW_TIMEOUT_ERROR driver gpu_internal_error conditional reset
110 SEC_FAULT_ERROR hardware gpu_internal_error root reset
111 BUNDLE_ERROR_EVENT unused - noise none
112 DISP_SUPERVISOR_ERROR unused - noise none
113 DP_LT_FAILURE unused - noise none
114 HEAD_RG_UNDERFLOW unused - noise none
115 CORE_CHANNEL_REGS unused - noise none
116 WINDOW_CHANNEL_REGS unused - noise none
117 CURSOR_CHANNEL_REGS unused - noise none
118 HEAD_REGS unused - noise none
119 GSP_RPC_TIMEOUT driver gpu_gsp_timeout root reset
120 GSP_ERROR driver gpu_gsp_timeout root reset
121 C2C_ERROR informational - noise none
122 SPI_PMU_RPC_READ_FAIL hardware gpu_internal_error conditional reset
123 SPI_PMU_RPC_WRITE_FAIL hardware gpu_internal_error conditional reset
124 SPI_PMU_RPC_ERASE_FAIL hardware gpu_internal_error conditional reset
125 INFOROM_FS_ERROR hardware gpu_internal_error conditional reset
126 ROBUST_CHANNEL_CE10_ERROR driver unknown conditional restart_app
127 ROBUST_CHANNEL_CE11_ERROR driver unknown conditional restart_app
128 ROBUST_CHANNEL_CE12_ERROR driver unknown conditional restart_app
129 ROBUST_CHANNEL_CE13_ERROR driver unknown conditional restart_app
130 ROBUST_CHANNEL_CE14_ERROR driver unknown conditional restart_app
131 ROBUST_CHANNEL_CE15_ERROR driver unknown conditional restart_app
132 ROBUST_CHANNEL_CE16_ERROR driver unknown conditional restart_app
133 ROBUST_CHANNEL_CE17_ERROR driver unknown conditional restart_app
134 ROBUST_CHANNEL_CE18_ERROR driver unknown conditional restart_app
135 ROBUST_CHANNEL_CE19_ERROR driver unknown conditional restart_app
136 ALI_TRAINING_FAIL interconnect gpu_nvlink_error root reset
137 NVLINK_PRIV_ERR application illegal_memory_access conditional restart_app
138 ROBUST_CHANNEL_DLA_ERROR unused - noise none
139 ROBUST_CHANNEL_OFA1_ERROR driver unknown conditional restart_app
140 UNRECOVERABLE_ECC_ERROR_ESCAPE hardware gpu_ecc_uncorrectable root reset
141 ROBUST_CHANNEL_FAST_PATH_ERROR driver unknown conditional none
142 ROBUST_CHANNEL_NVENC3_ERROR driver unknown conditional none
143 GPU_INIT_ERROR hardware gpu_internal_error root reset
144 NVLINK_SAW_ERROR interconnect gpu_nvlink_error conditional reset
145 NVLINK_RLW_ERROR interconnect gpu_nvlink_error conditional reset
146 NVLINK_TLW_ERROR interconnect gpu_nvlink_error conditional reset
147 NVLINK_TREX_ERROR interconnect gpu_nvlink_error conditional reset
148 NVLINK_NVLPW_CTRL_ERROR interconnect gpu_nvlink_error conditional reset
149 NVLINK_NETIR_ERROR interconnect gpu_nvlink_error conditional reset
150 NVLINK_MSE_ERROR interconnect gpu_nvlink_error conditional reset
151 ROBUST_CHANNEL_KEY_ROTATION_ERROR driver unknown conditional restart_app
152 RESERVED7_ERROR unused - noise none
153 RESERVED8_ERROR unused - noise none
154 GPU_RECOVERY_ACTION_CHANGED informational - secondary none
155 NVLINK_SW_DEFINED_ERROR interconnect gpu_nvlink_error conditional reset
156 RESOURCE_RETIREMENT_EVENT hardware gpu_ecc_uncorrectable conditional reset
157 RESOURCE_RETIREMENT_FAILURE hardware gpu_ecc_uncorrectable conditional none
158 GPU_FATAL_TIMEOUT hardware gpu_internal_error root reset
159 ROBUST_CHANNEL_CHI_NON_DATA_ERROR interconnect gpu_internal_error conditional restart_app
160 CHANNEL_RETIREMENT_EVENT hardware gpu_ecc_uncorrectable conditional none
161 CHANNEL_RETIREMENT_FAILURE hardware gpu_ecc_uncorrectable conditional none
162 ISINK_REENGAGED informational - noise none
163 ISINK_DISENGAGED informational - noise none
164 ISINK_LOW_LIFETIME informational - noise none
165 ISINK_ZERO_LIFETIME informational - noise none
166 NVLINK_SECURE_NVLE_ERROR interconnect gpu_internal_error conditional restart_app
167 PCIE_FATAL_TIMEOUT interconnect pcie_error root reboot
168 REDUCED_GPU_MEMORY_CAPACITY hardware gpu_ecc_uncorrectable conditional reset
169 SEC2_HALT_ERROR driver gpu_internal_error root reset
170 NVLINK_SECURE_ERROR interconnect gpu_internal_error conditional restart_app
171 UNCORRECTABLE_DRAM_ERROR hardware gpu_ecc_uncorrectable root reset
172 UNCORRECTABLE_SRAM_ERROR hardware gpu_ecc_uncorrectable root reset
173 C2C_FATAL_LINK_FAILURE interconnect gpu_nvlink_error root reboot
174 ROBUST_CHANNEL_RESETCHANNEL_KILL_PROCESS_SILENT aftermath - secondary none
175 MEMORY_SUBSYSTEM_ERROR hardware gpu_internal_error conditional reset
176 PCIE_CORRECTABLE_ERROR_FAULT informational - noise none
"""


def _read_row(row: str) -> Xid:
    number, name, kind, reason, role, needs = row.split()
    return Xid(int(number), name, Kind(kind), "" if reason == "-" else reason, Role(role), Needs(needs))


XIDS: dict[int, Xid] = {row.number: row for row in map(_read_row, _TABLE.strip().splitlines())}


def xid(number: int) -> Xid | None:
    """The row of a number; None for one that is newer than this table."""
    return XIDS.get(number)


class XidLine(NamedTuple):
    """What one line of the driver says."""

    number: int
    gpu: str  # its PCI address as the driver prints it, in lower case: "0000:9b:00"
    pid: int | None  # None where the driver did not know it, or the line is an older one
    process: str
    text: str  # the message
    caused_by: int | None  # the Xid that a 45 says came first


# kernel_rc.c krcReportXid: "NVRM: Xid (PCI:%04x:%02x:%02x GPU-I:%02u): %d, pid=%s, name=%s, %s"; drivers before 460
# without "PCI:"; pid='<unknown>', name=<unknown> where no channel tells (leptonai/gpud, test data). A process's name is
# 15 characters at most (comm), and may hold whatever its owner likes.
_LINE = re.compile(
    r"(?a)NVRM: Xid \((?:PCI:)?(?P<gpu>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})[^)]{0,40}\): "
    r"(?P<number>\d{1,6}), ?(?:pid=(?P<pid>\d{1,10}|'<unknown>')(?:, name=(?P<process>[^,]{0,100}))?(?:, |$))?"
)
_CAUSED_BY = re.compile(r"(?a) caused by previous Xid (\d{1,6})$")
_WITHIN = 400  # characters before the driver's words: times and hosts of a log
LONGEST_TEXT = 500


def read_xid(line: str) -> XidLine | None:
    """The Xid that a kernel's line tells; None where it tells none."""
    match = _LINE.search(line, 0, _WITHIN + LONGEST_TEXT) if "NVRM: Xid (" in line[:_WITHIN] else None
    if match is None:
        return None
    text = line[match.end() : match.end() + LONGEST_TEXT].strip()
    pid, caused_by = match["pid"], _CAUSED_BY.search(text)
    return XidLine(
        int(match["number"]),
        match["gpu"].lower(),
        int(pid) if pid and pid.isdecimal() else None,
        process if (process := match["process"]) and process != "<unknown>" else "",
        text,
        int(caused_by[1]) if caused_by else None,
    )


# gpu.c _gpuRecoveryActionName, by the words that NVML has for them (node_report.Gpu.recovery_action)
_ACTIONS = {
    "None": ("none", Needs.NONE),
    "GPU Reset Required": ("gpu_reset", Needs.RESET),
    "Node Reboot Required": ("node_reboot", Needs.REBOOT),
    "Drain P2P": ("drain_p2p", Needs.NONE),  # it may serve jobs that use no peer's memory
    "Drain and Reset": ("drain_and_reset", Needs.RESET),
    "Recover IMEX Domain": ("recover_imex_domain", Needs.NONE),
}
_ACTION = re.compile(r"(?a)^GPU recovery action changed from 0x\w{1,8} \([\w ]{1,30}\) to 0x\w{1,8} \(([\w ]{1,30})\)$")


def recovery_action(line: XidLine) -> str | None:
    """What an Xid 154 says shall be done, in NVML's words; None where the line says nothing of it."""
    match = _ACTION.match(line.text) if line.number == 154 else None
    return _ACTIONS[match[1]][0] if match and match[1] in _ACTIONS else None


class NvLink5(NamedTuple):
    """What a line of Xid 144 to 150 says."""

    unit: str  # RLW_SRC_TRACK, NETIR_LINK_EVT ...
    fatal: bool
    killed: bool  # XC1: the error was contained in the process, which ends of it
    link: int  # -1: of none alone
    cause: int  # why a link went down, bits 20 to 25 of intrInfo
    status: int  # errorStatus
    needs: Needs


_NVLINK5 = re.compile(
    r"(?a)^(?P<unit>[A-Z][\w/]{1,60}) {1,4}(?P<severity>Fatal|Nonfatal) {1,4}XC(?P<killed>[01]) i\d "
    r"Link (?P<link>-?\d{1,3}) \((?P<info>0x[0-9a-fA-F]{8}) (?P<status>0x[0-9a-fA-F]{8})"
)
NVLINK5 = range(144, 151)
# NVIDIA Xid catalogue, decoding of 144 to 150: a link that the host or its software took down asks for no reset.
BY_SOFTWARE = (0x26, 0x28)
# Not fatal, and yet the end of the process that it struck: what an Xid 154 does not ask for, its restart does.
_KILLING = {"RLW_REMAP": 0x3F, "RLW_SRC_TRACK": 0x0C}


def nvlink5(line: XidLine) -> NvLink5 | None:
    """What a line of NVLink 5 says of its link; None of other lines."""
    match = _NVLINK5.match(line.text) if line.number in NVLINK5 else None
    if match is None:
        return None
    unit, fatal, killed = match["unit"], match["severity"] == "Fatal", match["killed"] == "1"
    cause, status = int(match["info"], 16) >> 20 & 0x3F, int(match["status"], 16)
    by_software = unit.startswith("NETIR_LINK_EVT") and cause in BY_SOFTWARE
    if fatal:
        needs = Needs.NONE if by_software else Needs.RESET
    else:
        needs = Needs.RESTART_APP if killed or status & _KILLING.get(unit, 0) else Needs.NONE
    return NvLink5(unit, fatal, killed, int(match["link"]), cause, status, needs)


def needs(line: str) -> Needs | None:
    """What the GPU of a kernel's line needs, by all that the line says; None where it tells no Xid that is known.

    A 45 needs what the Xid needs that it says came first.
    """
    read = read_xid(line)
    if read is None:
        return None
    if (action := recovery_action(read)) is not None:
        return next(needed for name, needed in _ACTIONS.values() if name == action)
    if (decoded := nvlink5(read)) is not None:
        return decoded.needs
    row = xid(read.caused_by or read.number)
    return row.needs if row else None

"""What the stand-in library shall answer, written as its text file. README.md has the file's form.

Every value may be a word instead: one of NVML's errors in lower case, `hang`, `crash`. None is "not supported".
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path

Answer = str | int | None


@dataclass
class Gpu:
    """A sound H100, as long as nothing else is said. `all` is the answer to every call about it."""

    all: str = ""
    handle: Answer = None
    pci: Answer = ""  # "": by its index
    uuid: Answer = ""
    name: Answer = "NVIDIA H100 80GB HBM3"
    ecc: Answer = 0
    remap: Answer = "0,0"  # pending, failed
    retired: Answer = None
    recovery: Answer = 0
    links: Answer = "1" * 18
    clocks: Answer = 0
    throttle: Answer = None
    temperature: Answer = 41
    temperature_v: Answer = None
    processes: Answer = ""
    mig: Answer = 0

    def lines(self, index: int) -> list[str]:
        named = {"pci": f"00000000:{0x1B + index:02X}:00.0", "uuid": f"GPU-{index:08x}-0000-0000-0000-000000000000"}
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "all"}
        values |= {key: value for key, value in named.items() if values[key] == ""}
        lines = [f"gpu{index}={self.all}"] if self.all else []
        return lines + [f"gpu{index}.{key}={value}" for key, value in values.items() if value is not None]


@dataclass
class State:
    """One node's GPUs."""

    gpus: list[Gpu] = field(default_factory=list)
    init: str = "ok"
    driver: Answer = "570.124.06"
    count: Answer = None  # as many as there are

    def text(self) -> str:
        count = len(self.gpus) if self.count is None else self.count
        lines = [f"init={self.init}", f"driver={self.driver}", f"gpus={count}"]
        return "\n".join(lines + [line for index, gpu in enumerate(self.gpus) for line in gpu.lines(index)]) + "\n"

    def write(self, folder: Path, node: str = "default") -> Path:
        """The node's file in the library's folder, replaced in one step."""
        path, new = folder / f"{node}.nvml", folder / f".{node}.nvml.new"
        new.write_text(self.text())
        return new.replace(path)

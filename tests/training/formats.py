"""The formats that are killed while they are written, and how often."""

from __future__ import annotations

from typing import NamedTuple

from slurm_recovery.checkpoint.found import Rule


class Format(NamedTuple):
    """`module`: in software/. `kills`: in test_kills.py. `rules`: a site's own, for what is no format of anybody."""

    module: str
    kills: int
    rules: tuple[Rule, ...] = ()

    def __str__(self) -> str:
        return self.module


FORMATS = (
    Format("orbax", 20),  # the slowest first: test processes side by side end together
    Format("hf_trainer", 25),
    Format("dcp", 25),
    Format("lightning_trainer", 25),
    Format("megatron_dist", 30),
    Format("megatron", 30),
    Format("deepspeed", 30),
    Format("safetensors_files", 25),
    Format("torch_file", 25),
    Format("site_rule", 15, (Rule("ours", "state-{step}", "DONE"),)),
)

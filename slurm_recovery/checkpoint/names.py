"""What the names of files and folders tell: a step, a part of something larger, something unfinished.

Every expression takes linear time: runs of digits are bounded, and nothing is repeated inside a repeat.
"""

from __future__ import annotations

import re

from slurm_recovery.checkpoint.found import Rule

# What comes before the number of a step; an epoch is a step where nothing better is told.
_STEP = re.compile(r"(?:global_?step|step|iteration|iter)s?[-_=.]{0,2}(\d{1,18})(?!\d)", re.IGNORECASE)
_OTHER = re.compile(r"(?:checkpoint|ckpt|epoch|model|state|save)s?[-_=.]{0,2}(\d{1,18})(?!\d)", re.IGNORECASE)
_DIGITS = re.compile(r"\d{1,18}")
# A folder of this name is a checkpoint's, whatever it holds, or does not hold yet.
_CHECKPOINT = re.compile(
    r"(?:iter|iteration|step|steps|global_?step|checkpoint|ckpt|epoch)[-_=]{0,1}\d{1,18}"
    r"|epoch=\d{1,18}-step=\d{1,18}(?:-v\d{1,9})?(?:\.ckpt)?|release",
    re.IGNORECASE,
)
# What writers call it until it is finished: Orbax, fsspec and many a script, Hugging Face before 4.4x.
_UNFINISHED = re.compile(
    r"\.orbax-checkpoint-tmp|\.(?:tmp|temp|part|partial|incomplete|saving)(?:[-_.]|$)|^\.?te?mp[-_]"
)
# A file of a larger checkpoint, not one by itself.
_PART = re.compile(
    r"(?:optimizer|scheduler|scaler|sampler|rng_state|random_states|training_args|trainer_state|optim_states"
    r"|model_states)(?:[-_.]|$)|-\d{5}-of-\d{5}\.|_optim_states\.|_model_states\.|^\.",
    re.IGNORECASE,
)
FILES = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")


def step_of(name: str) -> int | None:
    """The step that a name tells, or None."""
    stem = name
    for suffix in FILES:
        stem = stem.removesuffix(suffix)
    found = _STEP.search(stem) or _OTHER.search(stem)
    if found:
        return int(found[1])
    return int(stem) if _DIGITS.fullmatch(stem) else None


def has_step(name: str) -> bool:
    """Whether a name says that it is of a step."""
    return bool(_STEP.search(name))


def number_of(name: str) -> int | None:
    """The step, or else the last number of a name."""
    step = step_of(name)
    if step is not None:
        return step
    numbers = _DIGITS.findall(name)
    return int(numbers[-1]) if numbers else None


def is_checkpoints(name: str) -> bool:
    """Whether a folder of that name is a checkpoint's."""
    return bool(_CHECKPOINT.fullmatch(name))


def is_unfinished(name: str) -> bool:
    return bool(_UNFINISHED.search(name))


def is_file(name: str) -> bool:
    """Whether a file of that name is a checkpoint by itself."""
    return name.endswith(FILES) and not _PART.search(name)


def shape_of(name: str) -> str:
    """The name without its numbers: what the folders of one row have in common."""
    return _DIGITS.sub("#", name)


def is_told(path: str) -> str:
    """Why a path cannot be handed on to a job, or nothing. It ends up in JSON and in an environment."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    if not path.isprintable():
        return "its name has characters that cannot be printed"
    return "its name is too long" if len(path) > 4000 else ""


def matches(rule: Rule, name: str) -> tuple[bool, int | None]:
    """Whether a name is of a site's own pattern, and the step in it."""
    before, has_step, after = rule.pattern.partition("{step}")
    if not has_step:
        return _globbed(before, name), None
    for digits in _DIGITS.finditer(name):
        if _globbed(before, name[: digits.start()]) and _globbed(after, name[digits.end() :]):
            return True, int(digits[0])
    return False, None


def _globbed(pattern: str, text: str) -> bool:
    """fnmatch with * alone, in time linear in pattern times text."""
    first, *rest = pattern.split("*")
    if not rest:
        return text == first
    if not text.startswith(first) or len(text) < len(first) + len(rest[-1]) or not text.endswith(rest[-1]):
        return False
    at, end = len(first), len(text) - len(rest[-1])
    for part in rest[:-1]:
        at = text.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True

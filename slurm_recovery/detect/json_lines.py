"""What a logger that writes JSON, one record a line, says of who printed it, and where the exception's last line is.

Owns the keys: those of structlog, python-json-logger and loguru's serialisation. Only a record with a level is one of
a logger; any other may be the program's data. Parses no JSON, for a line may be cut, and any text may be inside it.
Log text is hostile: every function is bounded and none raises.
"""

from __future__ import annotations

import re
from typing import NamedTuple

WITHIN = 8192
_BEGIN = '{"'
_LEVEL = re.compile(r'"(?:level|levelname|log_level|severity)": ?"(?P<level>[A-Za-z]{3,10})"')
_FAILED = ("error", "critical", "fatal", "exception")
_RANK = re.compile(r'(?a)"(?:rank|global_rank|world_rank)": ?(?P<rank>\d{1,7})[,}]')
_HOST = re.compile(r'"(?:host|hostname|node|nodename)": ?"(?P<node>[A-Za-z][A-Za-z0-9._-]{0,121})"')
_RAISED = re.compile(r'"(?:exc|exc_info|exception|traceback|stack_trace|err|error)": ?"')
_CUT = re.compile(r".{100} \.\.\. ")  # an excerpt of detect/notes.py: what follows is of the value
_VALUE = re.compile(r'(?:[^"\\]|\\.){0,8192}+')
_END = "\\n"  # a line's end as JSON escapes it


class JsonLine(NamedTuple):
    """What a record says. `text` is where the exception's last line begins in it, or 0."""

    rank: str | None
    node: str | None
    text: int


def json_line(line: str) -> JsonLine | None:
    """The record of a logger; None where the line is none."""
    if not line.startswith(_BEGIN) or (level := _LEVEL.search(line, 0, WITHIN)) is None:
        return None
    failed = level["level"].lower() in _FAILED
    raised = _RAISED.search(line, 0, WITHIN) or _CUT.match(line) if failed else None
    end = (raised.start() or raised.end()) if raised else WITHIN  # an exception's text may hold any key
    rank, host = _RANK.search(line, 0, end), _HOST.search(line, 0, end)
    text = _last_line(line, raised.end()) if raised else 0
    return JsonLine(rank["rank"] if rank else None, host["node"] if host else None, text)


def _last_line(line: str, begin: int) -> int:
    """Where the last line of the value begins that begins here; it may end with an empty one."""
    value = _VALUE.match(line, begin, begin + WITHIN)
    end = value.end() if value else begin
    while line.endswith(_END, begin, end):
        end -= len(_END)
    last = line.rfind(_END, begin, end)
    return last + len(_END) if last >= 0 else begin

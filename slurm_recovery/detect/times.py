"""When a line was printed, by the times that logging libraries, MPI launchers and the kernel put into it.

Owns the formats of times. A time without its zone is taken as UTC and marked so. One without its year is only
a `Yearless`: it orders lines of one year, and becomes a time where another tells the year. Never raises.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import NamedTuple


class Yearless(NamedTuple):
    """A time of an unknown year. Two of them compare rightly only within one year."""

    month: int
    day: int
    second: float  # of the day


class Stamp(NamedTuple):
    """What one time says; at most one of `time`, `uptime` and `yearless` is told."""

    time: float | None = None
    zoned: bool = False  # the time came with its offset; otherwise it was taken as UTC
    uptime: float | None = None  # seconds since the node's boot, where the kernel printed only that
    yearless: Yearless | None = None

    @property
    def told(self) -> bool:
        return self.time is not None or self.uptime is not None or self.yearless is not None


NOTHING = Stamp()
_CLOCK = r"(?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<part>\d{1,9}))?"
_DATED = rf"(?P<date>\d{{4}}-\d\d-\d\d)[T _]{_CLOCK}"
_LEVEL = r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)"
_MONTHS = {name: number for number, name in enumerate("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)}

# Python's logging, loguru, structlog, slurmd, spdlog (Ray), NCCL's NCCL_DEBUG_TIMESTAMP_FORMAT (nccl src/debug.cc),
# Megatron (` [2026-06-04 10:00:00] iteration`), dmesg --time-format iso, journalctl -o short-iso
_STAMP = re.compile(
    rf"(?a) ?\[?(?:kern {{1,2}}:\w{{1,8}} {{0,3}}: )?\[?{_DATED}(?P<zone>Z|[+-]\d\d:?\d\d)?\]?:? {{0,3}}(?:\| )?"
)
# ctime(3): dmesg -T `[Thu Jun  4 10:22:30 2026]`; Open MPI 4 (orte/mca/iof/base/iof_base_output.c) without brackets
# and PMIx (src/common/pmix_iof.c) with them, each before its own tag
_CTIME = re.compile(
    r"(?a)\[?(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?P<month>[A-Z][a-z]{2}) (?P<day>[ \d]\d) (?P<clock>\d\d:\d\d:\d\d) "
    r"(?P<year>\d{4})(?:\] ?|(?=[\[<]))"
)
# syslog(3) and journalctl -o short: no year
_SYSLOG = re.compile(
    r"(?a)(?P<month>[A-Z][a-z]{2}) (?P<day>[ \d]\d) (?P<clock>\d\d:\d\d:\d\d)(?:\.(?P<part>\d{1,9}))? "
)
# The kernel's seconds since boot; as large as an epoch where a user's library prints that: UCX (ucs/debug/log.c)
_UPTIME = re.compile(r"(?a)(?:kern {1,2}:\w{1,8} {0,3}: )?\[ {0,8}(?P<uptime>\d{1,12}\.\d{1,9})\] ?")
_EPOCHS = (1_000_000_000.0, 4_102_444_800.0)  # 2001 to 2100; no node is up for 31 years

# Times that stand within a prefix that is left in place, for signatures know it by its file name.
# glog and absl: `E0604 10:00:00.1 1234 file.cc:12]`, since glog 0.5 perhaps with the year; c10d's own logger puts it
# in brackets and does not pad the month (PyTorch c10/util/Logging.cpp: `[W225 16:12:34.362072967 file.cpp:4561]`)
_GLOG = re.compile(r"(?a)\[?[IWEFCV](?P<day>\d{8}|\d{3,4}) (?P<clock>\d\d:\d\d:\d\d)\.(?P<part>\d{1,9})\b")
# NeMo nemo/utils/formatters/base.py: `[NeMo I 2026-06-04 10:00:00 nemo_logging:393]`
_NEMO = re.compile(rf"(?a)\[NeMo [A-Z] {_DATED} ")
# Hugging Face's examples and accelerate: datefmt %m/%d/%Y, and the level after it tells it from other orders
_SLASHED = re.compile(rf"(?a)(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>\d{{4}}) (?P<clock>\d\d:\d\d:\d\d) - {_LEVEL} - ")
# vLLM vllm/logging_utils/formatter.py: `INFO 02-05 09:11:53 model_runner.py:1118]`
_LEVELLED = re.compile(rf"(?a){_LEVEL} (?P<month>\d\d)-(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d) ")

_ANY_DATE = re.compile(r"(?a)(\d{4}-\d\d-\d\d)[T _](\d\d:\d\d:\d\d)")


def leading_time(line: str) -> tuple[int, Stamp] | None:
    """A time at the line's very start: how many characters it takes, and what it says."""
    for read in _LEADING.get(line[:1], ()):
        if (found := read(line)) is not None:
            return found
    return None


def inner_time(line: str) -> Stamp:
    """The time of a prefix that stays in the line."""
    for read in _INNER.get(line[:1], ()):
        if (found := read(line)) is not None:
            return found
    return NOTHING


def any_time(line: str) -> float | None:
    """The first full date and time anywhere in a line, taken as UTC; None if there is none."""
    match = _ANY_DATE.search(line, 0, 2000)
    return _iso(match[1], match[2], None, None).time if match else None


def in_year(when: Yearless, near: float) -> float | None:
    """The time of that date nearest to another time, such as the attempt's end; None where there is no such date."""
    try:
        year = datetime.fromtimestamp(near, UTC).year
    except (ValueError, OverflowError, OSError):
        return None
    times = [time for one in (year - 1, year, year + 1) if (time := _on(one, when)) is not None]
    return min(times, key=lambda time: abs(time - near)) if times else None


def _on(year: int, when: Yearless) -> float | None:
    try:
        return datetime(year, when.month, when.day, tzinfo=UTC).timestamp() + when.second
    except (ValueError, OverflowError):
        return None


def _read_stamp(line: str) -> tuple[int, Stamp] | None:
    match = _STAMP.match(line)
    return (match.end(), _iso(match["date"], match["clock"], match["part"], match["zone"])) if match else None


def _read_uptime(line: str) -> tuple[int, Stamp] | None:
    match = _UPTIME.match(line)
    if match is None:
        return None
    seconds = float(match["uptime"])
    return match.end(), Stamp(seconds) if _EPOCHS[0] <= seconds < _EPOCHS[1] else Stamp(uptime=seconds)


def _read_ctime(line: str) -> tuple[int, Stamp] | None:
    match = _CTIME.match(line)
    if match is None:
        return None
    month, day = _MONTHS.get(match["month"], 0), int(match["day"])
    return match.end(), _iso(f"{match['year']}-{month:02}-{day:02}", match["clock"], None, None)


def _read_syslog(line: str) -> tuple[int, Stamp] | None:
    match = _SYSLOG.match(line)
    if match is None or match["month"] not in _MONTHS:
        return None
    return match.end(), _yearless(_MONTHS[match["month"]], int(match["day"]), match["clock"], match["part"])


def _read_glog(line: str) -> Stamp | None:
    match = _GLOG.match(line)
    if match is None:
        return None
    day, clock, part = match["day"], match["clock"], match["part"]
    if len(day) == 8:
        return _iso(f"{day[:4]}-{day[4:6]}-{day[6:]}", clock, part, None)
    return _yearless(int(day[:-2]), int(day[-2:]), clock, part)


def _read_nemo(line: str) -> Stamp | None:
    match = _NEMO.match(line)
    return _iso(match["date"], match["clock"], match["part"], None) if match else None


def _read_slashed(line: str) -> Stamp | None:
    match = _SLASHED.match(line)
    return _iso(f"{match['year']}-{match['month']}-{match['day']}", match["clock"], None, None) if match else None


def _read_levelled(line: str) -> Stamp | None:
    match = _LEVELLED.match(line)
    return _yearless(int(match["month"]), int(match["day"]), match["clock"], None) if match else None


def _iso(date: str, clock: str, part: str | None, zone: str | None) -> Stamp:
    try:
        when = datetime.fromisoformat(f"{date}T{clock}").replace(tzinfo=_zone(zone)).timestamp()
    except (ValueError, OverflowError):
        return NOTHING
    return Stamp(when + float(f"0.{part}") if part else when, zone is not None)


def _zone(text: str | None) -> timezone:
    if text in (None, "Z"):
        return UTC
    sign = -1 if text[0] == "-" else 1
    return timezone(sign * timedelta(hours=int(text[1:3]), minutes=int(text[-2:])))


def _yearless(month: int, day: int, clock: str, part: str | None) -> Stamp:
    hour, minute, second = (int(piece) for piece in clock.split(":"))
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second <= 60):
        return NOTHING
    return Stamp(yearless=Yearless(month, day, hour * 3600 + minute * 60 + second + float(f"0.{part or 0}")))


# Which readers to try, by the character that a line begins with.
_LEADING = {
    **dict.fromkeys("0123456789 ", (_read_stamp,)),
    **dict.fromkeys("[k", (_read_stamp, _read_uptime, _read_ctime)),
    **dict.fromkeys("MTWFSJAOND", (_read_ctime, _read_syslog)),
}
_INNER = {
    "[": (_read_glog, _read_nemo),
    **dict.fromkeys("IWEFCV", (_read_glog, _read_levelled)),
    "D": (_read_levelled,),
    **dict.fromkeys("01", (_read_slashed,)),
}

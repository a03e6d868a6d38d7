"""How far a training job had come, by the lines that its software prints of each step.

Owns which lines tell a step, as rows, and which of a log's rows is the one that counts. Reads no file and knows no
job. Only a log's first and last lines matter, so only these are looked at: `StepWatch` hands a log's pieces through
and keeps its two ends. What lies between is looked at in small samples, for the case that the end says nothing else
than how the job died. Log text is hostile: every function is bounded and none raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from slurm_recovery.detect.frame import any_time, frame
from slurm_recovery.detect.lines import Block, cleaned, is_clean, same

ENDS = (128 << 10, 1 << 20)  # bytes of a log's beginning and of its end: more where fewer tell nothing
SAMPLE = 16 << 10  # of each piece in between
MOST_LINE = 2000  # bytes of a line
MOST_GROUPS = 1000  # kinds of lines of one log
LARGEST = 1 << 63  # of a step, as it is kept on record
SURE, BAR, WORDS = 1, 2, 3


class Row(NamedTuple):
    """One way to print a step. A line belongs to the first row that matches it.

    `pattern` captures `step`; for a bar also `total`, and `epoch` where `step` counts from 0 in each. `least`: how
    many different steps must be seen before a row is believed. Lines that could mean anything else (WORDS) must
    besides be alike but for their digits up to a few characters behind the step.
    """

    name: str
    source: str  # who prints it
    literals: tuple[bytes, ...]  # one of them is in each such line
    pattern: re.Pattern[bytes]
    example: str
    step: int  # of the example
    least: int = SURE


_N = rb"(?P<step>\d{1,19})(?=\D)"  # a line that is cut off within its number tells none
_BAR = rb"\d{1,3}%\|[^|\r\n]{0,400}\| {0,4}" + _N + rb"/(?P<total>\d{1,19}) \["


def _row(
    name: str, source: str, literals: tuple[str, ...], pattern: bytes, example: str, step: int, least: int = SURE
) -> Row:
    words = tuple(one.encode() for one in literals)
    return Row(name, source, words, re.compile(pattern), example, step, least)


ROWS = (
    _row(
        "global_step",
        "NeMo's and Lightning's bars, NeMo 2 nemo/lightning/pytorch/callbacks/progress_printer.py, many scripts",
        ("global_step",),
        rb"\bglobal_step[\"']?[=:] {0,4}" + _N,
        "Training epoch 0, iteration 11/999 | lr: 0.0003 | global_batch_size: 8 | global_step: 11 | train_loss: 9.1",
        11,
    ),
    _row(
        "megatron",
        "Megatron-LM megatron/training/training.py training_log",
        ("iteration",),
        rb"\biteration {1,12}" + _N + rb"/ {0,12}\d{1,19} \|",
        " [2026-06-04 10:00:02] iteration     1200/  500000 | consumed samples:      1228800 | lm loss: 6.310682E-01 |",
        1200,
    ),
    _row(
        "deepspeed_pipeline",
        "DeepSpeed deepspeed/runtime/pipe/engine.py train_batch",
        ("steps:",),
        rb"\bsteps: " + _N + rb" loss: ",
        "steps: 1200 loss: 2.1034 iter time (s): 0.512 samples/sec: 62.5",
        1200,
    ),
    _row(
        "deepspeed",
        "DeepSpeed deepspeed/runtime/engine.py _report_progress",
        ("skipped=",),
        rb"\bstep=" + _N + rb", skipped=",
        "[2026-06-04 10:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=1200, skipped=0, lr=[3e-05]",
        1200,
    ),
    _row(
        "maxtext",
        "MaxText MaxText/metric_logger.py",
        ("completed step",),
        rb"\bcompleted step: " + _N + rb",",
        "completed step: 1200, seconds: 1.234, TFLOP/s/device: 401.2, Tokens/s/device: 8123.1, loss: 3.214",
        1200,
    ),
    _row(
        "torchtitan",
        "torchtitan torchtitan/components/metrics.py",
        ("step:",),
        rb"\bstep: {1,8}" + _N + rb" {1,8}loss: ",
        "[rank0]:[titan] 2026-06-04 10:00:00,123 - root - INFO - step: 1200  loss:  3.2141  memory: 61.2GiB(77.2%)",
        1200,
    ),
    _row(
        "nanogpt",
        "nanoGPT train.py",
        ("iter ",),
        rb"\biter " + _N + rb": loss ",
        "iter 1200: loss 3.2141, time 251.10ms, mfu 41.20%",
        1200,
    ),
    _row(
        "composer",
        "MosaicML Composer composer/loggers/console_logger.py; llm-foundry",
        ("[batch=",),
        rb"\[batch=" + _N + rb"[/\]]",
        "[epoch=1][batch=1200/4800]:",
        1200,
    ),
    _row(
        "olmo",
        "OLMo olmo/train.py, OLMo-core",
        ("[step=",),
        rb"\[step=" + _N + rb"[/,\]]",
        "2026-06-04 10:00:00.123 n1:0 olmo.train:930 INFO [step=1200/739328,epoch=0]",
        1200,
    ),
    _row(
        "fairseq",
        "fairseq fairseq/logging/progress_bar.py; metaseq",
        ("num_updates",),
        rb"\bnum_updates\"?[=:] ?\"?" + _N,
        "2026-06-04 10:00:01 | INFO | train_inner | epoch 001: 10 / 4096 loss=7.981, ppl=252.6, num_updates=1200",
        1200,
    ),
    _row(
        "torchtune",
        "torchtune recipes/full_finetune_distributed.py",
        ("|Loss:",),
        rb"\b\d{1,6}\|" + _N + rb"\|Loss: ",
        "1|1200|Loss: 1.2034:  24%|##4       | 1200/5000 [10:12<31:10,  2.03it/s]",
        1200,
    ),
    _row(
        "key",
        "loggers that write JSON or a dictionary",
        ('step"', "step'"),
        rb"[\"'](?:train[_/])?step[\"']: ?" + _N,
        '{"time": "2026-06-04T10:00:00Z", "step": 1200, "loss": 3.21}',
        1200,
    ),
    _row(
        "lightning",
        "Lightning lightning/pytorch/callbacks/progress/tqdm_progress.py: the step counts from 0 in each epoch",
        ("Epoch ",),
        rb"\bEpoch (?P<epoch>\d{1,9}): {1,4}" + _BAR,
        "Epoch 3:  45%|####5     | 450/1000 [03:01<03:41,  2.48it/s, v_num=0, train_loss=2.1]",
        3450,
        BAR,
    ),
    _row(
        "trainer",
        "Hugging Face transformers src/transformers/trainer_callback.py: a tqdm bar without a name",
        ("%|",),
        rb"^(?:\[default\d{1,4}\]:| {0,7}\d{1,7}: )? {0,3}" + _BAR,
        " 12%|#2        | 1200/10000 [10:03<1:13:45,  1.99it/s]",
        1200,
        BAR,
    ),
    _row(
        "loss",
        "scripts of one's own: the step, and further on its loss",
        ("step", "Step", "STEP", "iter", "Iter", "ITER", "update", "Update"),
        rb"(?i)\b(?:step|iter|iteration|update)s?[ :=#\]]{1,3}" + _N + rb"(?!\.\d)[^\r\n]{0,200}?loss",
        "step 1200 | loss 3.2141",
        1200,
    ),
    _row(
        "step",
        "scripts of one's own",
        ("step", "Step", "STEP", "iter", "Iter", "ITER"),
        rb"(?i)\b(?:step|iter|iteration)s?[ :=#]{1,3}" + _N + rb"(?!\.\d)(?! {0,2}of )",
        "step 1200 done in 1.02 s",
        1200,
        WORDS,
    ),
)
_ANY = re.compile(b"|".join(sorted({re.escape(literal) for row in ROWS for literal in row.literals})))
_LINE_END = re.compile(rb"[\r\n]")


class Step(NamedTuple):
    """One step, and when its line says that it was printed; without a zone that is taken as UTC."""

    number: int
    time: float | None = None
    zoned: bool = False


class Steps(NamedTuple):
    """The first and the last step of a log, and the first one `beyond` the number that was asked for.

    `least` is that of the row: the lower, the less doubtful.
    """

    first: Step | None = None
    last: Step | None = None
    beyond: Step | None = None
    row: str = ""
    least: int = WORDS + 1


NO_STEPS = Steps()


class StepWatch:
    """Looks on while a log is read. `beyond`: a step of which the first line that passes it is wanted."""

    def __init__(self, beyond: int | None = None) -> None:
        self._beyond = beyond
        self._read = 0
        self._head: list[tuple[int, bytes]] = []
        self._samples: list[tuple[int, bytes]] = []  # the first and the last that may tell a step
        self._last: list[tuple[int, bytes]] = []  # the last two pieces

    def over(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """The same pieces. Another call's begin somewhere behind those of the first."""
        self._read += bool(self._read)
        for piece in pieces:
            self._take(piece)
            yield piece

    def _take(self, piece: bytes) -> None:
        if self._read < ENDS[-1]:
            self._head.append((self._read, piece[: ENDS[-1] - self._read]))
        self._last.append((self._read, piece))
        self._read += len(piece)
        if len(self._last) > 2:
            start, left = self._last.pop(0)
            sample = left[-SAMPLE:]
            if _ANY.search(sample):
                self._samples[1:] = [(start + len(left) - len(sample), sample)]

    def steps(self) -> Steps:
        """What the pieces so far told."""
        found = None
        for end in ENDS:
            begin = self._read - end
            head = [(start, piece[: max(0, end - start)]) for start, piece in self._head]
            tail = [(max(start, begin), piece[max(0, begin - start) :]) for start, piece in self._last]
            found = _best([*head, *self._samples, *tail], self._beyond)
            if found is not None and found.end >= begin:
                break
        return found.steps() if found else NO_STEPS


def steps(regions: Sequence[tuple[int, bytes]], beyond: int | None = None) -> Steps:
    """What parts of a log tell, each given with its place; what two of them share is read once."""
    found = _best(regions, beyond)
    return found.steps() if found else NO_STEPS


def _best(regions: Sequence[tuple[int, bytes]], beyond: int | None) -> _Group | None:
    found: dict[tuple[object, ...], _Group] = {}
    known = _merged(regions)
    for start, data in known:
        rows = [row for row in ROWS if any(literal in data for literal in row.literals)]
        for position, line in _lines(start, data, cut=start != known[-1][0]):
            _look(found, rows, position, line, beyond)
    believed = [group for group in found.values() if len(group.numbers) >= group.row.least]
    return min(believed, key=_doubt, default=None)


def likeliest(logs: Iterable[Steps]) -> Steps:
    """Of several logs of one job (a bar goes to its standard error) the one that is least in doubt."""
    return min(logs, key=lambda one: one.least, default=NO_STEPS)


class _Group:
    """The lines of one row; of a bar with one total; of WORDS, alike."""

    def __init__(self, row: Row, position: int, first: tuple[int, bytes]) -> None:
        self.row, self.begin, self.end = row, position, position
        self.first = self.last = first
        self.beyond: tuple[int, bytes] | None = None
        self.numbers: set[int] = set()  # different ones, as many as `least`
        self.count = 0

    def take(self, position: int, step: tuple[int, bytes], beyond: int | None) -> None:
        self.end, self.last = position, step
        self.count += 1
        if len(self.numbers) < self.row.least:
            self.numbers.add(step[0])
        if self.beyond is None and beyond is not None and step[0] > beyond:
            self.beyond = step

    def steps(self) -> Steps:
        beyond = _step(self.beyond) if self.beyond else None
        return Steps(_step(self.first), _step(self.last), beyond, self.row.name, self.row.least)


def _doubt(group: _Group) -> tuple[int, int, int]:
    """Of two that are equally plain the one that is seen over more of the log: bars of an evaluation come and go."""
    return group.row.least, group.begin - group.end, -group.count


def _step(told: tuple[int, bytes]) -> Step:
    number, line = told
    text = line.decode("utf-8", errors="replace")
    head = frame(text)
    return Step(number, head.time, head.zoned) if head.time is not None else Step(number, any_time(text))


def _merged(regions: Sequence[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """The regions in order; those that touch are one."""
    known: list[tuple[int, bytes]] = []
    for start, data in sorted((region for region in regions if region[1]), key=lambda region: region[0]):
        end = known[-1][0] + len(known[-1][1]) if known else -1
        if start <= end:
            known[-1] = known[-1][0], known[-1][1] + data[end - start :]
        else:
            known.append((start, data))
    return known


def _lines(start: int, data: bytes, *, cut: bool) -> Iterator[tuple[int, bytes]]:
    """The region's whole lines that may tell a step; a carriage return ends one, as bars are printed.

    The first is whole where the region begins the log, the last where the log goes on behind it (`cut`) only with its
    end. Of a longer line the first MOST_LINE bytes.
    """
    if not is_clean(data):
        data = cleaned(Block(data, 0, len(data), 0)).data
    stop = 0
    for match in _ANY.finditer(data):
        if match.start() < stop:
            continue
        begin = 1 + max(data.rfind(b"\n", stop, match.start()), data.rfind(b"\r", stop, match.start())) or stop
        end = _LINE_END.search(data, match.end())
        if end is None and cut:
            return
        stop = end.end() if end else len(data)
        if begin or not start:
            yield start + begin, data[begin : min(stop, begin + MOST_LINE)]


def _look(
    found: dict[tuple[object, ...], _Group], rows: Iterable[Row], position: int, line: bytes, beyond: int | None
) -> None:
    for row in rows:
        match = row.pattern.search(line) if _has(line, row.literals) else None
        if match is None:
            continue
        told = match.groupdict()
        total, epoch = int(told.get("total") or 0), int(told.get("epoch") or 0)
        number = int(told["step"]) + epoch * total
        key = (row.name, total, _wording(line, match) if row.least == WORDS else b"")
        if number < LARGEST and (key in found or len(found) < MOST_GROUPS):
            group = found.setdefault(key, _Group(row, position, (number, line)))
            group.take(position, (number, line), beyond)
        return


def _has(line: bytes, literals: Iterable[bytes]) -> bool:
    for literal in literals:  # noqa: SIM110  # any() takes three times as long, and logs are long
        if literal in line:
            return True
    return False


def _wording(line: bytes, match: re.Match[bytes]) -> bytes:
    return same(line[: match.end("step") + 8])


class Span(NamedTuple):
    """When a log was written, and how far the zones of clocks on the site lie ahead of UTC, in seconds."""

    begin: float
    end: float
    ahead: Sequence[float] = (0.0,)


def placed(found: Steps, span: Span, slack: float = 2.0) -> Steps:
    """The same steps with times of that span. A time that lies outside it in every zone is none.

    Of several zones that would do, the one in which the last line is latest: what is printed last is printed near
    the end.
    """
    told = [step for step in (found.first, found.beyond, found.last) if step is not None and step.time is not None]
    zones = [0.0] if all(step.zoned for step in told) else sorted(set(span.ahead))

    def within(step: Step, ahead: float) -> float | None:
        when = None if step.time is None else step.time - (0.0 if step.zoned else ahead)
        return when if when is not None and span.begin - slack <= when <= span.end + slack else None

    fitting = [ahead for ahead in zones if all(within(step, ahead) is not None for step in told)]
    ahead = fitting[0] if fitting else zones[0]

    def put(step: Step | None) -> Step | None:
        return step and step._replace(time=within(step, ahead), zoned=True)

    return found._replace(first=put(found.first), last=put(found.last), beyond=put(found.beyond))

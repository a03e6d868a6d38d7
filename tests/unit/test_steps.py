"""Which lines of a log tell a training step: every row, the choice between rows, and what must not be one."""

from __future__ import annotations

import random
import time

import pytest

from slurm_recovery.detect.lines import pieces
from slurm_recovery.detect.steps import (
    BAR,
    ENDS,
    LARGEST,
    NO_STEPS,
    ROWS,
    SURE,
    Row,
    Span,
    Step,
    Steps,
    StepWatch,
    likeliest,
    placed,
    steps,
)

MEGATRON = " [2026-06-04 10:00:{:02}] iteration {:8}/  500000 | consumed samples: 1228800 | lm loss: 6.3E-01 |\n"
TEN = 1780567200.0  # 2026-06-04T10:00:00Z


def read(text: str | bytes, beyond: int | None = None) -> Steps:
    """As a log is read, in pieces."""
    watch = StepWatch(beyond)
    data = text.encode() if isinstance(text, str) else text
    assert b"".join(watch.over(pieces(data))) == data
    return watch.steps()


def first_and_last(found: Steps) -> tuple[int, int] | None:
    return (found.first.number, found.last.number) if found.first and found.last else None


def like(row: Row, step: int) -> str:
    """The row's example, of another step."""
    start, end = row.pattern.search(row.example.encode() + b"\n").span("step")  # type: ignore[union-attr]
    return row.example[:start] + str(step) + row.example[end:] + "\n"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_rows_example_is_told_by_that_row(row: Row) -> None:
    text = (row.example + "\n").encode()
    assert next(one.name for one in ROWS if one.pattern.search(text)) == row.name
    assert any(literal in text for literal in row.literals)
    steps = [450 - row.least + 1 + number for number in range(row.least)]
    found = read("".join(like(row, step) for step in steps))
    added = 3000 if row.name == "lightning" else 0
    assert found.row == row.name
    assert first_and_last(found) == (steps[0] + added, 450 + added)
    assert row.step == read(f"{like(row, 1)}{like(row, 2)}{row.example}\n").last.number  # type: ignore[union-attr]


@pytest.mark.parametrize("row", [row for row in ROWS if row.least > SURE], ids=lambda row: row.name)
def test_a_doubtful_row_must_be_seen_several_times(row: Row) -> None:
    assert read((row.example + "\n") * 50) == NO_STEPS
    assert read(like(row, 1)) == NO_STEPS


@pytest.mark.parametrize("label", ["0: ", "  7: ", "[default3]:", "[rank3]: ", "12: [rank12]: "])
def test_prefixes_do_not_hide_a_step(label: str) -> None:
    megatron = "".join(label + MEGATRON.format(one, one) for one in (1, 2))
    assert first_and_last(read(megatron)) == (1, 2)
    words = "".join(f"{label}step {one} done\n" for one in (1, 2, 3))
    assert first_and_last(read(words)) == (1, 3)


def test_bars_end_in_carriage_returns() -> None:
    text = "".join(f"\r {one:2}%|#         | {one}/100 [00:10<00:20,  1.99it/s]" for one in range(5, 62))
    found = read("Loading checkpoint shards: 100%|##########| 4/4 [00:01<00:00]\n" + text)
    assert first_and_last(found) == (5, 61)
    with_blocks = text.replace("#", "\N{FULL BLOCK}") + "\x1b[A"
    assert first_and_last(read(with_blocks)) == (5, 61)


def test_an_evaluations_bar_is_not_the_trainings() -> None:
    lines = []
    for step in range(1, 301):
        lines.append(f" {step // 10}%|#  | {step}/3000 [00:10<00:20,  1.99it/s]\r")
        if step % 100 == 0:
            lines += [f" {one}%|#  | {one}/100 [00:10<00:20,  9.9it/s]\r" for one in range(1, 101)]
    assert first_and_last(read("".join(lines[:-40]))) == (1, 300)


def test_a_plain_framework_line_goes_before_words_and_bars() -> None:
    text = "step 1 done\nstep 2 done\nstep 3 done\n" * 100 + MEGATRON.format(1, 1200)
    text += "  1%|#  | 1/90 [00:10<00:20]\r  2%|#  | 2/90 [00:10<00:20]\r"
    assert first_and_last(read(text)) == (1200, 1200)


@pytest.mark.parametrize(
    "text",
    [
        "step 3 of installation\n" * 9,
        "Step 1 of 3: download\nStep 2 of 3: unpack\nStep 3 of 3: install\n",
        "Step 1: download\nStep 2: unpack\nStep 3: install\n",
        "step 1/3\n",
        "saving at step 4711\n",
        "{'loss': 2.1034, 'grad_norm': 1.25, 'learning_rate': 1.98e-05, 'epoch': 0.12}\n" * 9,
        "Map: 100%|####| 500/5000 [00:01<00:00]\rMap: 100%|####| 5000/5000 [00:01<00:00]\n",
        "took 1.02 s per step, 3 steps left\n" * 3,
        "stepping 5, misstep 6, 7 step\n" * 3,
        "step 0.5 loss\nstep 0.6 loss\nstep 0.7 loss\n",
        "",
        "\n\r\n",
    ],
)
def test_other_words_tell_no_step(text: str) -> None:
    assert read(text) == NO_STEPS


def test_numbers_are_bounded() -> None:
    line = "iter {}: loss 3.2\n"
    assert read(line.format(LARGEST)) == NO_STEPS
    assert read(line.format("9" * 4000)) == NO_STEPS
    assert first_and_last(read(line.format(LARGEST - 1))) == (LARGEST - 1, LARGEST - 1)
    bar = "Epoch 999999999: 45%|# | {}/9999999999999999999 [00:01]\n"
    assert read(bar.format(1) + bar.format(2)) == NO_STEPS


def test_a_line_that_is_cut_off_within_its_number_tells_none() -> None:
    assert first_and_last(read("global_step=11\nglobal_step=1200")) == (11, 11)
    assert first_and_last(read("global_step=11\nglobal_step=1200\n")) == (11, 1200)


@pytest.mark.parametrize("noise", [0, 200 << 10, 900 << 10, 5 << 20])
def test_the_last_step_before_a_long_cascade(noise: int) -> None:
    """Up to a megabyte of it is read back; beyond that, a sample of each piece tells about where it was."""
    trained = "".join(MEGATRON.format(one % 60, one) for one in range(1, 60_001))
    cascade = "n1:4007:4218 [1] NCCL INFO comm 0x55d nranks 64 - Abort COMPLETE\n"
    found = read(trained + cascade * (noise // len(cascade)))
    assert found.first is not None
    assert found.last is not None
    assert found.first.number == 1
    assert found.last.number == 60_000 if noise < ENDS[-1] else 40_000 < found.last.number <= 60_000


def test_what_lies_across_pieces_is_read_once_and_whole() -> None:
    trained = "".join(MEGATRON.format(one % 60, one) for one in range(1, 2001)).encode()
    whole = steps([(0, trained)])
    for size in (97, 1000, 65_536, len(trained)):
        watch = StepWatch()
        parts = [trained[start : start + size] for start in range(0, len(trained), size)]
        assert list(watch.over(parts)) == parts
        assert watch.steps() == whole


def test_what_lies_across_a_gap_is_not_put_together() -> None:
    watch = StepWatch()
    list(watch.over([b"iter 1: loss 2\niter 12"]))
    list(watch.over([b"00: loss 2\niter 1300: loss 2\n"]))
    assert first_and_last(watch.steps()) == (1, 1300)
    assert watch.steps().last == Step(1300)


def test_the_first_step_beyond_the_one_to_begin_from() -> None:
    text = "".join(MEGATRON.format(one, 100 + one) for one in range(20))
    found = read(text, beyond=110)
    assert found.beyond == Step(111, TEN + 11)
    assert read(text, beyond=119).beyond is None
    assert read(text, beyond=-1).beyond == read(text).first


def test_times_of_prefixes_and_of_anywhere_else() -> None:
    assert read(MEGATRON.format(2, 7)).last == Step(7, TEN + 2)
    titan = "[rank0]:[titan] 2026-06-04 10:00:00,123 - root - INFO - step: 12  loss:  3.2141  memory: 61.2GiB\n"
    assert read(titan).last == Step(12, TEN)
    zoned = "2026-06-04T12:00:00+02:00 iter 7: loss 3.2\n"
    assert read(zoned).last == Step(7, TEN, zoned=True)


def test_a_time_without_a_zone_is_put_into_the_one_that_fits() -> None:
    found = Steps(Step(1, TEN), Step(9, TEN + 60), Step(5, TEN + 30), "megatron", SURE)
    zone = 7200.0
    here = placed(found, Span(TEN - zone - 10, TEN - zone + 70, (0.0, zone)))
    assert [one and one.time for one in here[:3]] == [TEN - zone, TEN - zone + 60, TEN - zone + 30]
    utc = placed(found, Span(TEN - 10, TEN + 70, (0.0, zone)))
    assert utc.last == Step(9, TEN + 60, zoned=True)
    long = placed(found, Span(TEN - 9 * 3600, TEN + 70, (0.0, zone)))
    assert long.last == Step(9, TEN + 60, zoned=True)  # what is printed last is printed near the end


def test_a_time_outside_the_attempt_is_none() -> None:
    found = Steps(Step(1, TEN - 86400), Step(9, TEN), None, "megatron", SURE)
    here = placed(found, Span(TEN - 60, TEN + 60))
    assert here.first == Step(1, None, zoned=True)
    assert here.last == Step(9, TEN, zoned=True)
    forged = placed(found._replace(last=Step(9, TEN + 86400, zoned=True)), Span(TEN - 60, TEN + 60, (0.0, 3600.0)))
    assert forged.last == Step(9, None, zoned=True)
    assert placed(NO_STEPS, Span(0, 1)) == NO_STEPS


def test_of_several_logs_the_least_doubtful_counts() -> None:
    sure = Steps(Step(1), Step(2), None, "megatron", SURE)
    bar = Steps(Step(1), Step(2), None, "trainer", BAR)
    assert likeliest([NO_STEPS, bar, sure]) == sure
    assert likeliest([]) == likeliest([NO_STEPS]) == NO_STEPS


@pytest.mark.timing
@pytest.mark.parametrize(
    "unit",
    [
        b"step ",
        b"\rstep 1",
        b"step 1\r",
        b"step=1 ",
        b"iteration 1/1",
        b"1%|",
        b" 1%|" + b"#" * 398,
        b"Epoch 1: 1%|#| 1/1 [",
        b"\x1b[",
    ],
)
def test_hostile_bytes_take_time_in_proportion(unit: bytes) -> None:
    data = unit * ((3 << 20) // len(unit))
    start = time.process_time()
    read(data)
    assert time.process_time() - start < 5.0


def test_no_bytes_make_it_fail() -> None:
    chance = random.Random(3)
    words = [row.example.encode() for row in ROWS] + [b"\n", b"\r", b"\x1b[31m", b"\0", b"\xff", b"9" * 30, b" step "]
    for _ in range(300):
        data = b"".join(chance.choice(words)[: chance.randrange(200)] for _ in range(chance.randrange(60)))
        found = read(data, chance.choice([None, 5]))
        assert found == NO_STEPS or (found.last is not None and 0 <= found.last.number < LARGEST)

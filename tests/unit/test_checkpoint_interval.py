"""How often to save: against the values that Daly published, against a search for the minimum, and a simulation."""

from __future__ import annotations

import random

import pytest

from slurm_recovery.decide.checkpoint_interval import (
    LEAST_FAILURES,
    Rate,
    Saves,
    advise,
    daly,
    lost_share,
    quantile,
    saves,
    young,
)

MINUTE, HOUR = 60.0, 3600.0


# Daly 2006, figures 3 to 5: "The new model predicts", for a dump time of 5 minutes, in minutes.
@pytest.mark.parametrize(("mtbf", "minutes"), [(24 * HOUR, 117), (6 * HOUR, 57), (15 * MINUTE, 9.1)])
def test_dalys_own_examples(mtbf: float, minutes: float) -> None:
    assert daly(5 * MINUTE, mtbf) / MINUTE == pytest.approx(minutes, abs=0.5 if minutes > 10 else 0.05)


def test_daly_saves_once_in_an_mtbf_where_writing_takes_longer_than_two() -> None:
    assert daly(2 * HOUR, HOUR) == HOUR
    assert daly(5 * HOUR, HOUR) == HOUR
    assert daly(1.999 * HOUR, HOUR) == pytest.approx(HOUR, rel=0.12)


def test_young() -> None:
    assert young(5 * MINUTE, 6 * HOUR) == pytest.approx(60 * MINUTE)  # sqrt(2 * 5 * 360)


@pytest.mark.parametrize("mtbf", [HOUR, 6 * HOUR, 48 * HOUR])
@pytest.mark.parametrize("write", [5.0, 60.0, 600.0])
@pytest.mark.parametrize("restart", [0.0, 600.0])
def test_daly_is_where_the_least_is_lost(mtbf: float, write: float, restart: float) -> None:
    best = min(range(10, 60_000, 10), key=lambda work: lost_share(work, write, mtbf, restart))
    assert daly(write, mtbf) == pytest.approx(best, rel=0.02, abs=10)
    assert lost_share(daly(write, mtbf), write, mtbf, restart) <= lost_share(best, write, mtbf, restart) + 1e-4


@pytest.mark.parametrize(("work", "write", "mtbf", "restart"), [(1000, 100, 3600, 300), (5000, 60, 7200, 60)])
def test_what_is_lost_is_what_a_simulation_loses(work: float, write: float, mtbf: float, restart: float) -> None:
    chance = random.Random(7)
    wall = done = 0.0
    for _ in range(20_000):
        wanted, todo = work + write, work + write
        while (failure := chance.expovariate(1 / mtbf)) < todo:
            wall += failure
            todo = restart + wanted  # a failure may come while it restarts, too
        wall += todo
        done += work
    assert lost_share(work, write, mtbf, restart) == pytest.approx(1 - done / wall, abs=0.01)


def test_nothing_overflows() -> None:
    assert lost_share(1e9, 1, 1) == 1.0
    assert lost_share(0.0, 1, 1) == 1.0
    assert lost_share(1, 1, 0.0) == 1.0
    assert lost_share(1e-9, 0.0, 1e12) == pytest.approx(0.0, abs=1e-6)


def test_a_rate_needs_ten_failures() -> None:
    assert Rate(LEAST_FAILURES - 1, 1e6).mtbf(4) is None
    assert Rate(LEAST_FAILURES, 1000.0).mtbf(4) == 25 * HOUR
    assert Rate(LEAST_FAILURES, 0.0).mtbf(4) is None
    assert Rate(LEAST_FAILURES, 1000.0).mtbf(0) is None


def test_intervals_do_not_reach_across_a_failure() -> None:
    first = [(100.0, 90.0), (400.0, 390.0), (700.0, 688.0)]
    second = [(9000.0, None), (9300.0, None)]
    assert saves([first, second]) == Saves(5, 300.0, 10.0)
    assert saves([[(100.0, 90.0)], [(700.0, 690.0)]]) is None
    assert saves([]) is None
    assert saves([[(100.0, None), (400.0, None)]]) == Saves(2, 300.0, None)


def test_advice_counts_the_interval_from_end_to_end() -> None:
    advice = advise(Saves(10, 4 * HOUR, 5 * MINUTE), 6 * HOUR, 10 * MINUTE)
    assert advice is not None
    assert (advice.young - 5 * MINUTE, advice.daly - 5 * MINUTE) == (young(300, 21600), daly(300, 21600))
    assert advice.lost > advice.could
    assert advice.could == lost_share(daly(300, 21600), 300, 21600, 600)
    assert advise(Saves(10, HOUR, None), HOUR, 0) is None


def test_quantiles() -> None:
    assert [quantile([3.0, 1.0, 2.0], share) for share in (0, 0.5, 0.9, 1)] == [1.0, 2.0, 2.8, 3.0]
    assert quantile([5.0], 0.9) == 5.0

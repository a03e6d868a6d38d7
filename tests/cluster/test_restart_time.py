"""How soon a failed job runs again, with free nodes, against Slurm's own requeue in the same run."""

from __future__ import annotations

import statistics

import pytest

from tests.bench import restart_report, restart_times
from tests.cluster.site import Site

pytestmark = pytest.mark.timing


def test_the_median_restart_takes_less_than_three_seconds(site: Site) -> None:
    ours, own = restart_times(site)
    print(restart_report(ours, own))
    assert statistics.median(ours) < 3
    assert own > 100

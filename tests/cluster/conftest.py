"""Clusters for the tests: one for each module that wants an ordinary one, ended with the module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.private_cluster import PrivateCluster
from tests.cluster.site import Site


@pytest.fixture(scope="module")
def cluster() -> Iterator[PrivateCluster]:
    with PrivateCluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def site(cluster: PrivateCluster) -> Site:
    """slurm_recovery in Mode=act, with no back-off so that tests are quick."""
    site = Site(cluster, {"Backoff": "0"})
    site.install()
    return site

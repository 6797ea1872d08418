"""A real Slurm of four nodes, shared by all tests here."""

import pytest
from cluster import Cluster, NoSlurm


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    """The cluster; no job is left in it when a test begins."""
    try:
        cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    except NoSlurm as why:
        pytest.skip(str(why))
    yield cluster
    cluster.close()

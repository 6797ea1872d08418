"""Three imitated hosts, shared by all tests here; every test finds their cables plugged in and unlimited."""

import pytest
from imitated import Hosts, NoHosts


@pytest.fixture(scope="session")
def network():
    """Hosts h1, h2 and h3."""
    try:
        hosts = Hosts("h1", "h2", "h3")
    except NoHosts as why:
        pytest.skip(str(why))
    yield hosts
    hosts.close()


@pytest.fixture
def hosts(network):
    """The hosts, as every test should find them."""
    yield network
    network.repair()

"""A server for every test that wants one."""

from collections.abc import Iterator

import pytest

from collect.seen import routes
from support.fault_server import FaultServer


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer(routes()) as running:
        yield running

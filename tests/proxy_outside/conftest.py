"""One scripted upstream for each module, proxies with different settings in front of it, and the ways to ask them."""

from collections.abc import Iterator

import pytest

from support.fault_upstream import FaultUpstream
from support.proxy_process import ProxyProcess, running_proxy
from support.proxy_ways import Way

QUICK = {"PROXY_PING_INTERVAL": 0.1, "PROXY_COMMIT_DELAY": 0.3, "PROXY_READ_TIMEOUT": 20}


@pytest.fixture(scope="module")
def scripted() -> Iterator[FaultUpstream]:
    """The upstream, for the whole module."""
    with FaultUpstream() as server:
        yield server


@pytest.fixture
def upstream(scripted: FaultUpstream) -> FaultUpstream:
    """The upstream, with nothing left of other tests."""
    scripted.forget()
    return scripted


@pytest.fixture(scope="module")
def plain(scripted: FaultUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    """A proxy with default guardrails."""
    with running_proxy(scripted.url, tmp_path_factory.mktemp("plain"), QUICK) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def strict(scripted: FaultUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    """A proxy that checks tool turns before it streams them."""
    values = {**QUICK, "PROXY_MALFORMED_TOOL_STREAM_STRICT": "on"}
    with running_proxy(scripted.url, tmp_path_factory.mktemp("strict"), values) as proxy:
        yield proxy


@pytest.fixture
def proxy(plain: ProxyProcess, upstream: FaultUpstream) -> ProxyProcess:
    """The proxy with default guardrails, and the upstream fresh."""
    del upstream
    return plain


@pytest.fixture(params=["stream", "whole", "strict"])
def way(request: pytest.FixtureRequest, upstream: FaultUpstream) -> Way:
    """Each way to ask for a turn: all must tell the same."""
    del upstream
    names = {"stream": "plain", "whole": "plain"}
    proxy = request.getfixturevalue(names.get(request.param, request.param))
    return Way(proxy, stream=request.param != "whole", held_back=request.param == "strict")

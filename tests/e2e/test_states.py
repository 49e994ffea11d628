"""What the whole program says of a server that misbehaves, over real sockets: the right state, and nothing hangs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from specdash.collect.hub import Hub
from specdash.core.target import Target
from specdash.insight.picture import BackendPicture, BackendState
from specdash.insight.state import TargetState
from support.fault_server import FaultServer, floods, free_port, hangs, says

pytestmark = pytest.mark.slow

HEALTHY = {
    "/health": says(200, '{"status":"ok"}'),
    "/props": says(200, '{"total_slots":1,"model_alias":"m","build_info":"b1-x","is_sleeping":false}'),
    "/slots": says(200, '[{"id":0,"n_ctx":4096,"speculative":true,"is_processing":false}]'),
}


def metrics(drafted: int, accepted: int) -> str:
    return (
        f"llamacpp:tokens_predicted_total {drafted * 2}\n"
        f"llamacpp:spec_decode_num_draft_tokens_total {drafted}\n"
        f"llamacpp:spec_decode_num_accepted_tokens_total {accepted}\n"
        f"llamacpp:spec_decode_num_drafts_total {drafted / 4:g}\n"
    )


def healthy(drafted: int = 400, accepted: int = 300) -> FaultServer:
    return FaultServer({**HEALTHY, "/metrics": says(200, metrics(drafted, accepted))})


@contextmanager
def watching(url: str, api_key: str | None = None) -> Iterator[Callable[[], BackendPicture]]:
    state = TargetState(Target(url, api_key=api_key))
    with Hub(Target(url, api_key=api_key), [state.apply], interval_s=0.5, gpu=False, host=False):
        yield lambda: state.picture(time.monotonic(), time.time(), 60.0).backend


def becomes(look: Callable[[], BackendPicture], wanted: BackendState, within_s: float = 15.0) -> BackendPicture:
    until = time.monotonic() + within_s
    while (seen := look()).state is not wanted and time.monotonic() < until:
        time.sleep(0.05)
    assert seen.state is wanted, f"{seen.state}: {seen.reason}"
    return seen


def test_a_healthy_server_is_live_with_its_figures() -> None:
    with healthy() as server, watching(server.url) as look:
        seen = becomes(look, BackendState.LIVE)
        until = time.monotonic() + 5
        while seen.speculation.draft_tokens_total is None and time.monotonic() < until:
            time.sleep(0.05)
            seen = look()
        assert seen.speculation.draft_tokens_total == 400
        assert seen.speculation.acceptance.lifetime.value == 0.75


def test_a_server_that_hangs_goes_stale_and_keeps_its_last_figures() -> None:
    with healthy() as server, watching(server.url) as look:
        becomes(look, BackendState.LIVE)
        time.sleep(1.0)
        for path in (*HEALTHY, "/metrics"):
            server.routes[path] = hangs()
        seen = becomes(look, BackendState.STALE)
        assert "hangs" in seen.reason
        assert seen.speculation.draft_tokens_total == 400


def test_a_server_that_dies_is_down_and_comes_back_restarted() -> None:
    server = healthy()
    with watching(server.url) as look:
        becomes(look, BackendState.LIVE)
        time.sleep(1.0)
        server.close()
        becomes(look, BackendState.DOWN)
        with FaultServer({**HEALTHY, "/metrics": says(200, metrics(8, 2))}, port=server.port):
            seen = becomes(look, BackendState.RESTARTED)
            assert seen.speculation.draft_tokens_total == 8
            assert seen.speculation.acceptance.window.value == 0.25


def test_a_wrong_key_is_unauthorized() -> None:
    refused = says(401, '{"error":{"code":401,"message":"Invalid API Key","type":"authentication_error"}}')
    routes = {**dict.fromkeys((*HEALTHY, "/metrics"), refused), "/health": HEALTHY["/health"]}
    with FaultServer(routes) as server, watching(server.url, "wrong-key") as look:
        seen = becomes(look, BackendState.UNAUTHORIZED)
        assert "--api-key-env" in seen.reason
        assert "wrong-key" not in repr(seen)


def test_a_loading_model_is_loading() -> None:
    loading = says(503, '{"error":{"message":"Loading model","type":"unavailable_error","code":503}}')
    with FaultServer(dict.fromkeys((*HEALTHY, "/metrics"), loading)) as server, watching(server.url) as look:
        becomes(look, BackendState.LOADING)


def test_fifty_megabytes_of_metrics_are_cut_off_and_nothing_else_suffers() -> None:
    head = b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\n\r\n"
    flood = floods(head, b"llamacpp:filler 1\n" * 4096, 750)
    with FaultServer({**HEALTHY, "/metrics": flood}) as server, watching(server.url) as look:
        seen = becomes(look, BackendState.LIVE)
        until = time.monotonic() + 6
        while "too large" not in seen.reason and time.monotonic() < until:
            time.sleep(0.05)
            seen = look()
        assert "too large" in seen.reason
        before = server.count("/slots")
        time.sleep(2.0)
        assert server.count("/slots") >= before + 2


def test_a_closed_port_is_down_at_once() -> None:
    with watching(f"http://127.0.0.1:{free_port()}") as look:
        assert "nothing listens" in becomes(look, BackendState.DOWN, 5).reason

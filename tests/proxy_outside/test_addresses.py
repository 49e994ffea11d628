"""Where the upstream is, clients are never told; the log is."""

from pathlib import Path
from typing import Any

import pytest

from specdash.backend.launch import free_port
from support.fault_upstream import FaultUpstream
from support.proxy_process import ProxyProcess, running_proxy
from support.proxy_ways import chat, turn
from support.upstream_script import Drop, Script, says
from support.waiting import until

FAULTS = {
    "refused": None,
    "no answer": Script(drops=True),
    "reset": Script(drops=True, resets=True),
    "silent": Script(hangs=True),
    "cut off": Script((*says("Hello"), Drop())),
    "no HTTP": Script(body=b"", status=0),
}


def ask_everything(proxy: ProxyProcess) -> list[bytes]:
    """Head and body of every answer that a client can get."""
    requests: list[tuple[str, str, Any]]
    requests = [("GET", path, None) for path in ("/health", "/v1/models", "/metrics")]
    bodies = [("/v1/messages", turn()), ("/v1/messages/count_tokens", turn()), ("/v1/chat/completions", chat())]
    requests += [("POST", path, {**body, "stream": stream}) for path, body in bodies for stream in (False, True)]
    answers = [proxy.request(method, path, body) for method, path, body in requests]
    return [repr(answer.headers).encode() + answer.body for answer in answers]


@pytest.mark.parametrize("fault", FAULTS)
def test_no_answer_tells_where_the_upstream_is(fault: str, upstream: FaultUpstream, tmp_path: Path) -> None:
    script = FAULTS[fault]
    port = upstream.port if script is not None else free_port("127.0.0.1")
    if script is not None:
        upstream.otherwise = script
        upstream.routes = dict.fromkeys(("/props", "/v1/models", "/v1/chat/completions/input_tokens"), script)
    values = {"PROXY_READ_TIMEOUT": 0.2, "PROXY_COMMIT_DELAY": 0.1, "PROXY_MALFORMED_TOOL_RETRY_MAX": 0}
    with running_proxy(f"http://127.0.0.1:{port}", tmp_path, values) as proxy:
        for answer in ask_everything(proxy):
            assert f"{port}".encode() not in answer
        # The log is written a moment later.
        until(lambda: [line for line in proxy.stderr.splitlines() if "WARNING" in line and f":{port}" in line])
        assert "Traceback" not in proxy.stderr

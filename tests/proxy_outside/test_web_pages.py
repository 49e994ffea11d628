"""What a page of any site can make a browser ask: by its own name, by a name of another (DNS rebinding), and how."""

import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from specdash.proxy.http.access import check_host, check_origin, host_of
from specdash.proxy.http.responses import ApiError
from support.fault_upstream import FaultUpstream
from support.proxy_process import ProxyProcess, running_proxy
from support.proxy_ways import chat, turn
from support.raw_client import CHAT, MESSAGES, post, raw, refused, split

GETS = ("/", "/health", "/metrics", "/v1/context", "/v1/models", "/admin/state", "/nope")
POSTS = (MESSAGES, f"{MESSAGES}/count_tokens", f"/anthropic{MESSAGES}", CHAT, "/chat/completions", "/admin/hold")
ALLOWED = {"PROXY_ALLOWED_HOSTS": "llm.example.org, Other.Example:4000"}


@pytest.fixture(scope="module")
def allowing(scripted: FaultUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    """A proxy that knows further names."""
    with running_proxy(scripted.url, tmp_path_factory.mktemp("allowing"), ALLOWED) as proxy:
        yield proxy


def asked(proxy: ProxyProcess, path: str, *lines: str, method: str = "GET", target: str | None = None) -> bytes:
    """The answer to a request with these header lines."""
    body = b"" if method != "POST" else str(turn("hello")).replace("'", '"').encode()
    head = f"{method} {target or path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
    return raw(proxy, (head + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode("latin-1") + body)


def envelope_of(path: str) -> str:
    return CHAT if path.endswith("chat/completions") else MESSAGES


STRANGERS = [
    ("host: evil.example",),
    ("host: evil.example:4000",),
    ("host: localhost.evil.example",),
    ("host: 127.0.0.1.nip.io",),
    ("host: 93.184.216.34",),
    ("host: localhost", "origin: http://evil.example"),
    ("host: localhost", "origin: null"),
    ("host: localhost", "origin: http://localhost:3000"),
    ("host: evil.example", "origin: http://evil.example"),
    ("host: localhost:80", "origin: http://localhost"),
]
"""Header lines of a page of another site; the first stands for all where every path is tried."""


@pytest.mark.parametrize(
    ("path", "lines"),
    [*((path, STRANGERS[0]) for path in (*GETS, *POSTS)), *(("/health", lines) for lines in STRANGERS[1:])],
)
def test_pages_of_others_are_refused_everywhere(proxy: ProxyProcess, path: str, lines: tuple[str, ...]) -> None:
    method = "POST" if path in POSTS else "GET"
    answer = asked(proxy, path, "content-type: text/plain", *lines, method=method)
    refused_without_close = split(answer)
    assert refused_without_close[0] == 403
    refused(answer, 403, envelope_of(path))


@pytest.mark.parametrize("path", ["/health", MESSAGES, CHAT])
def test_preflights_of_others_are_refused(proxy: ProxyProcess, path: str) -> None:
    lines = ("host: localhost", "origin: http://evil.example", "access-control-request-method: POST")
    status, headers, _ = split(asked(proxy, path, *lines, method="OPTIONS"))
    assert status == 403
    assert not [name for name in headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("lines", "target"),
    [
        ((), None),
        (("host: localhost", "host: localhost"), None),
        (("host: localhost", "host: evil.example"), None),
        (("host:",), None),
        (("host: local host",), None),
        (("host: localhost:80:80",), None),
        (("host: a@localhost",), None),
    ],
)
def test_a_request_has_one_host(proxy: ProxyProcess, lines: tuple[str, ...], target: str | None) -> None:
    refused(asked(proxy, "/health", *lines, target=target), 400)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:9999",
        "localhost.",
        "127.0.0.1",
        "127.1.2.3:5",
        "[::1]",
        "[::1]:4000",
        "[::ffff:127.0.0.1]",
        socket.gethostname(),
        socket.gethostname().upper() + ".:80",
    ],
)
def test_this_machine_is_known_under_any_port(proxy: ProxyProcess, host: str) -> None:
    assert split(asked(proxy, "/health", f"host: {host}"))[0] == 200


def test_a_page_of_the_proxy_itself_may_ask_but_not_for_admin(proxy: ProxyProcess) -> None:
    own = ("host: localhost:4000", "origin: http://LOCALHOST:4000")
    assert split(asked(proxy, "/health", *own))[0] == 200
    refused(asked(proxy, "/admin/state", *own), 403)


def test_what_a_reverse_proxy_forwards_of_another_machine_gets_no_admin(proxy: ProxyProcess) -> None:
    words = split(asked(proxy, "/admin/state", "host: localhost", "x-forwarded-for: 127.0.0.1, 10.0.0.9"))[2]
    assert b"only on this machine" in words


@pytest.mark.parametrize("host", ["llm.example.org", "LLM.example.org.:8443", "other.example", "localhost"])
def test_allowed_hosts_are_known(allowing: ProxyProcess, host: str) -> None:
    assert split(asked(allowing, "/health", f"host: {host}"))[0] == 200
    refused(asked(allowing, "/health", f"host: x.{host}"), 403)


def test_where_other_machines_can_connect_any_address_is_known_but_no_name(
    upstream: FaultUpstream, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("wide")
    with running_proxy(upstream.url, directory, {"PROXY_HOST": "0.0.0.0", "PROXY_API_KEY": "right"}) as proxy:
        assert split(asked(proxy, "/health", "host: 0.0.0.0:4000"))[0] == 200
        refused(asked(proxy, "/health", "host: evil.example"), 403)
        refused(raw(proxy, post(chat("hello"), CHAT, b"connection: close", b"origin: null")), 403, CHAT)


class _Settings:
    host = "127.0.0.1"
    allowed_hosts = None


def known(host: str, here: str) -> bool:
    headers = [(b"host", host.encode("latin-1"))]
    request = Request({"type": "http", "headers": headers, "server": (here, 4000)})
    try:
        check_host(request, _Settings())  # type: ignore[arg-type]
        check_origin(request)
    except ApiError:
        return False
    return True


@pytest.mark.parametrize("host", ["192.168.1.5", "10.0.0.1:4000", "[fd00::1]:4000", "localhost", "127.0.0.1"])
def test_an_address_is_no_name_that_could_be_bound_anew(host: str) -> None:
    assert known(host, "192.168.1.5")


LABEL = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=12)


@given(st.lists(LABEL, min_size=2, max_size=5), st.sampled_from(["", ".", ":4000", ".:1"]), st.booleans())
def test_no_name_of_the_dns_is_known(labels: list[str], rest: str, far: bool) -> None:
    name = ".".join((*labels, "example"))
    assert not known(name + rest, "192.168.1.5" if far else "127.0.0.1")
    assert host_of(name + rest) == name


@given(st.text(st.characters(max_codepoint=255), max_size=30))
def test_nothing_in_a_host_breaks_the_check(text: str) -> None:
    known(text, "127.0.0.1")

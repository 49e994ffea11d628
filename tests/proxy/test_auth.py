"""Who counts as this machine."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from specdash.proxy.http.access import check_admin, is_local
from specdash.proxy.http.responses import ApiError


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1", ""])
def test_loopback_is_this_machine(host: str) -> None:
    assert is_local(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "0.0.0.0", "::", "fe80::1", "::ffff:10.0.0.1", "localhost.evil", "x"])
def test_anything_else_is_not(host: str) -> None:
    assert not is_local(host)


TOKEN = (b"x-admin-token", b"open sesame")
HERE = ("127.0.0.1", 1)


def asked(client: tuple[str, int], *headers: tuple[bytes, bytes]) -> Request:
    lower = [(name.lower(), value) for name, value in headers]
    return Request({"type": "http", "client": client, "headers": lower})


def refusal(client: tuple[str, int], *headers: tuple[bytes, bytes]) -> tuple[int, str]:
    with pytest.raises(ApiError) as caught:
        check_admin(asked(client, *headers), "open sesame")
    return caught.value.status, caught.value.type


@pytest.mark.parametrize(
    ("client", "headers"),
    [
        (("10.0.0.9", 1), []),
        (HERE, [(b"origin", b"http://localhost:8000")]),
        (HERE, [(b"origin", b"null")]),
        (("10.0.0.9", 1), [(b"x-forwarded-for", b"127.0.0.1")]),
    ],
)
def test_admin_refuses_other_machines_and_every_web_page(
    client: tuple[str, int], headers: list[tuple[bytes, bytes]]
) -> None:
    assert refusal(client, TOKEN, *headers) == (403, "permission_error")


@pytest.mark.parametrize(
    "name",
    [
        "forwarded", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-port", "x-forwarded",
        "x-forwarded-by", "x-original-forwarded-for", "forwarded-for", "x-real-ip", "via", "cf-connecting-ip", "cf-ray",
        "true-client-ip", "x-client-ip", "x-cluster-client-ip", "fastly-client-ip", "fly-client-ip", "x-remote-ip",
        "x-remote-addr", "wl-proxy-client-ip", "do-connecting-ip", "x-appengine-user-ip", "x-envoy-external-address",
        "x-original-host", "cdn-loop", "X-Forwarded-For", "Via",
    ],
)  # fmt: skip
def test_admin_refuses_whatever_a_reverse_proxy_forwards(name: str) -> None:
    for value in (b"127.0.0.1", b"203.0.113.9", b""):
        assert refusal(HERE, TOKEN, (name.encode(), value)) == (403, "permission_error")


@pytest.mark.parametrize(
    "headers",
    [[], [(b"x-admin-token", b"")], [(b"x-api-key", b"the client key")], [(b"authorization", b"open sesame")]],
)
def test_admin_wants_its_own_token(headers: list[tuple[bytes, bytes]]) -> None:
    assert refusal(HERE, *headers) == (401, "authentication_error")


@pytest.mark.parametrize("sent", [TOKEN, (b"x-api-key", b"open sesame"), (b"authorization", b"Bearer open sesame")])
def test_the_token_opens_it_for_a_program_of_this_machine(sent: tuple[bytes, bytes]) -> None:
    for host in ("127.0.0.1", "::1", ""):
        check_admin(asked((host, 1), (b"user-agent", b"curl"), (b"accept", b"*/*"), sent), "open sesame")

"""Who counts as this machine."""

from __future__ import annotations

import pytest

from specdash.proxy.http.access import check_local, is_local
from specdash.proxy.http.responses import ApiError


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1", ""])
def test_loopback_is_this_machine(host: str) -> None:
    assert is_local(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "0.0.0.0", "::", "fe80::1", "::ffff:10.0.0.1", "localhost.evil", "x"])
def test_anything_else_is_not(host: str) -> None:
    assert not is_local(host)


@pytest.mark.parametrize(
    ("client", "headers"),
    [
        (("10.0.0.9", 1), []),
        (("127.0.0.1", 1), [(b"origin", b"http://localhost:8000")]),
        (("127.0.0.1", 1), [(b"origin", b"null")]),
        (("10.0.0.9", 1), [(b"x-forwarded-for", b"127.0.0.1")]),
    ],
)
def test_admin_refuses_other_machines_and_every_web_page(
    client: tuple[str, int], headers: list[tuple[bytes, bytes]]
) -> None:
    with pytest.raises(ApiError) as caught:
        check_local({"client": client, "headers": headers})
    assert (caught.value.status, caught.value.type) == (403, "permission_error")

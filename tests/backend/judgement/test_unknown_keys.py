"""A key that nothing reads: refused where a change brings it, a warning where it stands in the file already."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(("role", "key"), [("backend", "LLAMA_DRAFT_MAXX"), ("proxy", "PROXY_LOOP_BREAKR")])
@pytest.mark.parametrize(
    ("more", "severity"),
    [({"changed": True}, "error"), ({}, "warning"), ({"changed": True, "back": True}, "warning")],
)
def test_unknown_key(request: pytest.FixtureRequest, role: str, key: str, more: dict[str, Any], severity: str) -> None:
    known = {**more, "changed": frozenset({key})} if "changed" in more else more
    found = request.getfixturevalue(role)({key: "3"}, **known)
    assert [str(each.severity) for each in found.of("unknown-key")] == [severity]

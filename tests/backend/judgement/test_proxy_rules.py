"""The proxy's settings: what would stop it is an error, what it would quietly ignore is a warning."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from specdash.backend.plan import Circumstances, judge
from specdash.core.changes import Role
from specdash.core.errors import InputError, errors
from specdash.core.proxy_parameters import BY_KEY
from specdash.proxy.settings import settings_from_env

_KEYS = ("PROXY_HOST", "PROXY_PORT", "PROXY_API_KEY", "LLAMA_CPP_BASE", "PROXY_MAX_CONNECTIONS")
_TEXTS = ("", "0", "127.0.0.1", "0.0.0.0", "localhost", "::1", "4555", "x", "http://127.0.0.1:8/v1", "https://h", "//")


@given(values=st.dictionaries(st.sampled_from(_KEYS), st.sampled_from(_TEXTS), max_size=5))
def test_whatever_the_proxy_refuses_to_start_with_is_an_error(values: dict[str, str], context: Circumstances) -> None:
    try:
        read = settings_from_env(values)
    except InputError:
        assert errors(judge(Role.PROXY, values, context))
        return
    rows = judge(Role.PROXY, values, replace(context, changed=frozenset()))
    known = {"value", "upstream", "unknown-key"}
    wrong = [row for row in rows if row.rule in known and row.severity == "error"]
    assert all("itself" in row.message for row in wrong)
    assert len(read.problems) <= len([row for row in rows if row.rule in known])
    assert set(values) <= set(BY_KEY)

"""Values, keys, relations and lines of the file: every finding, each once, with the value named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from specdash.backend.plan import Circumstances, judge
from specdash.core.changes import Role
from specdash.core.parameter_catalogue import BY_KEY as BACKEND_KEYS
from specdash.core.proxy_parameters import BY_KEY as PROXY_KEYS

if TYPE_CHECKING:
    from backend.judgement.conftest import Check


def test_secrets_are_in_no_finding(backend: Check, proxy: Check) -> None:
    secret = "sk-very-secret"
    wanted = {
        "LLAMA_API_KEY": secret,
        "LLAMA_EXTRA_ARGS": f"--api-key {secret} --spec-type={secret}",
        "LLAMA_MODEL": f"/absent/{secret}",
        "LLAMA_HOST": "192.0.2.1",
    }
    assert secret not in repr(backend(wanted).rows)
    proxied = {"PROXY_API_KEY": secret, "LLAMA_CPP_BASE": f"ftp://me:{secret}@host/v1", "PROXY_TLS_KEY_FILE": secret}
    assert secret not in repr(proxy(proxied).rows)


def test_lines_that_cannot_be_read_are_errors_with_their_number(backend: Check, context: Circumstances) -> None:
    text = "LLAMA_PORT=1\nexport A=b\nno equals\n"
    assert context.env_file is not None
    context.env_file.write_text(text, encoding="utf-8")
    found = backend()
    lines = {(row.severity, row.message.split(": ")[0].rpartition(":")[2]) for row in found.of("env-line")}
    assert lines == {("error", "2"), ("error", "3")}


_KEYS = st.sampled_from([*BACKEND_KEYS, *PROXY_KEYS, "LLAMA_X", "A B", ""])
_TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["0", "-1", "1", "99999999999999999999", "1e999", "draft-simple", "a,b", "\0", "\udc80", "[::", "'"]
    ),
)


@given(values=st.dictionaries(_KEYS, _TEXTS, max_size=8), role=st.sampled_from(list(Role)))
def test_no_values_make_it_raise(values: dict[str, str], role: Role, context: Circumstances) -> None:
    for row in judge(role, values, replace(context, changed=frozenset(values))):
        assert "\n" not in row.message + row.fix
        assert row.message

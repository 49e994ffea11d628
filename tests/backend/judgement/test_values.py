"""Values, keys, relations and lines of the file: every finding, each once, with the value named."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from specdash.backend.plan import Circumstances, judge
from specdash.core.changes import Role
from specdash.core.parameter_catalogue import BY_KEY as BACKEND_KEYS
from specdash.core.proxy_parameters import BY_KEY as PROXY_KEYS

if TYPE_CHECKING:
    from backend.judgement.conftest import Check


def test_all_findings_come_errors_first(backend: Check) -> None:
    found = backend(
        {
            "LLAMA_CTX_SIZE": "many",
            "LLAMA_PARALLEL": "9999",
            "LLAMA_DRAFT_MAX": "0",
            "LLAMA_ARG_DRAFT_MIN": "3",
            "LLAMA_DRFT_P_MIN": "0.5",
            "LLAMA_SPEC_TYPE": "draft-magic",
            "LLAMA_HOST": "192.0.2.1",
        }
    )
    assert {row.key for row in found.errors} == {
        *("LLAMA_CTX_SIZE", "LLAMA_PARALLEL", "LLAMA_DRAFT_MAX", "LLAMA_ARG_DRAFT_MIN", "LLAMA_SPEC_TYPE"),
        "LLAMA_HOST",
    }
    order = [row.severity for row in found.rows]
    assert order == sorted(order, key=["error", "warning", "info"].index)
    assert all(row.fix for row in found.errors)
    assert found.one("unknown-key").fix == "did you mean LLAMA_DRAFT_P_MIN?"


def test_what_the_backend_warns_about_is_said_once(backend: Check, models: dict[str, str]) -> None:
    found = backend(
        {
            "LLAMA_SPEC_TYPE": "ngram-cache",
            "LLAMA_DRAFT_MODEL": models["draft"],
            "LLAMA_DRAFT_MAX": "8",
            "LLAMA_ARG_ENDPOINT_SLOTS": "0",
            "LLAMA_FOO": "1",
        }
    )
    for word in ("is not loaded", "/slots off", "LLAMA_FOO is not a known key", "has no effect on ngram-cache"):
        assert [word in row.message for row in found.rows].count(True) == 1, word
    assert "ngram-mod" in found.one("no-effect").fix


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

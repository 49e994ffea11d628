"""Wanted changes: whose they are, what differs, and what may be shown of them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.core.changes import (
    Role,
    changed_values,
    changes_to,
    differences,
    is_secret,
    parse_assignments,
    role_of,
    shown_value,
)
from specdash.core.errors import UsageError
from specdash.core.masking import MASK
from support.help_engine import TODAY, help_text

BACKEND, PROXY = Role.BACKEND, Role.PROXY
MAX = "LLAMA_DRAFT_MAX"


@pytest.mark.parametrize(
    ("words", "role", "wanted"),
    [
        ([f"{MAX}=8", "PROXY_PORT=1"], None, {BACKEND: {MAX: "8"}, PROXY: {"PROXY_PORT": "1"}}),
        (["LLAMA_CPP_BASE=http://x/v1"], None, {PROXY: {"LLAMA_CPP_BASE": "http://x/v1"}}),
        (["LLAMA_EXTRA_ARGS=--a=b -c", f"{MAX}="], None, {BACKEND: {"LLAMA_EXTRA_ARGS": "--a=b -c", MAX: ""}}),
        ([f"-{MAX}", "!PROXY_PORT"], None, {BACKEND: {MAX: None}, PROXY: {"PROXY_PORT": None}}),
        (["CUDA_VISIBLE_DEVICES=0"], BACKEND, {BACKEND: {"CUDA_VISIBLE_DEVICES": "0"}}),
        # Any key can be removed from the file that it should not be in.
        ([f"-{MAX}"], PROXY, {PROXY: {MAX: None}}),
    ],
)
def test_a_key_names_its_service_and_an_empty_value_is_no_removal(
    words: list[str], role: Role | None, wanted: dict[Role, dict[str, str | None]]
) -> None:
    assert parse_assignments(words, role) == wanted


@pytest.mark.parametrize(
    ("words", "role", "complaint"),
    [
        ([MAX], None, "write KEY=VALUE"),
        (["CUDA_VISIBLE_DEVICES=0"], None, "add --service"),
        ([f"{MAX}=8", f"{MAX}=9"], None, "given twice"),
        ([f"{MAX}=8"], PROXY, "belongs to the backend"),
    ],
)
def test_what_cannot_be_meant_is_named(words: list[str], role: Role | None, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        parse_assignments(words, role)


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("LLAMA_API_KEY", "sk-1", MASK),
        ("LLAMA_API_KEY", None, None),
        ("LLAMA_EXTRA_ARGS", "--api-key sk-1 --no-mmap", f"--api-key {MASK} --no-mmap"),
        ("LLAMA_EXTRA_ARGS", "--api-key-file /k --metrics", "--api-key-file /k --metrics"),
        ("LLAMA_EXTRA_ARGS", """--mcp-servers-json '{"key":"hush"}' -c""", f"--mcp-servers-json {MASK} -c"),
        ("LLAMA_CPP_BASE", "http://me:pass@host/v1", f"http://me:{MASK}@host/v1"),
        ("LLAMA_ARG_IMAGE_MIN_TOKENS", "64", "64"),
    ],
)
def test_secrets_are_masked_also_inside_other_values(key: str, value: str | None, shown: str | None) -> None:
    assert shown_value(key, value) == shown


def test_only_keys_and_tokens_are_secrets() -> None:
    variables = set(re.findall(r"\(env: *([A-Z_0-9]+)\)", help_text(TODAY)))
    assert len(variables) > 100
    assert {key for key in variables if is_secret(key)} == {"HF_TOKEN", "LLAMA_API_KEY", "LLAMA_ARG_MCP_SERVERS_JSON"}
    others = ("LLAMA_API_KEY_FILE", "SOME_KEY_ENV", "LLAMA_ARG_NO_CORS_CREDENTIALS", "LLAMA_ARG_NEW_MIN_TOKENS")
    assert not any(map(is_secret, others))
    assert is_secret("LLAMA_ARG_HF_TOKEN")
    assert role_of("HOME") is None


VALUES = st.dictionaries(st.sampled_from(["A", "B", "C"]), st.text(max_size=3), max_size=3)


@given(VALUES, st.dictionaries(st.sampled_from(["A", "B", "C"]), st.none() | st.text(max_size=3), max_size=3))
def test_changes_are_exactly_what_leads_from_before_to_after(
    before: dict[str, str], wanted: dict[str, str | None]
) -> None:
    after = changed_values(before, wanted)
    made = changes_to(BACKEND, before, wanted)
    assert sorted(made, key=str) == sorted(differences(BACKEND, before, after), key=str)
    assert all(change.before == before.get(change.key) != change.after for change in made)
    assert changed_values(before, {change.key: change.after for change in made}) == after
    assert after == {key: value for key, value in {**before, **wanted}.items() if value is not None}

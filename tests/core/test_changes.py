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


def test_a_key_tells_its_service() -> None:
    changes = parse_assignments(["LLAMA_DRAFT_MAX=8", "PROXY_LOOP_BREAKER=off", "LLAMA_CPP_BASE=http://x/v1"])
    assert changes[Role.BACKEND] == {"LLAMA_DRAFT_MAX": "8"}
    assert changes[Role.PROXY] == {"PROXY_LOOP_BREAKER": "off", "LLAMA_CPP_BASE": "http://x/v1"}


def test_a_value_may_hold_anything_and_an_empty_one_is_no_removal() -> None:
    changes = parse_assignments(["LLAMA_EXTRA_ARGS=--a=b -c", "LLAMA_DRAFT_MIN=", "-LLAMA_DRAFT_P_MIN"])
    assert changes[Role.BACKEND] == {
        "LLAMA_EXTRA_ARGS": "--a=b -c",
        "LLAMA_DRAFT_MIN": "",
        "LLAMA_DRAFT_P_MIN": None,
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["LLAMA_DRAFT_MAX"], "write KEY=VALUE"),
        (["=8"], "write KEY=VALUE"),
        (["CUDA_VISIBLE_DEVICES=0"], "add --service"),
        (["LLAMA_DRAFT_MAX=8", "LLAMA_DRAFT_MAX=9"], "given twice"),
    ],
)
def test_what_cannot_be_meant_is_named(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_assignments(words)


def test_a_key_of_nobody_goes_to_the_named_service_and_a_known_one_never_to_the_other() -> None:
    assert parse_assignments(["CUDA_VISIBLE_DEVICES=0"], Role.BACKEND)[Role.BACKEND] == {"CUDA_VISIBLE_DEVICES": "0"}
    with pytest.raises(UsageError, match="belongs to the backend"):
        parse_assignments(["LLAMA_DRAFT_MAX=8"], Role.PROXY)


def test_secrets_are_masked_also_inside_other_values() -> None:
    assert shown_value("LLAMA_API_KEY", "sk-1") == MASK
    assert shown_value("MY_SECRET", "x") == MASK
    assert "sk-1" not in str(shown_value("LLAMA_EXTRA_ARGS", "--api-key sk-1 --no-mmap"))
    assert "pass" not in str(shown_value("LLAMA_CPP_BASE", "http://me:pass@host/v1"))
    assert shown_value("LLAMA_EXTRA_ARGS", "--api-key-file /k --metrics") == "--api-key-file /k --metrics"
    assert shown_value("LLAMA_DRAFT_MAX", "8") == "8"
    assert shown_value("LLAMA_API_KEY", None) is None


def test_files_and_names_of_keys_are_no_secrets() -> None:
    assert not is_secret("LLAMA_API_KEY_FILE")
    assert not is_secret("SOME_KEY_ENV")
    assert is_secret("HF_TOKEN")
    assert role_of("HOME") is None


VALUES = st.dictionaries(st.sampled_from(["A", "B", "C"]), st.text(max_size=3), max_size=3)


@given(VALUES, st.dictionaries(st.sampled_from(["A", "B", "C"]), st.none() | st.text(max_size=3), max_size=3))
def test_changes_are_exactly_what_leads_from_before_to_after(
    before: dict[str, str], wanted: dict[str, str | None]
) -> None:
    after = changed_values(before, wanted)
    made = changes_to(Role.BACKEND, before, wanted)
    assert sorted(made, key=str) == sorted(differences(Role.BACKEND, before, after), key=str)
    again = dict(before)
    for change in made:
        assert change.before != change.after
        if change.after is None:
            del again[change.key]
        else:
            again[change.key] = change.after
    assert again == after


def test_a_key_of_the_other_service_can_be_removed_from_the_file_it_should_not_be_in() -> None:
    assert parse_assignments(["-LLAMA_API_KEY"], Role.PROXY)[Role.PROXY] == {"LLAMA_API_KEY": None}
    assert parse_assignments(["-LLAMA_API_KEY"])[Role.BACKEND] == {"LLAMA_API_KEY": None}
    with pytest.raises(UsageError, match="belongs to the backend"):
        parse_assignments(["LLAMA_API_KEY=x"], Role.PROXY)


def test_of_all_that_an_engine_reads_only_keys_and_tokens_are_secrets() -> None:
    variables = set(re.findall(r"\(env: *([A-Z_0-9]+)\)", help_text(TODAY)))
    assert len(variables) > 100
    assert {key for key in variables if is_secret(key)} == {"HF_TOKEN", "LLAMA_API_KEY", "LLAMA_ARG_MCP_SERVERS_JSON"}
    assert not is_secret("LLAMA_ARG_NO_CORS_CREDENTIALS")
    assert not is_secret("LLAMA_ARG_SOMETHING_NEW_MIN_TOKENS")
    assert is_secret("LLAMA_ARG_HF_TOKEN")
    assert shown_value("LLAMA_ARG_IMAGE_MIN_TOKENS", "64") == "64"
    assert "hush" not in str(shown_value("LLAMA_EXTRA_ARGS", """--mcp-servers-json '{"key":"hush"}' --jinja"""))

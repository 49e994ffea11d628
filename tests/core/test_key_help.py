"""What the editor shows of an env key; what docs/settings.md prints of each is held by tests/tools/test_pages.py."""

import pytest

from specdash.core import parameter_catalogue as backend
from specdash.core import proxy_parameters
from specdash.core.changes import Role
from specdash.core.env_edit import KeyHelp, all_keys, check_value, key_help, listed_values
from specdash.core.errors import InputError

EVERY_NAME = (*backend.BY_KEY, *proxy_parameters.BY_KEY, *backend.PASSED_ON)


def known(key: str) -> KeyHelp:
    found = key_help(key)
    assert found is not None, key
    return found


def test_every_declared_key_has_help_in_single_lines_and_every_value_to_choose_from_may_be_set() -> None:
    assert len(set(EVERY_NAME)) == len(EVERY_NAME), "none is declared twice"
    for key in EVERY_NAME:
        found = known(key)
        listed = listed_values(found.role, key)
        for value in listed:
            check_value(found.role, key, value)
        texts = (found.key, found.meaning, found.values, *found.notes, *listed.values())
        assert all(text and "\n" not in text for text in texts), key
    for role in Role:
        keys = [found.key for found in all_keys(role)]
        assert len(keys) == len(set(keys))


def test_on_and_off_are_listed_as_they_are_written_now() -> None:
    assert list(listed_values(Role.PROXY, "PROXY_LOOP_BREAKER", "True")) == ["true", "false"]
    assert list(listed_values(Role.PROXY, "PROXY_LOOP_BREAKER")) == ["1", "0"]


@pytest.mark.parametrize(
    ("key", "note"),
    [
        ("LLAMA_DRAFT_MAX", "ngram-mod: sets --spec-ngram-mod-n-max"),
        ("LLAMA_DRAFT_MAX", "ngram-cache: has no knob, its draft length is fixed at 8 tokens"),
        ("LLAMA_DRAFT_MIN", "ngram-cache: does not read it"),
        ("LLAMA_ARG_CTX_SIZE", "LLAMA_CTX_SIZE sets the same, and wins"),
        ("LLAMA_ARG_RPC", "handed to llama-server unread; xllamacpp does not read it"),
        ("HF_TOKEN", "secret: reaches the server as the variable HF_TOKEN, never on its command line"),
    ],
)
def test_what_an_engine_does_with_a_key_is_a_note(key: str, note: str) -> None:
    assert note in known(key).notes


def test_the_backend_always_needs_a_restart_and_the_proxy_only_for_what_it_listens_with() -> None:
    assert all(key.restart for key in all_keys(Role.BACKEND))
    assert known("PROXY_PORT").restart
    assert not known("PROXY_LOOP_BREAKER").restart


@pytest.mark.parametrize(
    ("role", "key", "good", "bad"),
    [
        (Role.BACKEND, "LLAMA_DRAFT_MAX", "1", "0"),
        (Role.BACKEND, "LLAMA_DRAFT_MAX", "1024", "lots"),
        (Role.BACKEND, "LLAMA_SPEC_TYPE", "new-type,ngram-mod", "none,ngram-mod"),
        (Role.BACKEND, "LLAMA_ARG_NUMA", "isolate", "x"),
        (Role.PROXY, "PROXY_PORT", "4000", "70000"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(role: Role, key: str, good: str, bad: str) -> None:
    check_value(role, key, good)
    check_value(role, key, "")
    with pytest.raises(InputError, match=key):
        check_value(role, key, bad)


def test_a_removed_variable_names_its_key_and_no_complaint_holds_a_secret() -> None:
    with pytest.raises(InputError, match=r"llama\.cpp removed this variable; use LLAMA_DRAFT_MAX"):
        check_value(Role.BACKEND, "LLAMA_ARG_DRAFT_MAX", "8")
    with pytest.raises(InputError) as refused:
        check_value(Role.PROXY, "PROXY_PORT", "--api-key sk-1")
    assert "sk-1" not in str(refused.value)

"""What an editor and docs/settings.md say of each env key comes from the catalogues alone."""

from hypothesis import given
from hypothesis import strategies as st

from specdash.core import parameter_catalogue as backend
from specdash.core import proxy_parameters
from specdash.core.changes import Role
from specdash.core.env_edit import KeyHelp, all_keys, check_value, key_help, listed_values
from specdash.core.speculation import SPEC_TYPES

EVERY_NAME = (*backend.BY_KEY, *proxy_parameters.BY_KEY, *backend.PASSED_ON)


def known(key: str) -> KeyHelp:
    found = key_help(key)
    assert found is not None, key
    return found


def test_every_declared_key_has_help_in_single_lines_and_every_value_to_choose_from_may_be_set() -> None:
    for key in EVERY_NAME:
        found = known(key)
        assert found.key == key
        assert all((found.meaning, found.values)), key
        listed = listed_values(found.role, key)
        for value, meaning in listed.items():
            check_value(found.role, key, value)
            assert meaning, (key, value)
        assert not any("\n" in text for text in (found.meaning, found.values, *found.notes, *listed.values())), key


def test_on_and_off_are_listed_as_they_are_written_now() -> None:
    assert list(listed_values(Role.PROXY, "PROXY_LOOP_BREAKER", "True")) == ["true", "false"]
    assert list(listed_values(Role.PROXY, "PROXY_LOOP_BREAKER")) == ["1", "0"]


@given(st.text(max_size=30).filter(lambda text: text not in EVERY_NAME))
def test_a_key_nobody_declares_has_none(key: str) -> None:
    assert key_help(key) is None


def test_no_key_is_declared_twice() -> None:
    assert len(set(EVERY_NAME)) == len(EVERY_NAME)


def test_each_parameter_with_a_key_is_listed_once() -> None:
    listed = [key.key for key in all_keys(Role.BACKEND)]
    assert len(listed) == len(set(listed))
    assert set(listed) == {
        parameter.key for parameter in (*backend.PARAMETERS, *backend.PASSED_ON.values()) if parameter.keys
    }
    assert [key.key for key in all_keys(Role.PROXY)] == [parameter.key for parameter in proxy_parameters.PARAMETERS]


def test_a_knob_names_the_flag_it_moves_for_each_type_that_reads_it() -> None:
    longest = known("LLAMA_DRAFT_MAX")
    assert "ngram-mod: sets --spec-ngram-mod-n-max" in longest.notes
    assert "draft-mtp: sets --spec-draft-n-max" in longest.notes
    assert {"--spec-draft-n-max", "--spec-ngram-map-k4v-size-m"} <= set(longest.flags)
    assert set(longest.readers) == {spec_kind.name for spec_kind in SPEC_TYPES} - {"ngram-cache"}
    assert known("LLAMA_DRAFT_P_MIN").flags == ("--spec-draft-p-min",)


def test_ngram_cache_is_said_to_have_no_knob() -> None:
    assert "ngram-cache: has no knob, its draft length is fixed at 8 tokens" in known("LLAMA_DRAFT_MAX").notes
    assert "ngram-cache: does not read it" in known("LLAMA_DRAFT_MIN").notes


def test_the_backend_always_needs_a_restart_and_the_proxy_only_for_what_it_listens_with() -> None:
    assert all(key.restart for key in all_keys(Role.BACKEND))
    assert known("PROXY_PORT").restart
    assert not known("PROXY_LOOP_BREAKER").restart


def test_a_name_of_llama_cpps_own_says_which_key_wins() -> None:
    assert known("LLAMA_ARG_CTX_SIZE").notes[-1] == "LLAMA_CTX_SIZE sets the same, and wins"
    assert "xllamacpp does not read it" in known("LLAMA_ARG_RPC").notes[0]


def test_secrets_have_no_flag_and_say_how_they_travel() -> None:
    for key in ("LLAMA_API_KEY", "HF_TOKEN"):
        found = known(key)
        assert (found.secret, found.flags) == (True, ())
        assert f"as the variable {key}, never on its command line" in found.notes[0]
    assert known("PROXY_API_KEY").secret


def test_values_are_told_in_words() -> None:
    assert known("LLAMA_DRAFT_MAX").values == "whole number, 1 to 1024 tokens"
    assert known("LLAMA_GPU_LAYERS").values == "whole number, -2 or more layers or 'auto' or 'all'"
    assert known("LLAMA_ENGINE").values == "auto, llama-server, xllamacpp"
    assert (known("LLAMA_ARG_JINJA").values, known("LLAMA_ARG_JINJA").default) == ("on or off", "on")


def test_readers_of_a_parameter_are_the_types_it_belongs_to() -> None:
    assert known("LLAMA_DRAFT_MODEL").readers == tuple(
        spec_kind.name for spec_kind in SPEC_TYPES if spec_kind.reads_draft_model
    )
    assert len(known("LLAMA_ARG_SPEC_SYNTH_LEN").readers) == len(SPEC_TYPES)
    assert known("LLAMA_CTX_SIZE").readers == ()

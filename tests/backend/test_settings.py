"""A backend env becomes one typed configuration, and what cannot be meant is refused with the reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.backend.binary import fit
from specdash.backend.settings import BackendSettings, settings_from_env
from specdash.core.errors import InputError
from support.known_engines import BUILD

MODEL = {"LLAMA_MODEL": "m.gguf"}
DRAFT = {**MODEL, "LLAMA_DRAFT_MODEL": "d.gguf"}


def settings(**env: str) -> BackendSettings:
    return settings_from_env({**MODEL, **env})


def value(config: BackendSettings, name: str) -> tuple[object, str]:
    assigned = config.parameters[name]
    return assigned.value, assigned.origin


def test_every_value_knows_the_key_it_came_from() -> None:
    config = settings(LLAMA_CTX_SIZE="4096", LLAMA_ARG_BATCH="512", LLAMA_EXTRA_ARGS="--threads 3")
    assert value(config, "ctx-size") == (4096, "LLAMA_CTX_SIZE")
    assert value(config, "batch-size") == (512, "LLAMA_ARG_BATCH")
    assert value(config, "threads") == (3, "LLAMA_EXTRA_ARGS")
    assert value(config, "parallel") == (1, "default")


def test_extra_args_win_over_our_key_and_our_key_over_llama_cpps() -> None:
    env = {"LLAMA_ARG_CTX_SIZE": "1", "LLAMA_CTX_SIZE": "2"}
    ours = settings(**env)
    assert value(ours, "ctx-size") == (2, "LLAMA_CTX_SIZE")
    assert [str(remark) for remark in ours.remarks] == ["LLAMA_ARG_CTX_SIZE=1 is ignored: LLAMA_CTX_SIZE wins"]
    assert value(settings(**env, LLAMA_EXTRA_ARGS="-c 3"), "ctx-size") == (3, "LLAMA_EXTRA_ARGS")


def test_metrics_and_slots_are_on_unless_the_operator_says_otherwise() -> None:
    assert [settings().value(name) for name in ("metrics", "slots")] == [True, True]
    dark = settings(LLAMA_EXTRA_ARGS="--no-slots")
    assert dark.value("slots") is False
    assert [str(remark) for remark in dark.remarks] == [
        "LLAMA_EXTRA_ARGS turns /slots off: specdash cannot show what it reads there"
    ]
    assert settings(LLAMA_ARG_NO_ENDPOINT_METRICS="1").value("metrics") is False


@pytest.mark.parametrize(
    ("chain", "flags"),
    [
        ("draft-simple", {"spec-draft-n-max": 9, "spec-draft-n-min": 2, "spec-draft-p-min": 0.5}),
        ("ngram-mod", {"spec-ngram-mod-n-max": 9, "spec-ngram-mod-n-min": 2}),
        ("ngram-simple", {"spec-ngram-simple-size-m": 9, "spec-ngram-simple-size-n": 9}),
        ("ngram-map-k4v", {"spec-ngram-map-k4v-size-m": 9}),
        ("ngram-cache", {}),
        (
            "draft,ngram_map_k",
            {"spec-draft-n-max": 9, "spec-draft-n-min": 2, "spec-draft-p-min": 0.5, "spec-ngram-map-k-size-m": 9},
        ),
    ],
)
def test_draft_knobs_reach_the_flag_that_the_spec_type_reads(chain: str, flags: dict[str, object]) -> None:
    knobs = {"LLAMA_DRAFT_MAX": "9", "LLAMA_DRAFT_MIN": "2", "LLAMA_DRAFT_P_MIN": "0.5"}
    config = settings_from_env({**DRAFT, **knobs, "LLAMA_SPEC_TYPE": chain})
    found = {n: a.value for n, a in config.parameters.items() if n.startswith("spec-") and n != "spec-draft-model"}
    assert found == flags


def test_eagle3_samples_off_the_device_where_slots_could_draft_at_once() -> None:
    eagle3 = {"LLAMA_DRAFT_MODEL": "d.gguf", "LLAMA_SPEC_TYPE": "draft-eagle3"}
    several = settings(**eagle3, LLAMA_PARALLEL="2")
    assert several.value("spec-draft-backend-sampling") is False
    assert several.parameters["spec-draft-backend-sampling"].source.startswith("default")
    assert several.remarks == ()
    assert "spec-draft-backend-sampling" not in settings(**eagle3).parameters
    assert "spec-draft-backend-sampling" not in settings(LLAMA_SPEC_TYPE="draft-mtp", LLAMA_PARALLEL="2").parameters
    wanted = settings(**eagle3, LLAMA_PARALLEL="2", LLAMA_EXTRA_ARGS="--spec-draft-backend-sampling")
    assert wanted.value("spec-draft-backend-sampling") is True


def test_ngram_simple_never_drafts_less_than_it_looks_up() -> None:
    """llama.cpp drops every draft of ngram-simple that is shorter than the n-gram it matched."""
    config = settings(LLAMA_SPEC_TYPE="ngram-simple", LLAMA_DRAFT_MAX="6")
    assert value(config, "spec-ngram-simple-size-n") == (6, "default 12, lowered to LLAMA_DRAFT_MAX")
    assert "spec-ngram-simple-size-n" not in settings(LLAMA_SPEC_TYPE="ngram-simple", LLAMA_DRAFT_MAX="12").parameters
    with pytest.raises(InputError, match="-size-n 7 in LLAMA_EXTRA_ARGS is above LLAMA_DRAFT_MAX=6: ngram-simple"):
        settings(LLAMA_SPEC_TYPE="ngram-simple", LLAMA_DRAFT_MAX="6", LLAMA_EXTRA_ARGS="--spec-ngram-simple-size-n 7")


def test_a_secret_is_in_no_argument_and_in_no_representation() -> None:
    for env in ({"LLAMA_API_KEY": "hush-hush"}, {"LLAMA_EXTRA_ARGS": "--api-key hush-hush --hf-token hush-hush"}):
        config = settings(**env)
        assert "hush-hush" not in repr(config) + " ".join(fit(config, BUILD)[0])
        assert config.secrets["api-key"] == "hush-hush"


@given(st.sampled_from(["0.0.0.0", "::", "127.0.0.1", "localhost"]), st.integers(1, 65535))
def test_the_url_is_one_a_client_on_this_machine_can_use(host: str, port: int) -> None:
    url = settings(LLAMA_HOST=host, LLAMA_PORT=str(port)).url
    assert url.endswith(f":{port}")
    assert "0.0.0.0" not in url
    assert not url.startswith("http://::")

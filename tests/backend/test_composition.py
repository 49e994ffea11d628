"""Whatever the env says, what is rendered cannot be wrong: one chain, no length of 0, no minimum above its maximum, no
draft that nobody reads. Or it is refused.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from specdash.backend import binary, embedded
from specdash.backend.settings import BackendSettings, SpecTypeChoice, settings_from_env
from specdash.core.errors import InputError
from specdash.core.parameter_catalogue import BY_FLAG, BY_NAME
from specdash.core.speculation import SPEC_TYPES, spec_type
from support.known_engines import BUILD

if TYPE_CHECKING:
    from collections.abc import Mapping

MODEL = {"LLAMA_MODEL": "m.gguf"}
NAMES = [spec_kind.name for spec_kind in SPEC_TYPES]
DRAFT_FLAGS = [*BY_NAME["spec-draft-model"].flags, *BY_NAME["spec-draft-hf"].flags]
LENGTHS = [
    name
    for spec_kind in SPEC_TYPES
    for name in (spec_kind.max_parameter, spec_kind.min_parameter, spec_kind.floor_parameter)
    if name is not None
]

chains = st.lists(st.sampled_from([*NAMES, "none", "draft", "mtp", "ngram_mod"]), min_size=1, max_size=3).map(",".join)
numbers = st.integers(0, 70).map(str)
arguments = st.lists(
    st.one_of(
        st.tuples(st.just("--spec-type"), chains),
        st.tuples(st.sampled_from(DRAFT_FLAGS), st.just("d.gguf")),
        st.tuples(st.sampled_from([f"--{name}" for name in LENGTHS]), numbers),
        st.just(("--spec-default",)),
    ),
    max_size=4,
).map(lambda words: shlex.join([word for pair in words for word in pair]))
envs = st.fixed_dictionaries(
    {},
    optional={
        "LLAMA_SPEC_TYPE": st.one_of(chains, st.just("auto")),
        "LLAMA_ARG_SPEC_TYPE": chains,
        "LLAMA_DRAFT_MODEL": st.just("d.gguf"),
        "LLAMA_ARG_SPEC_DRAFT_MODEL": st.just("d.gguf"),
        "LLAMA_ARG_SPEC_DRAFT_HF_REPO": st.just("who/what"),
        "LLAMA_DRAFT_MAX": numbers,
        "LLAMA_DRAFT_MIN": numbers,
        "LLAMA_ARG_SPEC_DRAFT_N_MAX": numbers,
        "LLAMA_ARG_SPEC_DRAFT_N_MIN": numbers,
        "LLAMA_EXTRA_ARGS": arguments,
    },
)


def _read(env: Mapping[str, str]) -> BackendSettings | None:
    choice = SpecTypeChoice(("ngram-mod",), "so the test says", uses_draft=False)
    try:
        return settings_from_env({**MODEL, **env}, choice)
    except InputError:
        return None


def _values(words: list[str]) -> dict[str, str]:
    """The value of every parameter on a command line, the last one winning; flags of older builds by their own name."""
    found: dict[str, str] = {}
    for flag, value in zip(words, [*words[1:], ""], strict=True):
        if flag.startswith("-"):
            found[BY_FLAG[flag][0].name if flag in BY_FLAG else flag] = value
    return found


@given(envs)
def test_what_is_rendered_has_one_chain_and_lengths_that_can_draft_for_both_engines(env: dict[str, str]) -> None:
    found = _read(env)
    if found is None:
        return
    words, lacks = binary.fit(found, BUILD)
    assert not lacks
    assert words.count("--spec-type") <= 1
    values = _values(words)
    types = [item for name in found.spec_types if (item := spec_type(name)) is not None]
    for kind in types:
        least = kind.min_parameter or kind.floor_parameter
        if kind.max_parameter is not None and least is not None:
            low, high = (int(values.get(name, str(BY_NAME[name].default))) for name in (least, kind.max_parameter))
            assert 0 <= low <= high, kind.name
            assert high > 0
    for length in ("spec-draft-n-max", "spec-ngram-mod-n-max", *(n for n in LENGTHS if "size-m" in n)):
        assert values.get(length, "1") != "0"
    if any(flag in words for flag in DRAFT_FLAGS):
        assert any(kind.reads_draft_model for kind in types)
    if any(kind.needs_draft_model for kind in types):
        assert any(flag in words for flag in DRAFT_FLAGS)
    assert "none" not in values.get("spec-type", "").split(",")
    assigned = {name: value for name, _, value in embedded.fit(found)[0]}
    assert tuple(assigned.get("spec-type", ())) == found.spec_types
    for name in LENGTHS:
        assert str(assigned.get(name, "")) == values.get(name, "")


def test_the_default_chain_is_spelled_out_and_joins_the_others() -> None:
    found = settings_from_env(
        {**MODEL, "LLAMA_DRAFT_MODEL": "d", "LLAMA_EXTRA_ARGS": "--spec-type draft --spec-default"}
    )
    assert found.spec_types == ("ngram-mod", "draft-simple")
    assert [found.value(f"spec-ngram-mod-n-{word}") for word in ("match", "min", "max")] == [24, 48, 64]

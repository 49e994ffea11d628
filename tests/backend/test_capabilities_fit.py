"""One configuration for every build: the names it knows, nothing it does not list, a word of what is left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.backend import binary, embedded
from specdash.backend.binary import Capabilities, MissingFeature, from_help, parse_help
from specdash.backend.capabilities import lacking, missing_values
from specdash.backend.engines import PACKAGE
from specdash.backend.settings import DEFAULT, BackendSettings, ParameterValue, canonical, settings_from_env
from specdash.core.parameter_catalogue import BY_NAME, ENGINE, SPECULATION
from specdash.core.parameters import Parameter, ValueKind
from specdash.core.speculation import SPEC_TYPES
from support.help_engine import BUILDS, TODAY, help_text

KNOWN = {build: from_help(build, parse_help(help_text(build))) for build in BUILDS}
MODEL = {"LLAMA_MODEL": "m.gguf"}
DRAFT = {**MODEL, "LLAMA_DRAFT_MODEL": "d.gguf"}


def rendered(build: str, **env: str) -> str:
    return " ".join(binary.arguments(settings_from_env({**MODEL, **env}), KNOWN[build]))


def lacks(build: str, **env: str) -> tuple[MissingFeature, ...]:
    return lacking(settings_from_env({**MODEL, **env}), KNOWN[build])


def refused(build: str, **env: str) -> list[str]:
    return [lack.line for lack in lacks(build, **env) if lack.refused]


@pytest.mark.parametrize(
    ("build", "speculation"),
    [
        ("2025-03", "-md d.gguf --draft-max 8 --draft-min 2 --draft-p-min 0.5"),
        ("2026-02", "-md d.gguf --draft-max 8 --draft-min 2 --draft-p-min 0.5"),
        (
            "2026-05",
            (
                "--spec-draft-model d.gguf --spec-draft-n-max 8 --spec-draft-n-min 2 --spec-draft-p-min 0.5 "
                "--spec-type draft"
            ),
        ),
        (
            TODAY,
            (
                "--spec-draft-model d.gguf --spec-draft-n-max 8 --spec-draft-n-min 2 --spec-draft-p-min 0.5 "
                "--spec-type draft-simple"
            ),
        ),
    ],
)
def test_a_draft_model_is_asked_for_in_the_names_of_the_build(build: str, speculation: str) -> None:
    env = {"LLAMA_DRAFT_MAX": "8", "LLAMA_DRAFT_MIN": "2", "LLAMA_DRAFT_P_MIN": "0.5"}
    found = rendered(build, LLAMA_DRAFT_MODEL="d.gguf", LLAMA_SPEC_TYPE="draft-simple", **env)
    assert found.endswith(speculation)
    assert refused(build, LLAMA_DRAFT_MODEL="d.gguf", LLAMA_SPEC_TYPE="draft-simple", **env) == []


def test_todays_build_lacks_nothing_of_the_catalogue() -> None:
    values = {p.name: ParameterValue(value=sample(p), source=p.key) for p in ENGINE}
    everything = BackendSettings(parameters=values, spec_types=tuple(t.name for t in SPEC_TYPES))
    fitted = binary.fit(everything, KNOWN[TODAY])
    assert fitted.lacks == []
    assert fitted.arguments == binary.arguments(everything)


@pytest.mark.parametrize(
    ("build", "chain", "expected"),
    [
        ("2026-02", "ngram-mod", "--draft-max 20 --spec-type ngram-mod"),
        ("2026-02", "ngram-map-k", "--spec-ngram-size-m 20 --draft-max 20 --spec-type ngram-map-k"),
        ("2026-02", "ngram-mod,draft-simple", "-md d.gguf --draft-max 20 --spec-type ngram-mod"),
        ("2026-05", "ngram-mod,draft-simple", "--spec-ngram-mod-n-min 20 --spec-type ngram-mod,draft"),
        ("2026-05", "draft-eagle3", "--spec-type eagle3"),
        ("2026-05", "draft-mtp", "--spec-type mtp"),
        (TODAY, "ngram-mod,draft-mtp", "--spec-ngram-mod-n-min 20 --spec-type ngram-mod,draft-mtp"),
    ],
)
def test_the_chain_and_the_knob_are_written_as_the_build_wants_them(build: str, chain: str, expected: str) -> None:
    found = rendered(build, LLAMA_DRAFT_MODEL="d.gguf", LLAMA_SPEC_TYPE=chain, LLAMA_DRAFT_MAX="20")
    assert found.endswith(expected)
    assert found.count("--spec-type") == 1
    assert refused(build, LLAMA_DRAFT_MODEL="d.gguf", LLAMA_SPEC_TYPE=chain, LLAMA_DRAFT_MAX="20") == []


def test_a_default_that_had_to_be_lowered_is_lowered_in_older_builds_where_theirs_is_above_it() -> None:
    found = rendered("2026-02", LLAMA_SPEC_TYPE="ngram-simple", LLAMA_DRAFT_MAX="6")
    assert found.endswith("--spec-ngram-size-n 6 --spec-ngram-size-m 6 --draft-max 6 --spec-type ngram-simple")
    assert "--draft-min" not in rendered("2026-02", LLAMA_SPEC_TYPE="ngram-mod", LLAMA_DRAFT_MAX="6")


@pytest.mark.parametrize(
    ("build", "env", "line"),
    [
        (
            "2025-03",
            {"LLAMA_SPEC_TYPE": "ngram-mod"},
            (
                "LLAMA_SPEC_TYPE=ngram-mod: llama-server 2025-03 has no spec type ngram-mod; "
                "it knows a draft model alone (draft-simple); use a newer llama.cpp"
            ),
        ),
        (
            "2026-05",
            {"LLAMA_SPEC_TYPE": "draft-dflash", "LLAMA_DRAFT_MODEL": "d.gguf"},
            (
                "LLAMA_SPEC_TYPE=draft-dflash: llama-server 2026-05 has no spec type draft-dflash; it knows draft, "
                "eagle3, mtp, ngram-simple, ngram-map-k, ngram-map-k4v, ngram-mod, ngram-cache; use a newer llama.cpp"
            ),
        ),
        (
            "2026-02",
            {"LLAMA_EXTRA_ARGS": "--spec-type ngram-mod,ngram-cache"},
            (
                "LLAMA_EXTRA_ARGS --spec-type ngram-mod,ngram-cache: llama-server 2026-02 takes one type; "
                "name one of: ngram-mod, ngram-cache, or use a newer llama.cpp"
            ),
        ),
        (
            "2026-02",
            {"LLAMA_ARG_SPEC_DRAFT_SAMPLING": "greedy"},
            (
                "LLAMA_ARG_SPEC_DRAFT_SAMPLING=greedy: llama-server 2026-02 has no --spec-draft-sampling; "
                "remove it, or use a newer llama.cpp"
            ),
        ),
        (
            "2026-02",
            {"LLAMA_EXTRA_ARGS": "--spec-draft-n-max 4 --spec-ngram-mod-n-max 9"},
            (
                "LLAMA_EXTRA_ARGS --spec-ngram-mod-n-max 9 and LLAMA_EXTRA_ARGS --spec-draft-n-max 4: "
                "llama-server 2026-02 has one --draft-max for both; give both the same value"
            ),
        ),
        (
            "2026-02",
            {"LLAMA_EXTRA_ARGS": "--load-mode mmap"},
            (
                "LLAMA_EXTRA_ARGS --load-mode mmap: llama-server 2026-02 has no --load-mode; "
                "remove it, or use a newer llama.cpp"
            ),
        ),
        (
            "2026-02",
            {"LLAMA_EXTRA_ARGS": "--n-cpu-ffn 3"},
            "LLAMA_EXTRA_ARGS: llama-server 2026-02 has no --n-cpu-ffn; remove it, or use a newer llama.cpp",
        ),
        (
            TODAY,
            {"LLAMA_EXTRA_ARGS": "--spec-defaults"},
            f"LLAMA_EXTRA_ARGS: llama-server {TODAY} has no --spec-defaults; did you mean --spec-default?",
        ),
        (
            TODAY,
            {"LLAMA_EXTRA_ARGS": "--cpu-moe=1"},
            f"LLAMA_EXTRA_ARGS: llama-server {TODAY} has no --cpu-moe=1; write '--cpu-moe 1'",
        ),
        (
            TODAY,
            {"LLAMA_EXTRA_ARGS": "--cpu-moe yes"},
            f"LLAMA_EXTRA_ARGS: 'yes' belongs to no argument that llama-server {TODAY} knows; remove it",
        ),
    ],
)
def test_what_a_build_cannot_do_is_refused_with_the_way_out(build: str, env: dict[str, str], line: str) -> None:
    assert refused(build, **env) == [line]


def test_a_removed_argument_is_refused_with_what_the_build_says_instead() -> None:
    gone = replace(
        KNOWN[TODAY],
        flags=KNOWN[TODAY].flags - {"--path"},
        removed=frozenset({"--path"}),
        texts={"--path": "the argument has been removed. use --root instead (env: LLAMA_ARG_X)"},
    )
    (lack,) = lacking(settings_from_env({**MODEL, "LLAMA_EXTRA_ARGS": "--path /srv"}), gone)
    assert (lack.refused, lack.key, lack.name) == (True, "LLAMA_EXTRA_ARGS", "--path")
    assert lack.line == f"LLAMA_EXTRA_ARGS: llama-server {TODAY} removed --path; use --root instead"


def test_other_parameters_are_left_out_with_a_warning() -> None:
    env = {"LLAMA_ARG_CACHE_RAM": "100", "LLAMA_ARG_TOP_K": "7"}
    (lack,) = lacks("2025-03", **env)
    assert (lack.refused, lack.key) == (False, "LLAMA_ARG_CACHE_RAM")
    assert lack.message == "LLAMA_ARG_CACHE_RAM=100 is left out: llama-server 2025-03 has no --cache-ram"
    found = rendered("2025-03", **env)
    assert "--cache-ram" not in found
    assert "--top-k 7" in found


def test_a_variable_the_build_does_not_read_is_warned_about() -> None:
    assert [lack.message for lack in lacks("2025-03", LLAMA_ARG_N_CPU_FFN="3")] == [
        "LLAMA_ARG_N_CPU_FFN has no effect: llama-server 2025-03 does not read it"
    ]
    assert lacks("2025-03", LLAMA_ARG_RERANKING="1") == ()


def test_a_default_that_nobody_asked_for_is_left_out_without_a_word() -> None:
    assert "--log-verbosity" not in rendered("2025-03"), "there 3 is more than debug"
    assert "--log-verbosity 3" in rendered("2025-03", LLAMA_LOG_VERBOSITY="3")
    assert "--log-verbosity 3" in rendered("2026-02")
    assert lacks("2025-03") == ()


def test_a_panel_that_will_stay_dark_is_said() -> None:
    without = replace(KNOWN[TODAY], flags=KNOWN[TODAY].flags - {"--metrics"})
    (lack,) = lacking(settings_from_env(MODEL), without)
    assert (lack.refused, lack.key) == (False, "LLAMA_ARG_ENDPOINT_METRICS")
    assert "has no --metrics: specdash cannot show what it reads there" in lack.message


@pytest.mark.parametrize(
    ("build", "env", "expected"),
    [
        ("2025-03", {"LLAMA_ARG_FLASH_ATTN": "on"}, "--flash-attn"),
        (TODAY, {"LLAMA_ARG_FLASH_ATTN": "on"}, "--flash-attn on"),
        ("2025-03", {"LLAMA_GPU_LAYERS": "all"}, "--gpu-layers 999"),
        ("2025-03", {"LLAMA_GPU_LAYERS": "20"}, "--gpu-layers 20"),
        ("2026-02", {"LLAMA_GPU_LAYERS": "all"}, "--gpu-layers all"),
    ],
)
def test_a_value_is_written_as_the_build_reads_it(build: str, env: dict[str, str], expected: str) -> None:
    words = rendered(build, **env).split()
    first = expected.split()
    at = words.index(first[0])
    assert words[at : at + len(first)] == first
    assert words[at + len(first)].startswith("--")


def test_a_word_that_the_build_does_not_know_is_left_out_with_a_warning() -> None:
    (lack,) = lacks("2025-03", LLAMA_GPU_LAYERS="auto")
    assert lack.message == "LLAMA_GPU_LAYERS=auto is left out: llama-server 2025-03 has no --gpu-layers auto"
    (lack,) = lacks("2025-03", LLAMA_ARG_FLASH_ATTN="auto")
    assert "has no --flash-attn auto" in lack.message


def test_a_switch_with_a_flag_for_the_opposite_alone_is_as_wanted_already() -> None:
    env = {"LLAMA_ARG_UI": "1", "LLAMA_ARG_JINJA": "0", "LLAMA_ARG_KV_OFFLOAD": "1"}
    assert lacks("2025-03", **env) == ()
    assert not {"--ui", "--no-webui", "--jinja", "--no-kv-offload"} & set(rendered("2025-03", **env).split())
    assert "--no-webui" in rendered("2025-03", LLAMA_ARG_UI="0").split()


@pytest.mark.parametrize("flag", ["--api-key", "--api-key-file", "--host", "--port", "--model"])
def test_what_would_make_it_another_server_is_refused_even_when_it_is_no_speculation(flag: str) -> None:
    without = replace(KNOWN[TODAY], flags=KNOWN[TODAY].flags - set(BY_NAME[flag.lstrip("-")].flags))
    env = {**MODEL, "LLAMA_API_KEY": "hush", "LLAMA_API_KEY_FILE": "/keys"}
    (lack,) = lacking(settings_from_env(env), without)
    assert lack.refused
    assert "hush" not in lack.line


def test_values_of_extra_args_stay_with_their_argument() -> None:
    found = rendered(TODAY, LLAMA_EXTRA_ARGS="--control-vector-layer-range 1 -2 --seed 3 --logit-bias -7-1 --no-perf")
    assert found.endswith("--seed 3 --control-vector-layer-range 1 -2 --logit-bias -7-1 --no-perf")


def test_flags_of_extra_args_may_be_spelled_with_underscores() -> None:
    assert rendered(TODAY, LLAMA_EXTRA_ARGS="--no_perf").endswith("--no_perf")


@pytest.mark.parametrize("build", BUILDS)
def test_ordinary_flags_about_speculation_need_nothing_special(build: str) -> None:
    lines = refused(build, LLAMA_EXTRA_ARGS="--spec-synth-len 2")
    assert len(lines) == (0 if build == TODAY else 1)


@pytest.mark.parametrize(("build", "longest"), [("2026-02", "--draft-max"), (TODAY, "--spec-ngram-mod-n-max")])
def test_the_default_speculation_is_spelled_out_in_the_names_of_the_build(build: str, longest: str) -> None:
    found = rendered(build, LLAMA_EXTRA_ARGS="--spec-default")
    assert f"{longest} 64" in found
    assert "--spec-type ngram-mod" in found
    assert "--spec-default" not in found


@pytest.mark.parametrize(
    ("build", "key", "missing"),
    [
        ("2026-05", "LLAMA_SPEC_TYPE", ["draft-dflash", "draft-dspark"]),
        ("2026-02", "LLAMA_SPEC_TYPE", ["draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark"]),
        ("2026-05", "LLAMA_SPLIT_MODE", ["tensor"]),
        ("2026-05", "LLAMA_CACHE_TYPE_K", []),
        ("2026-05", "LLAMA_LOG_VERBOSITY", []),
        ("2026-05", "LLAMA_ARG_SPEC_DRAFT_SAMPLING", ["greedy", "probabilistic"]),
        (TODAY, "LLAMA_SPEC_TYPE", []),
        (TODAY, "LLAMA_SPLIT_MODE", []),
    ],
)
def test_the_listed_values_that_a_build_has_not_are_known_before_a_start(
    build: str, key: str, missing: list[str]
) -> None:
    assert sorted(missing_values(key, MODEL, KNOWN[build])) == sorted(missing)


def sample(parameter: Parameter) -> Any:
    """A value the parameter may have."""
    if parameter.kind is ValueKind.SWITCH:
        return True
    if parameter.choices:
        return next(iter(parameter.choices))
    if parameter.kind is ValueKind.INTEGER:
        return int(parameter.minimum or 0) + 1
    return 0.5 if parameter.kind is ValueKind.NUMBER else "text"


FLAGS = sorted(frozenset().union(*(capabilities.flags for capabilities in KNOWN.values())))
SOURCES = (DEFAULT, "LLAMA_EXTRA_ARGS", "LLAMA_DRAFT_MAX", "LLAMA_ARG_X")
REST = (
    "--spec-default",
    "--no-perf",
    "--numa",
    "isolate",
    "--draft-max",
    "5",
    "-1",
    "--nonsense",
    "stray",
    "-ot",
    "a=b",
)


@st.composite
def any_settings(draw: st.DrawFn) -> BackendSettings:
    chosen = draw(st.lists(st.sampled_from(ENGINE), unique_by=lambda parameter: parameter.name))
    return BackendSettings(
        parameters={
            parameter.name: ParameterValue(
                value=draw(st.booleans()) if parameter.kind is ValueKind.SWITCH else sample(parameter),
                source=draw(st.sampled_from(SOURCES)),
            )
            for parameter in chosen
        },
        spec_types=tuple(draw(st.lists(st.sampled_from([spec_kind.name for spec_kind in SPEC_TYPES]), unique=True))),
        spec_source=draw(st.sampled_from(["LLAMA_SPEC_TYPE", "LLAMA_EXTRA_ARGS"])),
        extra_args=tuple(draw(st.lists(st.sampled_from(REST), max_size=6))),
    )


@st.composite
def any_capabilities(draw: st.DrawFn) -> Capabilities:
    base = KNOWN[draw(st.sampled_from(BUILDS))]
    if draw(st.booleans()):
        return replace(base, flags=base.flags - draw(st.frozensets(st.sampled_from(sorted(base.flags)))))
    return replace(base, flags=draw(st.frozensets(st.sampled_from(FLAGS))), chained=draw(st.booleans()))


def flags_of(arguments: list[str], known: Capabilities) -> list[str]:
    """The words in the place of a flag."""
    found, at = [], 0
    while at < len(arguments):
        flag = arguments[at]
        # A word that is no flag is what the operator wrote behind a flag of fewer values than the words that follow it.
        if flag.startswith("-"):
            found.append(flag)
        at += 1 + known.values.get(canonical(flag), 1)
    return found


@given(any_settings(), any_capabilities())
def test_no_flag_is_rendered_that_the_build_does_not_list(config: BackendSettings, known: Capabilities) -> None:
    fitted = binary.fit(config, known)
    flags = flags_of(fitted.arguments, known)
    assert {canonical(flag) for flag in flags} <= known.flags
    assert flags.count("--spec-type") <= 1
    assert not any("\n" in lack.line for lack in fitted.lacks)


@pytest.mark.parametrize("parameter", ENGINE, ids=lambda item: item.name)
@pytest.mark.parametrize("build", BUILDS)
def test_every_parameter_is_rendered_or_named_as_lacking(parameter: Parameter, build: str) -> None:
    config = BackendSettings(parameters={parameter.name: ParameterValue(value=sample(parameter), source=parameter.key)})
    fitted = binary.fit(config, KNOWN[build])
    known = {*parameter.flags, *parameter.former_flags}
    said = [lack.name for lack in fitted.lacks]
    already = parameter.kind is ValueKind.SWITCH and KNOWN[build].first(parameter.off_flags) is not None
    assert bool(known & set(fitted.arguments)) or said == [parameter.name] or already
    if said and parameter in SPECULATION:
        assert fitted.lacks[0].refused


@given(any_settings(), st.data())
def test_no_attribute_is_set_that_the_package_has_not(config: BackendSettings, data: st.DataObject) -> None:
    every = sorted(
        {parameter.attribute for parameter in ENGINE if parameter.attribute is not None} | {"speculative.types"}
    )
    paths = data.draw(st.frozensets(st.sampled_from(every)))
    known = Capabilities(PACKAGE, "1", paths, spec_types=("draft", "ngram-mod"))
    expanded = {"kv_unified", "timeout_write"}
    assert {assignment.path for assignment in embedded.assignments(config, known)} <= paths | expanded
    for feature in lacking(config, known):
        assert feature.message


def test_an_older_package_gets_its_own_names_of_spec_types() -> None:
    paths = frozenset(
        {parameter.attribute for parameter in ENGINE if parameter.attribute is not None} | {"speculative.types"}
    )
    old = Capabilities(PACKAGE, "1", paths, spec_types=("draft", "ngram-mod"))
    config = settings_from_env({**DRAFT, "LLAMA_SPEC_TYPE": "draft-simple,ngram-mod"})
    (types,) = [assignment.value for assignment in embedded.assignments(config, old) if assignment.name == "spec-type"]
    assert types == ["ngram-mod", "draft"]
    (lack,) = lacking(settings_from_env({**MODEL, "LLAMA_SPEC_TYPE": "ngram-cache"}), old)
    assert (lack.refused, lack.key, lack.name) == (True, "LLAMA_SPEC_TYPE", "ngram-cache")


def test_what_only_llama_server_has_is_refused_by_the_package_when_it_is_about_speculation() -> None:
    (lack,) = embedded.fit(settings_from_env({**MODEL, "LLAMA_EXTRA_ARGS": "--spec-draft-cpu-mask ff"})).lacks
    assert lack.refused
    assert lack.line.startswith(
        "LLAMA_EXTRA_ARGS --spec-draft-cpu-mask ff: xllamacpp has no such parameter; remove it, or set LLAMA_BIN"
    )

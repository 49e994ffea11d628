"""One configuration for every build: the names it knows, nothing it does not list, a word of what is left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.backend import binary, embedded
from specdash.backend.binary import Capabilities, from_help, parse_help
from specdash.backend.capabilities import lacking, missing_values
from specdash.backend.engines import PACKAGE
from specdash.backend.settings import DEFAULT, BackendSettings, ParameterValue, canonical, settings_from_env
from specdash.core.errors import Finding
from specdash.core.parameter_catalogue import BY_NAME, ENGINE, SPECULATION
from specdash.core.parameters import Parameter, ValueKind
from specdash.core.speculation import SPEC_TYPES
from support.help_engine import OLD, TODAY, help_text

KNOWN = {build: from_help(build, parse_help(help_text(build))) for build in (OLD, TODAY)}
LESS = replace(
    KNOWN[TODAY],
    version="less",
    flags=KNOWN[TODAY].flags - {"--spec-draft-sampling", "--load-mode", "-lm", "--cache-ram", "-cram", "--n-cpu-ffn"},
    spec_types=tuple(name for name in KNOWN[TODAY].spec_types if name not in ("draft-dflash", "draft-dspark")),
    variables=KNOWN[TODAY].variables - {"LLAMA_ARG_N_CPU_FFN"},
)
"""A build that lacks a few things, and has today's flags otherwise."""
KNOWN["less"] = LESS
BUILDS = (TODAY, "less")
MODEL = {"LLAMA_MODEL": "m.gguf"}
DRAFT = {**MODEL, "LLAMA_DRAFT_MODEL": "d.gguf"}


def rendered(build: str, **env: str) -> str:
    return " ".join(binary.arguments(settings_from_env({**MODEL, **env}), KNOWN[build]))


def lacks(build: str, **env: str) -> tuple[Finding, ...]:
    return lacking(settings_from_env({**MODEL, **env}), KNOWN[build])


def refused(build: str, **env: str) -> list[str]:
    return [lack.line for lack in lacks(build, **env) if lack.severity == "error"]


def test_a_draft_model_is_asked_for_by_todays_flags() -> None:
    env = {"LLAMA_DRAFT_MAX": "8", "LLAMA_DRAFT_MIN": "2", "LLAMA_DRAFT_P_MIN": "0.5"}
    found = rendered(TODAY, LLAMA_DRAFT_MODEL="d.gguf", LLAMA_SPEC_TYPE="draft-simple", **env)
    assert found.endswith(
        "--spec-draft-model d.gguf --spec-draft-n-max 8 --spec-draft-n-min 2 --spec-draft-p-min 0.5 "
        "--spec-type draft-simple"
    )


def test_a_build_from_before_todays_flags_is_refused_in_one_sentence_and_gets_no_arguments() -> None:
    (line,) = refused(OLD, LLAMA_SPEC_TYPE="ngram-mod", LLAMA_EXTRA_ARGS="--nonsense")
    assert line == (
        f"LLAMA_BIN: llama-server {OLD} has no --spec-type draft-simple: specdash runs builds with today's flags, and "
        "watches others; use a newer llama.cpp"
    )
    assert rendered(OLD) == ""
    for flag in ("--spec-type", "--spec-draft-n-max"):
        before = replace(KNOWN[TODAY], flags=KNOWN[TODAY].flags - {flag})
        assert [f"has no {flag}:" in lack.message for lack in lacking(settings_from_env(MODEL), before)] == [True]


def test_todays_build_lacks_nothing_of_the_catalogue() -> None:
    values = {p.name: ParameterValue(value=sample(p), source=p.key) for p in ENGINE}
    everything = BackendSettings(parameters=values, spec_types=tuple(t.name for t in SPEC_TYPES))
    fitted = binary.fit(everything, KNOWN[TODAY])
    assert fitted.lacks == []
    assert fitted.arguments == binary.arguments(everything)


def test_the_chain_and_the_knob_are_one_flag_each() -> None:
    found = rendered(TODAY, LLAMA_DRAFT_MODEL="d.gguf", LLAMA_SPEC_TYPE="ngram-mod,draft-mtp", LLAMA_DRAFT_MAX="20")
    assert found.endswith("--spec-ngram-mod-n-min 20 --spec-type ngram-mod,draft-mtp")
    assert found.count("--spec-type") == 1


@pytest.mark.parametrize(
    ("build", "env", "line"),
    [
        (
            "less",
            {"LLAMA_SPEC_TYPE": "draft-dflash", "LLAMA_DRAFT_MODEL": "d.gguf"},
            (
                "LLAMA_SPEC_TYPE=draft-dflash: llama-server less has no spec type draft-dflash; it knows "
                f"{', '.join(LESS.spec_types)}; use a newer llama.cpp"
            ),
        ),
        (
            "less",
            {"LLAMA_ARG_SPEC_DRAFT_SAMPLING": "greedy"},
            (
                "LLAMA_ARG_SPEC_DRAFT_SAMPLING=greedy: llama-server less has no --spec-draft-sampling; "
                "remove it, or use a newer llama.cpp"
            ),
        ),
        (
            "less",
            {"LLAMA_EXTRA_ARGS": "--load-mode mmap"},
            (
                "LLAMA_EXTRA_ARGS --load-mode mmap: llama-server less has no --load-mode; "
                "remove it, or use a newer llama.cpp"
            ),
        ),
        (
            "less",
            {"LLAMA_EXTRA_ARGS": "--n-cpu-ffn 3"},
            "LLAMA_EXTRA_ARGS: llama-server less has no --n-cpu-ffn; remove it, or use a newer llama.cpp",
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
    assert (lack.severity, lack.key) == ("error", "LLAMA_EXTRA_ARGS")
    assert lack.line == f"LLAMA_EXTRA_ARGS: llama-server {TODAY} removed --path; use --root instead"


def test_other_parameters_are_left_out_with_a_warning() -> None:
    env = {"LLAMA_ARG_CACHE_RAM": "100", "LLAMA_ARG_TOP_K": "7"}
    (lack,) = lacks("less", **env)
    assert (lack.severity, lack.key) == ("warning", "LLAMA_ARG_CACHE_RAM")
    assert lack.message == "LLAMA_ARG_CACHE_RAM=100 is left out: llama-server less has no --cache-ram"
    found = rendered("less", **env)
    assert "--cache-ram" not in found
    assert "--top-k 7" in found


def test_a_variable_the_build_does_not_read_is_warned_about() -> None:
    assert [lack.message for lack in lacks("less", LLAMA_ARG_N_CPU_FFN="3")] == [
        "LLAMA_ARG_N_CPU_FFN has no effect: llama-server less does not read it"
    ]
    assert lacks("less", LLAMA_ARG_RERANKING="1") == ()


def test_a_panel_that_will_stay_dark_is_said() -> None:
    without = replace(KNOWN[TODAY], flags=KNOWN[TODAY].flags - {"--metrics"})
    (lack,) = lacking(settings_from_env(MODEL), without)
    assert (lack.severity, lack.key) == ("warning", "LLAMA_ARG_ENDPOINT_METRICS")
    assert "has no --metrics: specdash cannot show what it reads there" in lack.message


@pytest.mark.parametrize(
    ("env", "expected"),
    [({"LLAMA_ARG_FLASH_ATTN": "on"}, "--flash-attn on"), ({"LLAMA_GPU_LAYERS": "all"}, "--gpu-layers all")],
)
def test_a_value_follows_its_flag(env: dict[str, str], expected: str) -> None:
    assert f"{expected} --" in rendered(TODAY, **env)


def test_a_switch_with_a_flag_for_the_opposite_alone_is_as_wanted_already() -> None:
    build = replace(KNOWN[TODAY], flags=KNOWN[TODAY].flags - set(BY_NAME["jinja"].off_flags) - {"--ui", "--webui"})
    assert lacking(settings_from_env({**MODEL, "LLAMA_ARG_UI": "1"}), build) == ()
    off = settings_from_env({**MODEL, "LLAMA_ARG_UI": "0"})
    assert "--no-ui" in binary.arguments(off, build)


@pytest.mark.parametrize("flag", ["--api-key", "--api-key-file", "--host", "--port", "--model"])
def test_what_would_make_it_another_server_is_refused_even_when_it_is_no_speculation(flag: str) -> None:
    without = replace(KNOWN[TODAY], flags=KNOWN[TODAY].flags - set(BY_NAME[flag.lstrip("-")].flags))
    env = {**MODEL, "LLAMA_API_KEY": "hush", "LLAMA_API_KEY_FILE": "/keys"}
    (lack,) = lacking(settings_from_env(env), without)
    assert lack.severity == "error"
    assert "hush" not in lack.line


def test_values_of_extra_args_stay_with_their_argument() -> None:
    found = rendered(TODAY, LLAMA_EXTRA_ARGS="--control-vector-layer-range 1 -2 --seed 3 --logit-bias -7-1 --no-perf")
    assert found.endswith("--seed 3 --control-vector-layer-range 1 -2 --logit-bias -7-1 --no-perf")


def test_flags_of_extra_args_may_be_spelled_with_underscores() -> None:
    assert rendered(TODAY, LLAMA_EXTRA_ARGS="--no_perf").endswith("--no_perf")


def test_ordinary_flags_about_speculation_need_nothing_special() -> None:
    assert refused(TODAY, LLAMA_EXTRA_ARGS="--spec-synth-len 2") == []


def test_the_default_speculation_is_spelled_out() -> None:
    found = rendered(TODAY, LLAMA_EXTRA_ARGS="--spec-default")
    assert "--spec-ngram-mod-n-max 64" in found
    assert "--spec-type ngram-mod" in found
    assert "--spec-default" not in found


@pytest.mark.parametrize(
    ("build", "key", "missing"),
    [
        ("less", "LLAMA_SPEC_TYPE", ["draft-dflash", "draft-dspark"]),
        ("less", "LLAMA_ARG_SPEC_DRAFT_SAMPLING", ["greedy", "probabilistic"]),
        ("less", "LLAMA_CACHE_TYPE_K", []),
        ("less", "LLAMA_LOG_VERBOSITY", []),
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
    return replace(base, flags=draw(st.frozensets(st.sampled_from(FLAGS))))


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
    known = set(parameter.flags)
    said = [lack.key for lack in fitted.lacks]
    already = parameter.kind is ValueKind.SWITCH and KNOWN[build].first(parameter.off_flags) is not None
    assert bool(known & set(fitted.arguments)) or said == [parameter.key] or already
    if said and parameter in SPECULATION:
        assert fitted.lacks[0].severity == "error"


@given(any_settings(), st.data())
def test_no_attribute_is_set_that_the_package_has_not(config: BackendSettings, data: st.DataObject) -> None:
    every = sorted(
        {parameter.attribute for parameter in ENGINE if parameter.attribute is not None} | {"speculative.types"}
    )
    paths = data.draw(st.frozensets(st.sampled_from(every)))
    known = Capabilities(PACKAGE, "1", paths, spec_types=("draft-simple", "ngram-mod"))
    expanded = {"kv_unified", "timeout_write"}
    assert {assignment.path for assignment in embedded.assignments(config, known)} <= paths | expanded
    for feature in lacking(config, known):
        assert feature.message


def test_a_spec_type_that_the_package_lacks_is_refused() -> None:
    paths = frozenset(
        {parameter.attribute for parameter in ENGINE if parameter.attribute is not None} | {"speculative.types"}
    )
    less = Capabilities(PACKAGE, "1", paths, spec_types=("draft-simple", "ngram-mod"))
    config = settings_from_env({**DRAFT, "LLAMA_SPEC_TYPE": "draft-simple,ngram-mod"})
    (types,) = [assignment.value for assignment in embedded.assignments(config, less) if assignment.name == "spec-type"]
    assert types == ["ngram-mod", "draft-simple"]
    (lack,) = lacking(settings_from_env({**MODEL, "LLAMA_SPEC_TYPE": "ngram-cache"}), less)
    assert (lack.severity, lack.key) == ("error", "LLAMA_SPEC_TYPE")
    assert "has no spec type ngram-cache" in lack.message


def test_what_only_llama_server_has_is_refused_by_the_package_when_it_is_about_speculation() -> None:
    (lack,) = embedded.fit(settings_from_env({**MODEL, "LLAMA_EXTRA_ARGS": "--spec-draft-cpu-mask ff"})).lacks
    assert lack.severity == "error"
    assert lack.line.startswith(
        "LLAMA_EXTRA_ARGS --spec-draft-cpu-mask ff: xllamacpp has no such parameter; remove it, or set LLAMA_BIN"
    )

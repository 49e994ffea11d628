"""One configuration for every build, rendered twice: a command line of llama-server and assignments to xllamacpp's
CommonParams; the names that it knows, nothing that it does not list, and a word of what is left out."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from specdash.backend import binary, embedded
from specdash.backend.binary import Engine
from specdash.backend.engines import lacking
from specdash.backend.settings import BackendSettings, ParameterValue, settings_from_env
from specdash.core.parameter_catalogue import BY_NAME, ENGINE
from specdash.core.parameters import Parameter, ValueKind
from specdash.core.speculation import SPEC_TYPES
from support.help_engine import OLD
from support.known_engines import BUILD, KNOWN, WHEEL, without

LESS = replace(
    without("--spec-draft-sampling", "--load-mode", "-lm", "--cache-ram", "-cram", "--n-cpu-ffn"),
    spec_types=tuple(name for name in BUILD.spec_types if name not in ("draft-dflash", "draft-dspark")),
    variables=BUILD.variables - {"LLAMA_ARG_N_CPU_FFN"},
)
"""A build that lacks a few things, and has today's flags otherwise."""
MODEL = {"LLAMA_MODEL": "m.gguf"}


def settings(**env: str) -> BackendSettings:
    return settings_from_env({**MODEL, **env})


def rendered(**env: str) -> str:
    return " ".join(binary.fit(settings(**env), BUILD)[0])


def lines(can: Engine, severity: str, **env: str) -> list[str]:
    return [lack.line for lack in lacking(settings(**env), can) if lack.severity == severity]


def assigned(**env: str) -> dict[str, Any]:
    return {path: value for _, path, value in embedded.fit(settings(**env))[0]}


def test_both_renderings_say_the_same() -> None:
    env = {
        "LLAMA_DRAFT_MODEL": "d.gguf",
        "LLAMA_SPEC_TYPE": "draft-simple,ngram-mod",
        "LLAMA_DRAFT_MAX": "8",
        "LLAMA_CTX_SIZE": "4096",
        "LLAMA_GPU_LAYERS": "all",
        "LLAMA_ARG_KV_OFFLOAD": "0",
        "LLAMA_ARG_CACHE_TYPE_K": "q8_0",
    }
    args, attributes = binary.fit(settings(**env), BUILD)[0], assigned(**env)
    for flag, path, text, value in [
        ("--model", "model.path", "m.gguf", "m.gguf"),
        ("--ctx-size", "n_ctx", "4096", 4096),
        ("--gpu-layers", "n_gpu_layers", "all", -2),
        ("--spec-draft-n-max", "speculative.draft.n_max", "8", 8),
        ("--spec-ngram-mod-n-max", "speculative.ngram_mod.n_max", "8", 8),
        ("--cache-type-k", "cache_type_k", "q8_0", "q8_0"),
        ("--spec-type", "speculative.types", "ngram-mod,draft-simple", ["ngram-mod", "draft-simple"]),
    ]:
        assert args[args.index(flag) + 1] == text
        assert attributes[path] == value
    assert args.count("--spec-type") == 1
    assert {"--no-kv-offload", "--metrics"} <= set(args)
    assert (attributes["no_kv_offload"], attributes["endpoint_metrics"]) == (True, True)


@pytest.mark.parametrize(
    ("extra", "ends"),
    [
        ("--numa isolate --ctx-size 99 --no-perf", "--ctx-size 99 --numa isolate --no-perf"),
        (
            "--control-vector-layer-range 1 -2 --seed 3 --logit-bias -7-1 --no-perf",
            "--seed 3 --control-vector-layer-range 1 -2 --logit-bias -7-1 --no-perf",
        ),
        ("--no_perf", "--no_perf"),
    ],
)
def test_extra_args_come_last_with_their_values_and_unknown_ones_keep_their_order(extra: str, ends: str) -> None:
    assert rendered(LLAMA_EXTRA_ARGS=extra).endswith(ends)


def test_a_build_from_before_todays_flags_is_refused_in_one_sentence_and_gets_no_arguments() -> None:
    env = {"LLAMA_SPEC_TYPE": "ngram-mod", "LLAMA_EXTRA_ARGS": "--nonsense"}
    assert lines(KNOWN[OLD], "error", **env) == [
        (
            f"LLAMA_BIN: llama-server {OLD} has no --spec-type draft-simple: specdash runs builds with today's flags, "
            "and watches others; use a newer llama.cpp"
        )
    ]
    assert binary.fit(settings(), KNOWN[OLD])[0] == []
    for flag in ("--spec-type", "--spec-draft-n-max"):
        assert f"has no {flag}:" in lines(without(flag), "error")[0]


@pytest.mark.parametrize("build", [BUILD, LESS], ids=["today's", "less"])
def test_todays_build_lacks_nothing_of_the_catalogue_and_no_other_gets_what_it_does_not_list(build: Engine) -> None:
    values = {p.name: ParameterValue(value=sample(p), source=p.key) for p in ENGINE}
    everything = BackendSettings(parameters=values, spec_types=tuple(t.name for t in SPEC_TYPES))
    words, lacks = binary.fit(everything, build)
    assert {word for word in words if word.startswith("--")} <= build.flags
    assert bool(lacks) is (build is LESS)


WITHOUT_PATH = replace(
    without("--path"),
    removed=frozenset({"--path"}),
    texts={"--path": "the argument has been removed. use --root (env: X)"},
)
DFLASH = {"LLAMA_SPEC_TYPE": "draft-dflash", "LLAMA_DRAFT_MODEL": "d.gguf"}


@pytest.mark.parametrize(
    ("engine", "env", "severity", "line"),
    [
        (
            LESS,
            DFLASH,
            "error",
            "LLAMA_SPEC_TYPE=draft-dflash: llama-server less has no spec type draft-dflash; it knows",
        ),
        (BUILD, {"LLAMA_EXTRA_ARGS": "--spec-defaults"}, "error", "no --spec-defaults; remove it, or use a newer"),
        (WITHOUT_PATH, {"LLAMA_EXTRA_ARGS": "--path /srv"}, "error", "llama-server less removed --path; use --root"),
        (WHEEL, {"LLAMA_EXTRA_ARGS": "--grp-attn-n 4"}, "error", "no parameter for '--grp-attn-n'; remove it, or set"),
        (WHEEL, {"LLAMA_DEVICE": "CUDA1"}, "error", "no such parameter; remove it, or set LLAMA_BIN"),
        (
            LESS,
            {"LLAMA_ARG_CACHE_RAM": "100"},
            "warning",
            "LLAMA_ARG_CACHE_RAM=100 is left out: llama-server less has no",
        ),
        (
            LESS,
            {"LLAMA_ARG_N_CPU_FFN": "3"},
            "warning",
            "LLAMA_ARG_N_CPU_FFN has no effect: llama-server less does not",
        ),
        (without("--metrics"), {}, "warning", "has no --metrics: specdash cannot show what it reads there"),
        (WHEEL, {"LLAMA_ARG_RPC": "h:1"}, "warning", "LLAMA_ARG_RPC has no effect: xllamacpp does not read it; use"),
    ],
)
def test_what_an_engine_cannot_do_is_refused_or_left_out_with_a_warning(
    engine: Engine, env: dict[str, str], severity: str, line: str
) -> None:
    (found,) = lacking(settings(**env), engine)
    assert found.severity == severity
    assert line in found.line


@pytest.mark.parametrize("flag", ["--api-key", "--api-key-file", "--host", "--port", "--model"])
def test_what_would_make_it_another_server_is_refused_even_when_it_is_no_speculation(flag: str) -> None:
    build = without(*BY_NAME[flag.lstrip("-")].flags)
    (lack,) = lacking(settings(LLAMA_API_KEY="hush", LLAMA_API_KEY_FILE="/keys"), build)
    assert lack.severity == "error"
    assert "hush" not in lack.line


def test_what_the_child_gets_holds_no_secret_but_in_its_own_variable() -> None:
    env = embedded.environment(settings(LLAMA_API_KEY="hush"))
    assert "hush" not in env[embedded.ASSIGNMENTS_VARIABLE]
    assert env["LLAMA_API_KEY"] == "hush"


def sample(parameter: Parameter) -> Any:
    """A value the parameter may have."""
    if parameter.kind is ValueKind.SWITCH:
        return True
    if parameter.choices:
        return next(iter(parameter.choices))
    if parameter.kind is ValueKind.INTEGER:
        return int(parameter.bounds[0] or 0) + 1
    return 0.5 if parameter.kind is ValueKind.NUMBER else "text"


@pytest.mark.engine
def test_attributes_and_defaults_of_the_catalogue_are_those_of_the_package() -> None:
    xllamacpp = pytest.importorskip("xllamacpp")
    samples: dict[str, Any] = {"seed": 1, "kv-unified-per-slot": 0}
    samples |= {
        "spec-synth-rates": "0.9,0.5",
        "spec-synth-len": 2.0,
        "spec-draft-device": "none",
        "slot-save-path": "/",
    }
    samples |= {"tensor-split": "3,1", "spec-draft-override-tensor": "exps=CPU"}
    differing, lacking_one = set(), set()
    for parameter in ENGINE:
        if parameter.attribute is None:
            lacking_one.add(parameter.name)
            continue
        if parameter.name in ("api-key", "api-key-file", "chat-template-file"):
            continue
        value: Any = samples.get(parameter.name, parameter.default)
        for choice in parameter.choices or ("text" if value is None else value,):
            embedded.apply(xllamacpp.CommonParams(), parameter.name, parameter.attribute, choice)
        if parameter.default is None:
            continue
        owners: list[Any] = [xllamacpp.CommonParams(), xllamacpp.CommonParams()]
        embedded.apply(owners[1], parameter.name, parameter.attribute, parameter.default)
        for name in parameter.attribute.split("."):
            owners = [getattr(owner, name) for owner in owners]
        theirs, ours = owners
        if theirs != ((not ours) if parameter.inverted else ours):
            differing.add(parameter.name)
    # Set on purpose, always rendered: the HTTP port has no default in CommonParams, and /metrics is off there.
    assert differing == {"port", "metrics"}
    assert lacking_one == {"device", "spec-draft-n-cpu-moe", "spec-draft-cpu-moe"}

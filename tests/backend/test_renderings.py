"""One configuration, two renderings: a llama-server command line and assignments to xllamacpp's CommonParams."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specdash.backend import binary, embedded
from specdash.backend.settings import BackendSettings, settings_from_env
from specdash.core.parameter_catalogue import BY_FLAG, ENGINE

ENV = {
    "LLAMA_MODEL": "m.gguf",
    "LLAMA_DRAFT_MODEL": "d.gguf",
    "LLAMA_SPEC_TYPE": "draft-simple,ngram-mod",
    "LLAMA_DRAFT_MAX": "8",
    "LLAMA_CTX_SIZE": "4096",
    "LLAMA_GPU_LAYERS": "all",
    "LLAMA_ALIAS": "a,b",
    "LLAMA_ARG_KV_OFFLOAD": "0",
    "LLAMA_ARG_CACHE_TYPE_K": "q8_0",
}

ONLY_LLAMA_SERVER = {
    "device",
    "spec-draft-cpu-moe",
    "spec-draft-n-cpu-moe",
    "spec-draft-cpu-mask",
    "spec-draft-cpu-mask-batch",
    "spec-draft-cpu-range",
}
"""Parameters that xllamacpp has no attribute for."""


def settings(**more: str) -> BackendSettings:
    return settings_from_env({**ENV, **more})


def assigned(config: BackendSettings) -> dict[str, Any]:
    return {assignment.path: assignment.value for assignment in embedded.assignments(config)}


def test_both_renderings_say_the_same() -> None:
    config = settings()
    args = binary.arguments(config)
    attributes = assigned(config)
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
    assert "--no-kv-offload" in args
    assert attributes["no_kv_offload"] is True
    assert "--metrics" in args
    assert attributes["endpoint_metrics"] is True


def test_extra_args_come_last_and_unknown_ones_keep_their_order() -> None:
    args = binary.arguments(settings(LLAMA_EXTRA_ARGS="--grp-attn-n 4 --ctx-size 99 --no-perf"))
    assert args[-5:] == ["--ctx-size", "99", "--grp-attn-n", "4", "--no-perf"]
    assert args.count("--ctx-size") == 1


def test_xllamacpp_refuses_an_argument_it_has_no_attribute_for_by_name() -> None:
    (lack,) = embedded.fit(settings(LLAMA_EXTRA_ARGS="--ctx-size 99 --grp-attn-n 4")).lacks
    assert (lack.severity, lack.key) == ("error", "LLAMA_EXTRA_ARGS")
    assert "xllamacpp has no parameter for '--grp-attn-n'; remove it, or set LLAMA_BIN" in lack.line


def test_xllamacpp_warns_of_variables_it_does_not_read() -> None:
    (lack,) = embedded.fit(settings(LLAMA_ARG_RPC="h:1")).lacks
    assert lack.severity == "warning"
    assert lack.line == "LLAMA_ARG_RPC has no effect: xllamacpp does not read it; use llama-server for it"


def test_what_the_child_gets_holds_no_secret_but_in_its_own_variable() -> None:
    env = embedded.environment(settings(LLAMA_API_KEY="hush"))
    assert "hush" not in env[embedded.ASSIGNMENTS_VARIABLE]
    assert env["LLAMA_API_KEY"] == "hush"
    assert json.loads(env[embedded.ASSIGNMENTS_VARIABLE])[0] == ["model", "model.path", "m.gguf"]


def test_synthetic_acceptance_reaches_both_engines() -> None:
    config = settings(LLAMA_EXTRA_ARGS="--spec-synth-len 2.5")
    assert binary.arguments(config)[-2:] == ["--spec-synth-len", "2.5"]
    assert assigned(config)["speculative.synth_len"] == 2.5


def test_automatic_slots_are_four_with_one_cache_as_in_llama_server() -> None:
    found = assigned(settings(LLAMA_PARALLEL="-1"))
    assert (found["n_parallel"], found["kv_unified"]) == (4, True)


def test_no_flag_is_spelled_twice_in_the_catalogue() -> None:
    spelled = [flag for p in ENGINE for flag in (*p.flags, *p.off_flags)]
    assert len(spelled) == len(set(spelled))
    assert set(spelled) <= set(BY_FLAG)


@pytest.mark.engine
def test_every_attribute_of_the_catalogue_exists_and_takes_a_value() -> None:
    xllamacpp = pytest.importorskip("xllamacpp")
    samples = {
        "spec-synth-rates": "0.9,0.5",
        "seed": 1,
        "kv-unified-per-slot": 0,
        "spec-synth-len": 2.0,
        "spec-draft-device": "none",
        "tensor-split": "3,1",
        "slot-save-path": "/",
        "spec-draft-override-tensor": "exps=CPU",
    }
    for parameter in ENGINE:
        assert (parameter.attribute is None) == (parameter.name in ONLY_LLAMA_SERVER)
        if parameter.attribute is None or parameter.name in ("api-key", "api-key-file", "chat-template-file"):
            continue
        value = samples.get(parameter.name, parameter.default)
        for choice in parameter.choices or ("text" if value is None else value,):
            params = xllamacpp.CommonParams()
            embedded.apply(xllamacpp, params, parameter.name, parameter.attribute, choice)


@pytest.mark.engine
def test_the_defaults_of_the_catalogue_are_those_of_the_engine() -> None:
    xllamacpp = pytest.importorskip("xllamacpp")
    params = xllamacpp.CommonParams()
    differing = set()
    for parameter in ENGINE:
        if parameter.default is None or parameter.attribute is None:
            continue
        owner: Any = params
        *parents, last = parameter.attribute.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        theirs = getattr(owner, last)
        fresh = xllamacpp.CommonParams()
        embedded.apply(xllamacpp, fresh, parameter.name, parameter.attribute, parameter.default)
        owner = fresh
        for parent in parents:
            owner = getattr(owner, parent)
        ours = getattr(owner, last)
        ours = (not ours) if parameter.inverted else ours
        if ours != theirs:
            differing.add(parameter.name)
    # Set on purpose, always rendered: the HTTP port has no default in CommonParams, and /metrics is off there.
    assert differing == {"port", "metrics"}

"""Every way of llama.cpp to end, abort, or run without speculation (reference/llama_server.md, section 3).

What the real engine does with settings that nobody checked, what preflight says of the same settings, and how the log
is explained.
"""

# ruff: noqa: E501 - a table

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from specdash.backend.plan import Circumstances, judge
from specdash.core.changes import Role
from specdash.core.errors import Severity, errors
from specdash.core.parameter_catalogue import BY_NAME
from specdash.llama.start_failures import explain, unspoken
from support.engines import llama_server_binary
from support.raw_engine import RawOutcome, run_raw

if TYPE_CHECKING:
    from collections.abc import Mapping

    from backend.judgement.conftest import Machine
    from specdash.core.errors import Finding
    from specdash.core.parameters import Scalar

SERVER, PACKAGE = "llama-server", "xllamacpp"
MARKS = {SERVER: pytest.mark.llama_server, PACKAGE: pytest.mark.engine}


@dataclass(frozen=True)
class Row:
    """One combination. `ends` is what the engine does; `rule` the preflight error that predicts it, None where nothing
    needs to be; `cause` how `start_failures` explains it; `warns` a preflight warning. Values of `parameters` that name
    a model of the fixture are that model."""

    name: str
    ends: str
    rule: str | None = None
    cause: str | None = None
    model: str = "llama"
    draft: str | None = None
    types: str | None = None
    parameters: Mapping[str, Scalar] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    warns: str | None = None
    engines: tuple[str, ...] = (SERVER, PACKAGE)
    other: Mapping[str, str] = field(default_factory=dict)
    """What another engine does, by engine, where it differs."""


TWO: dict[str, Scalar] = {"spec-draft-n-max": 2}
ONLY = (SERVER,)
"""Where the command line is what is wrong."""
ROWS = (
    # What works, so that no rule forbids it.
    Row("a draft model", "speculates", types="draft-simple", draft="draft"),
    Row("a chain", "speculates", types="ngram-mod,draft-simple", draft="draft"),
    Row("prediction layers", "speculates", model="qwen35-mtp", types="draft-mtp"),
    Row("a recurrent draft of a recurrent model", "speculates", model="mamba", draft="mamba-draft", types="draft-simple"),
    Row("synthetic length", "speculates", types="draft-simple", draft="draft", parameters={**TWO, "spec-synth-len": 2.5}),
    Row("synthetic rates", "speculates", types="draft-simple", draft="draft",
        parameters={**TWO, "spec-synth-rates": "0.9,0.4"}),
    Row("rates of a block after the clamp", "speculates", types="draft-dflash", draft="dflash",
        parameters={"spec-draft-n-max": 16, "spec-synth-rates": ",".join(["0.5"] * 7)}),
    Row("types named twice", "speculates", types="draft-simple", draft="draft", words=("--spec-type", "ngram-mod"),
        engines=ONLY),
    Row("a flag given twice", "speculates", types="draft-simple", draft="draft",
        words=("--spec-draft-n-max", "2", "--spec-draft-n-max", "6"), engines=ONLY),
    Row("the old name of p-min", "speculates", types="draft-simple", draft="draft", words=("--draft-p-min", "0.5"),
        engines=ONLY),
    Row("the old variable of p-min", "speculates", types="draft-simple", draft="draft",
        variables={"LLAMA_ARG_DRAFT_P_MIN": "0.5"}, engines=ONLY, warns="removed-key"),
    Row("a flag with underscores", "speculates", types="draft-simple", draft="draft", words=("--spec_draft_n_max", "2"),
        engines=ONLY),
    # Refused all the same: it contradicts itself, and the next build may take the other half of it.
    Row("none in a second chain", "speculates", "settings", types="ngram-mod", words=("--spec-type", "none"), engines=ONLY),
    # Runs without speculation.
    Row("none before others", "without", "settings", "none_in_chain", types="none,draft-simple", draft="draft", engines=ONLY),
    Row("none after others", "without", "settings", "none_in_chain", types="ngram-mod,none", engines=ONLY),
    Row("draft-simple without a draft", "without", "settings", "draft_not_given", types="draft-simple"),
    Row("draft-eagle3 without a draft", "without", "settings", "draft_not_given", types="draft-eagle3"),
    Row("draft-dflash without a draft", "without", "settings", "draft_not_given", types="draft-dflash"),
    Row("draft-dspark without a draft", "without", "settings", "draft_not_given", types="draft-dspark"),
    Row("a chain of which one lacks its draft", "without", "settings", "draft_not_given", types="ngram-mod,draft-simple"),
    Row("another EAGLE-3", "without", "draft-architecture", "eagle3_wrong_draft", types="draft-eagle3", draft="draft"),
    Row("a chain with another EAGLE-3", "without", "draft-architecture", "eagle3_wrong_draft",
        types="ngram-simple,draft-eagle3", draft="draft"),
    Row("another vocabulary", "without", "vocabulary", "vocab_mismatch", types="draft-simple", draft="other-word"),
    Row("another BOS", "without", "vocabulary", "vocab_mismatch", types="draft-simple", draft="no-bos"),
    Row("another number of BOS", "without", "vocabulary", "vocab_mismatch", types="draft-simple", draft="bos-2"),
    Row("a draft that adds EOS", "without", "vocabulary", "vocab_mismatch", types="draft-simple", draft="adds-eos"),
    Row("a much longer vocabulary", "without", "vocabulary", "vocab_mismatch", types="draft-simple", draft="too-long"),
    Row("a draft without a vocabulary", "without", "vocabulary", "vocab_mismatch", types="draft-simple", draft="no-vocabulary"),
    Row("another first token", "speculates", types="draft-simple", draft="other-start"),
    # Exits.
    Row("no prediction layers", "exit", "nextn-layers", "mtp_no_heads", types="draft-mtp"),
    Row("a draft without prediction layers", "exit", "nextn-layers", "mtp_no_heads", model="qwen35-mtp", draft="draft-wide",
        types="draft-mtp"),
    Row("an absent draft", "exit", "file", "draft_missing", types="draft-simple", draft="/absent.gguf"),
    Row("a draft cut short", "exit", "file", "draft_broken", types="draft-simple", draft="cut"),
    Row("a model cut short", "exit", "file", "model_broken", model="cut"),
    Row("a type that nobody knows", "exit", "settings", "spec_type_unknown", types="bogus", engines=ONLY),
    Row("negative drafts", "exit", "value", "argument_value", types="draft-simple", draft="draft", parameters={"spec-draft-n-max": -1}, engines=ONLY),
    Row("an n-gram of no tokens", "exit", "settings", "argument_value", types="ngram-mod",
        words=("--spec-ngram-mod-n-match", "0"), engines=ONLY),
    Row("too long an n-gram", "exit", "settings", "argument_value", types="ngram-simple",
        words=("--spec-ngram-simple-size-n", "1025"), engines=ONLY),
    Row("too long a draft of ngram-mod", "exit", "settings", "argument_value", types="ngram-mod",
        words=("--spec-ngram-mod-n-max", "2000"), engines=ONLY),
    Row("too long a draft of ngram-map-k4v", "exit", "settings", "argument_value", types="ngram-map-k4v",
        words=("--spec-ngram-map-k4v-size-m", "1025"), engines=ONLY),
    Row("no hits", "exit", "settings", "argument_value", types="ngram-map-k", words=("--spec-ngram-map-k-min-hits", "0"),
        engines=ONLY),
    Row("an old flag of n-max", "exit", "settings", "argument_removed", words=("--draft-max", "8"), engines=ONLY, types="draft-simple", draft="draft"),
    Row("an old flag of n-min", "exit", "settings", "argument_removed", words=("--draft-n-min", "2"), engines=ONLY),
    Row("an old n-gram flag", "exit", "settings", "argument_removed", words=("--spec-ngram-size-n", "8"), engines=ONLY),
    Row("an old variable of n-max", "exit", "removed-key", "argument_removed",
        variables={"LLAMA_ARG_DRAFT_MAX": "8"}, engines=ONLY),
    Row("an old variable of n-min", "exit", "removed-key", "argument_removed",
        variables={"LLAMA_ARG_DRAFT_MIN": "1"}, engines=ONLY),
    Row("an unknown flag", "exit", "engine-lacks", "argument_unknown", words=("--spec-use-checkpoints", "on"), engines=ONLY),
    Row("an unknown device", "exit", None, "device_unknown", words=("--spec-draft-device", "CUDA0"),
        engines=ONLY, types="draft-simple", draft="draft"),
    # Aborts.
    Row("no tokens a draft", "abort", "value", "n_max_zero", types="draft-simple", draft="draft", parameters={"spec-draft-n-max": 0}),
    Row("a batch smaller than a draft", "abort", "batch", "batch_small", types="draft-simple", draft="draft",
        parameters={"spec-draft-n-max": 8, "batch-size": 8}),
    Row("a batch that holds a draft", "speculates", types="draft-simple", draft="draft",
        parameters={"spec-draft-n-max": 8, "batch-size": 9}),
    Row("another DFlash", "abort", "draft-architecture", "dflash_wrong_draft", types="draft-dflash", draft="draft"),
    Row("another DSpark", "abort", "draft-architecture", "dflash_wrong_draft", types="draft-dspark", draft="draft"),
    Row("a DFlash of a deeper model", "abort", "draft-architecture", "draft_of_other_model", types="draft-dflash",
        draft="dflash-deep"),
    Row("an EAGLE-3 of a wider model", "abort", "draft-architecture", "draft_of_other_model", types="draft-eagle3",
        draft="eagle3-wide"),
    Row("a recurrent draft", "abort", "recurrent-draft", "recurrent_draft", types="draft-simple", draft="mamba-draft",
        parameters={"spec-draft-n-max": 8}),
    Row("a hybrid draft", "abort", "recurrent-draft", "recurrent_draft", types="draft-simple", draft="lfm2-draft",
        parameters={"spec-draft-n-max": 8}),
    Row("an EAGLE-3 of a recurrent model", "abort", "draft-architecture", "draft_of_other_model", model="mamba",
        types="draft-eagle3", draft="eagle3"),
    Row("an absent lookup cache", "abort", "file", "lookup_cache_failed", types="ngram-cache",
        parameters={"lookup-cache-static": "/absent"}),
)  # fmt: skip
SMOKES = (
    "types named twice", "a flag with underscores", "none before others", "another vocabulary", "no prediction layers",
    "a draft cut short", "a type that nobody knows", "negative drafts", "an n-gram of no tokens",
    "an old flag of n-max", "an old variable of n-max", "an unknown flag", "an unknown device", "no tokens a draft",
    "a recurrent draft",
)  # fmt: skip
"""Rows that are tried on the binary, too: one for each way to fail."""
CASES = [
    pytest.param(row, engine, id=f"{row.name}-{engine}", marks=MARKS[engine])
    for row in ROWS
    for engine in (PACKAGE, SERVER)
    if (row.name in SMOKES if engine == SERVER else engine in row.engines)
]
JUDGED = [
    pytest.param(row, row.engines[-1], id=row.name, marks=[MARKS[SERVER]] if row.rule == "engine-lacks" else [])
    for row in ROWS
]


@pytest.fixture(scope="module")
def found_models(models: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The models of the fixture, and some that are broken."""
    folder = tmp_path_factory.mktemp("broken")
    cut = folder / "cut.gguf"
    cut.write_bytes(Path(models["llama"]).read_bytes()[:-4096])
    return {**models, "cut": str(cut), "draft-wide": models["draft"]}


@pytest.fixture
def settings(request: pytest.FixtureRequest, found_models: dict[str, str]) -> dict[str, Scalar]:
    """The parameters of a row, models by their paths."""
    row: Row = request.node.callspec.params["row"]
    given: dict[str, Scalar] = {"model": found_models[row.model], "ctx-size": 4096}
    if row.draft is not None:
        given["spec-draft-model"] = found_models.get(row.draft, row.draft)
    return {**given, **row.parameters}


def _env(row: Row, settings: Mapping[str, Scalar], engine: str) -> dict[str, str]:
    """The env file that asks for the same."""
    env = {"LLAMA_ENGINE": engine, "LLAMA_PORT": "0", **row.variables}
    words = list(row.words)
    for name, value in settings.items():
        key = BY_NAME[name].key
        if key.startswith("LLAMA_"):
            env[key] = str(value)
        else:
            words += [BY_NAME[name].flags[0], str(value)]
    if row.types is not None and "--spec-type" in words:
        words = ["--spec-type", row.types, *words]
    elif row.types is not None:
        env["LLAMA_SPEC_TYPE"] = row.types
    return {**env, "LLAMA_EXTRA_ARGS": shlex.join(words)} if words else env


def _named(outcome: RawOutcome, row: Row, settings: Mapping[str, Scalar]) -> str | None:
    """How what happened is explained, as the runner does it."""
    found = explain(outcome.lines, outcome.code)
    asked = {name: str(value) for name, value in settings.items() if name.startswith("spec-")}
    found = found or (
        unspoken({**asked, "spec-type": row.types} if row.types else asked) if outcome.code is None else None
    )
    return found.id if found is not None else None


@pytest.mark.slow
@pytest.mark.parametrize(("row", "engine"), CASES)
def test_the_engine_does_what_the_table_says_and_its_end_is_explained(
    row: Row, engine: str, settings: dict[str, Scalar], tmp_path: Path
) -> None:
    outcome = run_raw(engine, tmp_path, row.types, settings, row.words, row.variables)
    assert outcome.ends == row.other.get(engine, row.ends), outcome.lines[-20:]
    if row.ends != "speculates":
        assert _named(outcome, row, settings) == row.cause


@pytest.mark.parametrize(("row", "engine"), JUDGED)
def test_preflight_says_of_the_table_what_the_engine_does(
    row: Row, engine: str, settings: dict[str, Scalar], context: Circumstances, machine: Machine
) -> None:
    asks = row.rule == "engine-lacks"
    machine.asks_engine(asks=asks)
    env = _env(row, settings, engine) | ({"LLAMA_BIN": llama_server_binary()} if asks else {})
    found: tuple[Finding, ...] = judge(Role.BACKEND, env, context)
    wrong = errors(found)
    assert [finding.rule for finding in wrong] == ([] if row.rule is None else [row.rule]), [
        finding.line for finding in found
    ]
    assert all(finding.fix for finding in wrong), [finding.line for finding in wrong]
    if row.warns is not None:
        assert row.warns in [finding.rule for finding in found if finding.severity is Severity.WARNING]


@pytest.mark.slow
@pytest.mark.llama_server
@pytest.mark.parametrize("unified", [True, False])
def test_a_shared_cache_that_is_nearly_full_fails_requests_and_the_log_names_the_cause(
    unified: bool, found_models: dict[str, str], tmp_path: Path
) -> None:
    models = {"model": found_models["llama"], "spec-draft-model": found_models["draft"]}
    given: dict[str, Scalar] = {**models, "ctx-size": 512, "parallel": 3, "spec-draft-n-max": 16, "kv-unified": unified}
    outcome = run_raw("llama-server", tmp_path, "draft-simple", given, crowd=3)
    found = explain(outcome.lines, outcome.code)
    assert (found.id if found is not None else None) == ("batch_index_error" if unified else None), outcome.lines[-9:]

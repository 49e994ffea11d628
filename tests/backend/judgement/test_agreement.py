"""Preflight agrees with llama.cpp: the same variables, given to both.

Whole combinations of models and types are in `test_start_agreement.py` and in the matrix (`support.matrix`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from specdash.backend.plan import Circumstances, judge
from specdash.core.changes import Role
from specdash.core.errors import errors
from support.native_server import try_out

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.llama_server, pytest.mark.slow]

GOOD: list[tuple[str, str | None, str, dict[str, str]]] = [
    ("llama", "other-start", "draft-simple", {}),
    ("llama", "draft", "draft-simple", {"LLAMA_ARG_CACHE_TYPE_V": "q8_0", "LLAMA_ARG_CACHE_TYPE_K": "q4_0"}),
    ("heads-of-16", None, "ngram-mod", {"LLAMA_ARG_CACHE_TYPE_K": "q8_0", "LLAMA_ARG_FLASH_ATTN": "off"}),
]
"""Model, draft, type and more, which the real server runs and speculates with."""

BAD: list[tuple[str, str, str | None, str, dict[str, str]]] = [
    ("vocabulary", "llama", "too-long", "draft-simple", {}),
    ("vocabulary", "llama", "adds-eos", "draft-simple", {}),
    ("vocabulary", "llama", "bos-2", "draft-simple", {}),
    ("vocabulary", "llama", "no-vocabulary", "draft-simple", {}),
    ("recurrent-draft", "llama", "lfm2-draft", "draft-simple", {"LLAMA_ARG_SPEC_DRAFT_N_MAX": "8"}),
    ("draft-architecture", "llama", "eagle3", "draft-dflash", {}),
    ("draft-architecture", "mamba", "eagle3", "draft-eagle3", {}),
    ("value", "llama", None, "ngram-mod", {"LLAMA_ARG_CACHE_TYPE_K": "q3_0"}),
    ("file", "llama", None, "ngram-mod", {"LLAMA_ARG_CHAT_TEMPLATE_FILE": "/absent"}),
    ("file", "llama", None, "ngram-mod", {"LLAMA_ARG_API_KEY_FILE": "/absent"}),
    ("file", "llama", None, "ngram-mod", {"LLAMA_ARG_MMPROJ": "/etc/hostname"}),
    ("host", "llama", None, "ngram-mod", {"LLAMA_ARG_HOST": "192.0.2.1"}),
]
"""Rule, model, draft, type and more, which the real server refuses, dies of, or runs without speculation."""


def _settings(models: dict[str, str], model: str, draft: str | None, kind: str, more: dict[str, str]) -> dict[str, str]:
    found = {"LLAMA_ARG_MODEL": models[model], "LLAMA_ARG_SPEC_TYPE": kind, "LLAMA_ARG_CTX_SIZE": "4096", **more}
    return {**found, "LLAMA_ARG_SPEC_DRAFT_MODEL": models[draft]} if draft is not None else found


@pytest.mark.parametrize(("model", "draft", "kind", "more"), GOOD)
def test_what_the_server_speculates_with_has_no_error(
    model: str,
    draft: str | None,
    kind: str,
    more: dict[str, str],
    models: dict[str, str],
    context: Circumstances,
    tmp_path: Path,
) -> None:
    settings = _settings(models, model, draft, kind, more)
    outcome = try_out(settings, tmp_path)
    assert (outcome.started, outcome.speculative, outcome.answered) == (True, True, True), outcome.log[-2000:]
    assert errors(judge(Role.BACKEND, settings, context)) == ()


@pytest.mark.parametrize(("rule", "model", "draft", "kind", "more"), BAD)
def test_what_the_server_fails_with_is_an_error(
    rule: str,
    model: str,
    draft: str | None,
    kind: str,
    more: dict[str, str],
    models: dict[str, str],
    context: Circumstances,
    tmp_path: Path,
) -> None:
    settings = _settings(models, model, draft, kind, more)
    outcome = try_out(settings, tmp_path)
    assert not (outcome.started and outcome.speculative and outcome.answered), outcome.log[-2000:]
    assert [row.rule for row in errors(judge(Role.BACKEND, settings, context))] == [rule]


@pytest.mark.parametrize(("longest", "effective"), [(7, 7), (8, 7), (16, 7)])
def test_the_block_limit_named_is_the_one_the_server_clamps_to(
    longest: int, effective: int, models: dict[str, str], context: Circumstances, tmp_path: Path
) -> None:
    more = {"LLAMA_ARG_SPEC_DRAFT_N_MAX": str(longest)}
    settings = _settings(models, "llama", "dflash", "draft-dflash", more)
    log = try_out(settings, tmp_path).log
    found = [row for row in judge(Role.BACKEND, settings, context) if row.rule == "block-size"]
    assert (f"clamping to {effective}" in log) == (longest > effective) == bool(found)
    assert all(f"{effective} counts" in row.message for row in found)


def test_a_context_above_the_trained_one_is_capped_as_preflight_says(
    models: dict[str, str], context: Circumstances, tmp_path: Path
) -> None:
    settings = _settings(models, "short", None, "ngram-mod", {"LLAMA_ARG_N_PARALLEL": "2"})
    assert "exceeds the training context of the model (1024) - capping" in try_out(settings, tmp_path).log
    assert "above the 1024 tokens" in next(
        r.message for r in judge(Role.BACKEND, settings, context) if r.rule == "context"
    )


@pytest.mark.parametrize(("model", "draft", "severity"), [("llama", "longer", "warning"), ("longer", "draft", "info")])
def test_vocabularies_of_slightly_different_length_pass_and_can_still_abort_the_server(
    model: str, draft: str, severity: str, models: dict[str, str], context: Circumstances, tmp_path: Path
) -> None:
    settings = _settings(models, model, draft, "draft-simple", {})
    outcome = try_out(settings, tmp_path)
    assert outcome.speculative
    assert not outcome.answered
    found = [row for row in judge(Role.BACKEND, settings, context) if row.rule == "vocabulary"]
    assert [row.severity for row in found] == [severity]

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


@pytest.mark.parametrize(
    ("rule", "model", "draft", "kind", "more"),
    [*((None, *row) for row in GOOD), *BAD],
)
def test_what_the_server_speculates_with_has_no_error_and_what_it_fails_with_has_one(
    rule: str | None, model: str, draft: str | None, kind: str, more: dict[str, str],
    models: dict[str, str], context: Circumstances, tmp_path: Path,
) -> None:  # fmt: skip
    settings = _settings(models, model, draft, kind, more)
    outcome = try_out(settings, tmp_path)
    works = outcome.started and outcome.speculative and outcome.answered
    assert works == (rule is None), outcome.log[-2000:]
    assert [row.rule for row in errors(judge(Role.BACKEND, settings, context))] == ([rule] if rule else [])


def test_a_block_limit_is_what_the_server_clamps_to(
    models: dict[str, str], context: Circumstances, tmp_path: Path
) -> None:
    block = _settings(models, "llama", "dflash", "draft-dflash", {"LLAMA_ARG_SPEC_DRAFT_N_MAX": "16"})
    assert "clamping to 7" in try_out(block, tmp_path).log
    assert any("7 counts" in row.message for row in judge(Role.BACKEND, block, context) if row.rule == "block-size")


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

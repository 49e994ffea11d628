"""Sizes against each other: batches and drafts, cache types and flash attention, and how a fix writes them."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from specdash.backend import settings

if TYPE_CHECKING:
    from backend.judgement.conftest import Check

SIMPLE = {"LLAMA_SPEC_TYPE": "draft-simple", "LLAMA_DRAFT_MAX": "8"}


@pytest.mark.parametrize(
    ("batch", "slots", "needed"), [("8", "1", 9), ("9", "1", None), ("16", "3", 27), ("26", "3", 27), ("27", "3", None)]
)
def test_a_batch_holds_the_drafts_of_all_slots(
    batch: str, slots: str, needed: int | None, backend: Check, models: dict[str, str]
) -> None:
    wanted = {**SIMPLE, "LLAMA_DRAFT_MODEL": models["draft"], "LLAMA_PARALLEL": slots, "LLAMA_ARG_BATCH": batch}
    found = backend(wanted).of("batch")
    assert [row.severity for row in found] == ([] if needed is None else ["error"])
    assert all(row.key == "LLAMA_ARG_BATCH" and f"need {needed}" in row.message for row in found)


@pytest.mark.parametrize(
    ("words", "flag", "value"),
    [
        ("--flash-attn off --cache-type-v q8_0 --mlock", "--flash-attn", "on"),
        ("--threads 3 -ctv q8_0 -fa off", "--flash-attn", "on"),
        ("-fa on --cache-type-k q8_0 -b 4 --spec-type ngram-mod", "--batch-size", "2048"),
    ],
)
def test_a_fix_for_an_extra_argument_names_its_flag_and_keeps_the_others(
    words: str, flag: str, value: str, backend: Check
) -> None:
    (row,) = backend({"LLAMA_EXTRA_ARGS": words}).errors
    assert row.key == settings.SOURCE
    assert f"{flag} {value} in LLAMA_EXTRA_ARGS" in row.fix
    assert "LLAMA_EXTRA_ARGS=" not in row.line
    fixed = settings.parse(words).rest, shlex.join([*shlex.split(words), flag, value])
    assert not backend({"LLAMA_EXTRA_ARGS": fixed[1]}).errors


def test_an_empty_value_is_explained(backend: Check, proxy: Check) -> None:
    assert proxy({"PROXY_LOG_FILE": " "}).one("empty").key == "PROXY_LOG_FILE"
    row = backend({"LLAMA_CTX_SIZE": "", "LLAMA_ARG_BATCH": ""}).of("empty")
    assert [(finding.severity, finding.key) for finding in row] == [
        ("warning", "LLAMA_CTX_SIZE"),
        ("warning", "LLAMA_ARG_BATCH"),
    ]
    assert "LLAMA_ARG_BATCH is empty, which counts as not set: its default, 2048, is in force" in row[1].message

"""`auto` as a spec type: what it becomes, and that the reason is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from specdash.backend.auto import choose
from specdash.llama.gguf import GgufFacts, Tensor, read_facts
from support import tiny_models

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def target(models: dict[str, Path]) -> GgufFacts:
    return read_facts(models["target"])


def sized(facts: GgufFacts, parameters: int, *, heads: int | None = None) -> GgufFacts:
    """The same model with so many parameters, and prediction layers."""
    return replace(facts, tensors=(Tensor("all", parameters * 2, 1, (parameters,)),), nextn_layers=heads)


@pytest.mark.parametrize(
    ("parameters", "on_gpu", "types"),
    [
        (2_000_000_000, True, ("draft-mtp",)),
        (27_000_000_000, True, ("draft-mtp",)),
        (27_000_000_000, False, ("ngram-mod", "draft-mtp")),
        (1_999_999_999, True, ("ngram-mod",)),
        (800_000_000, False, ("ngram-mod",)),
    ],
)
def test_prediction_layers_draft_alone_on_a_gpu_chained_on_the_cpu_and_never_in_small_models(
    target: GgufFacts, parameters: int, on_gpu: bool, types: tuple[str, ...]
) -> None:
    choice = choose(sized(target, parameters, heads=1), None, on_gpu)
    assert choice.types == types
    assert "1 prediction (nextn) layer and" in choice.because
    assert ("under 2B its layers slow it down" in choice.because) == (parameters < 2_000_000_000)


def test_a_model_that_is_not_here_drafts_by_n_grams() -> None:
    assert choose(None, None, on_gpu=True).types == ("ngram-mod",)


def test_a_draft_made_for_the_models_layers_names_its_type(tmp_path: Path) -> None:
    target = read_facts(tiny_models.plain.write_llama(tmp_path / "t.gguf", layers=3))
    eagle = read_facts(tiny_models.drafts.write_eagle3(tmp_path / "e.gguf"))
    dflash = read_facts(tiny_models.drafts.write_dflash(tmp_path / "d.gguf"))
    dspark = read_facts(tiny_models.drafts.write_dspark(tmp_path / "s.gguf"))
    found = [choose(target, gguf_facts, on_gpu=True) for gguf_facts in (eagle, dflash, dspark)]
    assert [choice.types for choice in found] == [("draft-eagle3",), ("draft-dflash",), ("draft-dspark",)], found

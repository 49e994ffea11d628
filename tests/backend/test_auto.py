"""`auto` as a spec type and as a context: what it becomes, and that the reason and the arithmetic are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from specdash.backend import auto
from specdash.backend.auto import MemoryRoom, choose, loads, read_settings
from specdash.backend.settings import BackendSettings, settings_from_env
from specdash.llama.gguf import GgufFacts, Tensor, read_facts
from specdash.llama.memory import estimate
from support import tiny_models

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1024**3
MODEL = {"LLAMA_MODEL": "m.gguf"}


@pytest.fixture(scope="module")
def target(models: dict[str, Path]) -> GgufFacts:
    return read_facts(models["target"])


@pytest.fixture(scope="module")
def draft(models: dict[str, Path]) -> GgufFacts:
    return read_facts(models["draft"])


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


def read(env: dict[str, str], facts: dict[str, GgufFacts], *, on_gpu: bool = False) -> BackendSettings:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auto, "look", facts.get)
        return read_settings({**MODEL, **env}, lambda _: on_gpu)


def test_what_was_chosen_is_in_the_settings_with_the_reason(target: GgufFacts) -> None:
    found = read(
        {"LLAMA_SPEC_TYPE": "auto", "LLAMA_DRAFT_MAX": "12"},
        {"m.gguf": sized(target, 3_000_000_000, heads=2)},
    )
    assert (found.spec_types, found.spec_source) == (("ngram-mod", "draft-mtp"), "LLAMA_SPEC_TYPE")
    assert found.value("spec-draft-n-max") == found.value("spec-ngram-mod-n-max") == 12
    (decision,) = found.decisions
    assert (decision.name, decision.value) == ("spec-type", "ngram-mod,draft-mtp")
    assert "2 prediction (nextn) layers and 3B parameters, on the CPU" in decision.because


def context(facts: GgufFacts, room: MemoryRoom, draft: GgufFacts | None = None, **env: str) -> BackendSettings:
    wanted = settings_from_env({**MODEL, "LLAMA_CTX_SIZE": "auto", **env})
    assert auto.wanted(wanted)
    return auto.fitted(wanted, facts, draft, room)


def test_the_context_that_fits_is_the_trained_one_where_there_is_room(target: GgufFacts) -> None:
    found = context(target, MemoryRoom(64 * GIB, 0, "main memory"))
    assert found.value("ctx-size") == target.context_length
    assert found.parameters["ctx-size"].source == "LLAMA_CTX_SIZE"
    (decision,) = found.decisions
    assert decision.steps[0] == (
        "main memory: 64.0 GiB free, less 8.0 GiB for the prompt cache (--cache-ram), x 0.90 = 50.4 GiB may be used"
    )
    assert decision.steps[1].startswith("model weights ")
    assert decision.steps[1].endswith(f"the model was trained on {target.context_length}")


@pytest.mark.parametrize("gpus", [0, 1, 2])
def test_no_larger_context_would_fit_into_what_there_is(target: GgufFacts, gpus: int) -> None:
    room = MemoryRoom(int(1024**2 * (50 + 400 * gpus) / 0.9), gpus, "CUDA0")
    found = context(target, room, LLAMA_ARG_CACHE_RAM="0")
    size = int(found.value("ctx-size") or 0)
    assert 0 < size < (target.context_length or 0)
    allowed = room.free_bytes * 0.9 - gpus * 400 * 1024**2

    def taken(tokens: int) -> int:
        held = found.with_value("ctx-size", tokens, "test")
        whole = estimate(target, loads(held, target, on_gpu=gpus > 0)[0])
        assert whole is not None
        return whole.gpu if gpus else whole.host

    assert taken(size) <= allowed < taken(size + 256)


@pytest.mark.parametrize(("limit", "kept"), [("16", 16), ("0", 0), ("8192", 50), ("-1", 50)])
def test_on_a_cpu_the_context_leaves_room_for_the_prompt_cache(target: GgufFacts, limit: str, kept: int) -> None:
    """At most half of it: llama.cpp lowers the limit itself where memory runs out."""
    room = MemoryRoom(100 * 1024**2, 0, "main memory")
    with_cache = context(target, room, LLAMA_ARG_CACHE_RAM=limit)
    less = MemoryRoom((100 - kept) * 1024**2, 0, "main memory")
    assert with_cache.value("ctx-size") == context(target, less, LLAMA_ARG_CACHE_RAM="0").value("ctx-size")


def test_drafting_takes_its_share_and_prediction_layers_more(target: GgufFacts, draft: GgufFacts) -> None:
    room = MemoryRoom(60 * 1024**2, 0, "main memory")
    plain = int(context(target, room).value("ctx-size") or 0)
    with_draft = context(target, room, draft, LLAMA_DRAFT_MODEL="d.gguf", LLAMA_SPEC_TYPE="draft-simple")
    assert int(with_draft.value("ctx-size") or 0) < plain
    assert "draft KV cache" in with_draft.decisions[0].steps[1]
    mtp = context(replace(target, nextn_layers=0), room, LLAMA_SPEC_TYPE="draft-mtp")
    assert "x 0.85 (with MTP)" in mtp.decisions[0].steps[0]

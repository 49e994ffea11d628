"""A widened model is the model it was made from, with zeros in it, in a file that takes no room."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.models import BUNDLED, MODELS
from specdash.cli.main import main
from specdash.llama.gguf import GgufError, GgufFacts, read_facts
from specdash.llama.model_facts import shape_of
from specdash.llama.widening import Dimensions, WideningError, plan, resize, widen
from support import gguf_files, tiny_models

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

GB = 1_000_000_000
GROWING = ("target", "draft", "automaton", "mtp", "eagle3-target")
OTHERS = ("eagle3", "dflash")
BLOCK = re.compile(r"blk\.(\d+)\.(.+)")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in 32-bit floats, with the layers and heads that grow."""
    return tiny_models.write_qwen35(tmp_path_factory.mktemp("m") / "f32.gguf", heads_too=True, wrong_every=8)


def values(path: Path) -> dict[str, NDArray[Any]]:
    """All tensors by name, as floats, the slowest dimension first; read with the gguf package."""
    return {
        tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1])
        for tensor in gguf.GGUFReader(path).tensors
    }


def roles(tensors: dict[str, NDArray[Any]], layer: int) -> set[str]:
    """The names of the tensors of one block, without its number."""
    return {name.removeprefix(f"blk.{layer}.") for name in tensors if name.startswith(f"blk.{layer}.")}


def wanted(model: GgufFacts, draw: Any) -> Dimensions:
    """Any dimensions that a model may get."""
    layers = (model.block_count or 0) - (model.nextn_layers or 0)
    return Dimensions(
        layers + draw(st.integers(0, 6)),
        (model.number("feed_forward_length") or 0) + 32 * draw(st.integers(0, 20)),
        draw(st.sampled_from([1, 4, 16])),
        draw(st.integers(1, 5)),
    )


@pytest.mark.slow
@settings(max_examples=12)
@given(name=st.sampled_from(["target", "mtp", "f32"]), data=st.data())
def test_every_value_is_where_it_was_and_all_others_are_zero(
    kit_models: Path, plain: Path, tmp_path: Path, name: str, data: st.DataObject
) -> None:
    source = plain if name == "f32" else kit_models / f"{name}.gguf"
    model = read_facts(source)
    asked = wanted(model, data.draw)
    resize(source, tmp_path / "wide.gguf", asked)
    made = read_facts(tmp_path / "wide.gguf")
    ahead, trunk = model.nextn_layers or 0, (model.block_count or 0) - (model.nextn_layers or 0)
    assert made.file_bytes == -(-made.bytes_needed // 32) * 32
    assert (made.block_count, made.nextn_layers) == (asked.layers + ahead, model.nextn_layers)
    assert made.number("embedding_length") == (model.number("embedding_length") or 0) * asked.width
    assert made.number("feed_forward_length") == asked.rows
    for key in ("attention.head_count", "attention.head_count_kv"):
        assert made.number(key) == (model.number(key) or 0) * asked.heads
    epsilon = f"{model.architecture}.attention.layer_norm_rms_epsilon"
    assert made.values[epsilon] == pytest.approx(float(model.values[epsilon]) / asked.width)
    old, new = values(source), values(tmp_path / "wide.gguf")
    every = model.number("full_attention_interval") or 1
    for layer in range(trunk, asked.layers):
        assert roles(new, layer) == roles(old, layer % every), f"block {layer} is of another kind"
    for tensor, found in new.items():
        place = BLOCK.fullmatch(tensor)
        moved = tensor
        if place is not None and int(place[1]) >= asked.layers:
            moved = f"blk.{int(place[1]) - asked.layers + trunk}.{place[2]}"
        elif place is not None and int(place[1]) >= trunk:
            assert found.ndim == 1 or not found.any(), f"{tensor}, of an added block, is not zero"
            continue
        known = old.pop(moved)
        if found.ndim == 1:
            # A norm over the residual stream; others are as they were.
            grown = np.zeros_like(found)
            grown[: len(known)] = known / math.sqrt(len(found) // len(known))
        elif place is not None and place[2] == "nextn.eh_proj.weight":
            half, wide = known.shape[1] // 2, found.shape[1] // 2
            grown = np.zeros_like(found)
            grown[: len(known), :half], grown[: len(known), wide : wide + half] = known[:, :half], known[:, half:]
        else:
            grown = np.zeros_like(found)
            grown[tuple(slice(length) for length in known.shape)] = known
        assert np.array_equal(found, grown), tensor
    assert not old


@settings(max_examples=8)
@given(name=st.sampled_from(GROWING), size=st.integers(20_000_000, 40 * GB))
def test_a_model_gets_the_size_that_was_asked_for_and_takes_no_room(
    kit_models: Path, tmp_path: Path, name: str, size: int
) -> None:
    target = tmp_path / "wide.gguf"
    widen(kit_models / f"{name}.gguf", target, size)
    facts, status = read_facts(target), target.stat()
    assert abs(status.st_size - size) <= size * 0.02
    assert status.st_size == -(-facts.bytes_needed // 32) * 32
    assert status.st_blocks * 512 < 80_000_000
    shape = shape_of(facts)
    assert shape is not None
    assert shape.exact
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("size", [20_000_000, 300_000_000])
def test_a_draft_that_reads_a_target_keeps_all_but_its_feed_forward_length(
    kit_models: Path, tmp_path: Path, name: str, size: int
) -> None:
    source, target = kit_models / f"{name}.gguf", tmp_path / "wide.gguf"
    widen(source, target, size)
    old, new = read_facts(source), read_facts(target)
    assert abs(new.file_bytes - size) <= size * 0.02
    changed = {key for key, value in new.values.items() if old.values.get(key) != value}
    assert changed == {f"{new.architecture}.feed_forward_length"}
    assert new.array("target_layers") == old.array("target_layers")


@pytest.mark.parametrize(
    ("name", "gigabytes", "layers", "width", "least_kib", "most_kib"),
    [
        ("target", 1, 16, 3072, 32, 64),
        ("target", 8, 32, 3072, 64, 128),
        ("target", 30, 64, 3072, 128, 256),
        ("automaton", 8, 32, 2048, 64, 128),
        ("automaton", 30, 64, 2048, 128, 256),
        # One layer of four has a cache.
        ("mtp", 8, 32, 2048, 16, 32),
        # The width that their drafts read.
        ("eagle3-target", 8, 64, 512, 128, 256),
        ("dflash-target", 8, 64, 512, 128, 256),
    ],
)
def test_a_large_model_has_the_proportions_of_a_real_one(
    kit_models: Path, tmp_path: Path, name: str, gigabytes: int, layers: int, width: int, least_kib: int, most_kib: int
) -> None:
    target = tmp_path / "wide.gguf"
    widen(kit_models / f"{name}.gguf", target, gigabytes * GB)
    facts = read_facts(target)
    shape = shape_of(facts)
    assert shape is not None
    assert (len(shape.layers), shape.width) == (layers, width)
    assert width <= shape.feed_forward <= 1 << 17
    cache_kib = sum(2 * (layer.key + layer.value) for layer in shape.layers) / 1024
    assert least_kib <= cache_kib <= most_kib
    assert facts.context_length == 32_768


def test_a_small_model_gets_wider_feed_forward_layers_and_nothing_else(kit_models: Path) -> None:
    assert plan(kit_models / "target.gguf", 81_000_000) == Dimensions(4, 32_768)


def test_the_prediction_layer_stays_the_last_one(kit_models: Path, tmp_path: Path) -> None:
    target = tmp_path / "wide.gguf"
    widen(kit_models / "mtp.gguf", target, 200_000_000)
    facts = read_facts(target)
    blocks = {
        int(place[1]) for tensor in facts.tensors if (place := BLOCK.fullmatch(tensor.name)) and "nextn" in place[2]
    }
    assert blocks == {(facts.block_count or 0) - 1}
    shape = shape_of(facts)
    assert shape is not None
    assert [bool(layer.state_bytes) for layer in shape.layers] == [True, True, True, False] * (len(shape.layers) // 4)
    assert [bool(layer.state_bytes) for layer in shape.heads] == [False]


def test_30_gb_are_a_file_of_some_megabytes_whose_header_reads_back(tmp_path: Path) -> None:
    target = tmp_path / "wide.gguf"
    widen(BUNDLED / "demo-target.gguf", target, 30 * GB)
    facts = read_facts(target)
    assert abs(facts.file_bytes - 30 * GB) < 0.6 * GB
    assert target.stat().st_blocks * 512 < 40_000_000
    assert facts.vocabulary_size == 1024
    assert {tensor.kind for tensor in facts.tensors} == {0, 8}


def test_specdash_says_of_a_widened_model_what_it_would_of_a_real_one(
    kit_models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "wide.gguf"
    widen(kit_models / "mtp.gguf", target, 8 * GB)
    assert main(["gguf", str(target), "--ctx-size", "4096"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "7.51B parameters, Q8_0, 7.4" in said
    assert "hybrid, 32 layers; 1 prediction (nextn) layer; keeps states for drafts" in said
    assert "draft-mtp yes state it has the layers" in said


FFN = {"blk.0.ffn_down.weight": (8, (512, 256))}
"""A tensor by ggml type number and shape: enough of a model to look at."""
REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "experts": (FFN, {".expert_count": 8}, "is a mixture of experts"),
    "an unknown tensor": ({**FFN, "blk.0.attn_sinks.weight": (0, (4,))}, {}, "blk.0.attn_sinks.weight"),
    "a type without a zero": ({"blk.0.ffn_down.weight": (16, (512, 256))}, {}, "IQ2_XXS"),
    "a norm in 16 bits": ({**FFN, "output_norm.weight": (1, (256,))}, {}, "in F16, not in F32"),
    "layers that differ": (FFN, {".attention.head_count_kv": [2]}, "differ in attention.head_count_kv"),
    "no length": (FFN, {".feed_forward_length": 0}, "has no feed-forward layers"),
    "no such layers": ({"output_norm.weight": (0, (256,))}, {}, "has no feed-forward layers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_widened_is_told_why(tmp_path: Path, name: str) -> None:
    tensors, values, why = REFUSED[name]
    source = gguf_files.write_model(tmp_path / "model.gguf", tensors=tensors, values=values)
    with pytest.raises(WideningError, match=re.escape(why)) as raised:
        widen(source, tmp_path / "wide.gguf", GB)
    assert str(source) in str(raised.value)
    assert not list(tmp_path.glob("wide.gguf*"))


def test_a_model_in_several_files_is_to_be_merged_first(tmp_path: Path) -> None:
    tensors = {**FFN, "output_norm.weight": (0, (256,)), "blk.0.ffn_norm.weight": (0, (256,))}
    first = gguf_files.write_gguf(tmp_path / "m.gguf", "llama", {".feed_forward_length": 512}, tensors, parts=2)
    with pytest.raises(WideningError, match="is split into several files; merge them"):
        widen(first, tmp_path / "wide.gguf", GB)


@pytest.mark.parametrize(
    ("write", "why"),
    [(tiny_models.write_mamba, "has no feed-forward layers"), (tiny_models.write_lfm2, "is of architecture lfm2")],
)
def test_a_model_of_other_layers_is_refused(tmp_path: Path, write: Callable[[Path], Path], why: str) -> None:
    with pytest.raises(WideningError, match=why):
        widen(write(tmp_path / "model.gguf"), tmp_path / "wide.gguf", GB)


def test_a_model_does_not_get_smaller(tmp_path: Path) -> None:
    demo = BUNDLED / "demo-target.gguf"
    with pytest.raises(WideningError, match="has 2127296 bytes already, and shall have 2000000"):
        widen(demo, tmp_path / "wide.gguf", 2_000_000)
    for fewer in (Dimensions(3, 512), Dimensions(4, 480)):
        with pytest.raises(WideningError, match="has 4 layers of 512 feed-forward rows already"):
            resize(demo, tmp_path / "wide.gguf", fewer)


def test_a_draft_of_one_layer_does_not_get_rows_that_no_kernel_can_count(kit_models: Path, tmp_path: Path) -> None:
    with pytest.raises(WideningError, match="more than 1048576"):
        widen(kit_models / "eagle3.gguf", tmp_path / "wide.gguf", 8 * GB)


def test_a_file_that_is_no_model_is_refused_as_everywhere(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(GgufError, match="is no GGUF file"):
        widen(tmp_path / "text.gguf", tmp_path / "wide.gguf", GB)


def test_nothing_is_left_of_a_file_that_could_not_be_finished(tmp_path: Path) -> None:
    taken = tmp_path / "wide.gguf"
    taken.mkdir()
    with pytest.raises(IsADirectoryError):
        widen(BUNDLED / "demo-target.gguf", taken, 20_000_000)
    assert list(tmp_path.iterdir()) == [taken]


def test_every_model_of_the_kit_is_tried_here() -> None:
    assert {model.name for model in MODELS} >= {*GROWING, *OTHERS}

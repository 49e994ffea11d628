"""The memory estimate as arithmetic: what moves to the GPU, what grows with what. test_memory_real has the truth."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from specdash.llama.gguf import GgufFacts, Tensor, read_facts
from specdash.llama.memory import (
    ALL_LAYERS,
    GPU_OVERHEAD,
    HEADROOM,
    HEADROOM_WITH_MTP,
    MemoryEstimate,
    ModelLoad,
    SlotLayout,
    cells_of,
    estimate,
    fit_context,
    row_bytes,
    slots_of,
    snapshots_of,
    together,
)
from specdash.llama.model_shape import ModelShape, shape_of
from support import tiny_models as tiny

ONE = slots_of(1)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> GgufFacts:
    return read_facts(tiny.write_llama(tmp_path_factory.mktemp("m") / "llama.gguf", layers=3))


def _of(facts: GgufFacts, load: ModelLoad) -> MemoryEstimate:
    found = estimate(facts, load)
    assert found is not None
    return found


def _gpu(facts: GgufFacts, load: ModelLoad, what: str = "compute") -> int:
    return sum(part.gpu for part in _of(facts, load).parts if part.what == what)


def _host(facts: GgufFacts, load: ModelLoad, what: str) -> int:
    return sum(part.host for part in _of(facts, load).parts if part.what == what)


def _with(facts: GgufFacts, architecture: str, **values: int) -> GgufFacts:
    renamed = {key.replace("llama.", f"{architecture}."): value for key, value in facts.values.items()}
    more = {f"{architecture}.{key.replace('__', '.')}": value for key, value in values.items()}
    return replace(facts, architecture=architecture, values={**renamed, **more})


def _shape(facts: GgufFacts) -> ModelShape:
    found = shape_of(facts)
    assert found is not None
    return found


def test_without_a_gpu_nothing_is_on_it_and_the_weights_are_the_whole_file(llama: GgufFacts) -> None:
    found = _of(llama, ModelLoad(4096, ONE))
    assert (found.gpu, found.exact) == (0, True)
    assert _host(llama, ModelLoad(4096, ONE), "weights") == sum(tensor.size for tensor in llama.tensors)


def test_with_all_layers_on_the_gpu_only_the_input_embedding_stays(llama: GgufFacts) -> None:
    load = ModelLoad(4096, ONE, gpu_layers=ALL_LAYERS)
    found = _of(llama, load)
    kept = sum(tensor.size for tensor in llama.tensors if tensor.name.startswith("token_embd"))
    assert [(part.what, part.host) for part in found.parts if part.host] == [("weights", kept)]
    assert found.gpu_certain == found.gpu - _gpu(llama, load)


def test_the_output_layer_is_offloaded_first_then_layers_from_the_end(llama: GgufFacts) -> None:
    loads = [ModelLoad(4096, ONE, gpu_layers=count) for count in range(6)]
    output = sum(t.size for t in llama.tensors if t.name.startswith("output"))
    layer = sum(t.size for t in llama.tensors if t.name.startswith("blk.2."))
    assert [_gpu(llama, load, "weights") for load in loads] == [0, *(output + layer * n for n in (0, 1, 2, 3, 3))]
    whole = _gpu(llama, loads[4], "KV cache")
    assert [_gpu(llama, load, "KV cache") for load in loads] == [0, 0, whole // 3, whole // 3 * 2, whole, whole]


def test_a_model_without_an_output_layer_keeps_its_embedding_on_both_sides(llama: GgufFacts) -> None:
    tied = replace(llama, tensors=tuple(t for t in llama.tensors if t.name != "output.weight"))
    embedding = next(t.size for t in tied.tensors if t.name == "token_embd.weight")
    found = _of(tied, ModelLoad(4096, ONE, gpu_layers=ALL_LAYERS))
    parts = [part for part in found.parts if part.what == "weights"]
    assert parts[0].host == embedding
    assert parts[0].gpu == sum(t.size for t in tied.tensors)


def test_experts_and_a_cache_kept_on_the_cpu_leave_the_gpu(llama: GgufFacts) -> None:
    experts = tuple(Tensor(f"blk.{n}.ffn_up_exps.weight", 1000) for n in range(3))
    mixed = replace(llama, tensors=(*llama.tensors, *experts))
    loads = [ModelLoad(4096, ONE, gpu_layers=ALL_LAYERS, cpu_experts=count) for count in (0, 1, ALL_LAYERS)]
    weights = [_gpu(mixed, load, "weights") for load in loads]
    assert weights == [weights[0], weights[0] - 1000, weights[0] - 3000]
    assert _gpu(llama, ModelLoad(4096, ONE, gpu_layers=ALL_LAYERS, cache_on_gpu=False), "KV cache") == 0


def test_on_a_gpu_a_quantised_cache_is_copied_for_flash_attention(llama: GgufFacts) -> None:
    facts = _with(llama, "llama", attention__key_length=128, attention__value_length=128)
    key, value = 4 * 128, 4 * 128
    grows = {}
    for kind in ("f16", "bf16", "q8_0", "f32"):
        loads = [ModelLoad(c, ONE, kind, kind, gpu_layers=ALL_LAYERS) for c in (65536, 131072)]
        small, large = (_gpu(facts, load) for load in loads)
        grows[kind] = large - small
    mask = 65536 * 512 * 2
    assert grows["f16"] == mask
    assert grows["bf16"] == grows["q8_0"] == grows["f32"] == mask + 65536 * (key + value) * 2


def test_heads_that_cuda_has_no_flash_attention_for_take_their_scores(llama: GgufFacts) -> None:
    load = ModelLoad(32768, ONE, gpu_layers=ALL_LAYERS)
    off = replace(load, flash_attention=False)
    assert _gpu(llama, load) == _gpu(llama, off)
    known = _with(llama, "llama", attention__key_length=64, attention__value_length=64)
    assert _gpu(known, load) < _gpu(known, off) / 4


def test_weights_left_in_main_memory_are_copied_for_a_batch(llama: GgufFacts) -> None:
    large = replace(llama, tensors=(*llama.tensors, Tensor("blk.0.ffn_up_exps.weight", 10**9)))
    there, left = (ModelLoad(4096, ONE, gpu_layers=count) for count in (ALL_LAYERS, 2))
    assert _gpu(large, left) - _gpu(large, there) == 10**9
    apart = replace(there, cpu_experts=1)
    assert _gpu(large, apart) - _gpu(large, there) == 10**9
    assert _gpu(llama, ModelLoad(4096, ONE, batches_on_gpu=True)) > 0


def test_sliding_windows_keep_no_more_than_the_window_and_a_batch(llama: GgufFacts) -> None:
    facts = _with(llama, "gpt-oss", attention__sliding_window=128)
    row = 2 * row_bytes("f16", 128)
    full, window = 32768 * row, 768 * row
    assert _host(facts, ModelLoad(32768, ONE), "KV cache") == full + 2 * window
    assert _host(facts, ModelLoad(32768, ONE, full_window=True), "KV cache") == 3 * full


def test_an_unknown_architecture_counts_in_full_and_is_not_exact(llama: GgufFacts) -> None:
    found = _of(_with(llama, "brandnew"), ModelLoad(4096, ONE))
    assert (found.exact, found.host) == (False, _of(llama, ModelLoad(4096, ONE)).host)
    assert estimate(replace(llama, values={}), ModelLoad(4096, ONE)) is None


def test_snapshots_are_kept_only_where_model_and_type_can_use_them() -> None:
    assert snapshots_of("qwen35", ["draft-mtp"], 6) == 6
    assert snapshots_of("qwen35", ["draft-simple", "ngram-mod"], 6) == 0
    assert snapshots_of("mamba", ["draft-eagle3"], 6) == 0


@pytest.mark.parametrize(
    ("context", "parallel", "cells"),
    [(4096, 1, 4096), (5000, 3, 1792), (100, 1, 256), (3, 16, 256), (8192, -1, 8192)],
)
def test_a_cache_is_shared_out_and_rounded_up(context: int, parallel: int, cells: int) -> None:
    assert cells_of(context, slots_of(parallel, unified=False), 32768) == cells


def test_the_shape_says_what_each_layer_remembers(llama: GgufFacts, tmp_path: Path) -> None:
    lfm2 = _shape(read_facts(tiny.write_lfm2(tmp_path / "a.gguf")))
    assert [(layer.key > 0, layer.state_bytes > 0) for layer in lfm2.layers] == [(False, True)] * 2 + [(True, False)]
    qwen = _shape(read_facts(tiny.write_qwen35(tmp_path / "b.gguf", heads_too=True)))
    assert ([layer.key > 0 for layer in qwen.layers], len(qwen.heads)) == ([False] * 3 + [True], 1)
    mamba = _shape(read_facts(tiny.write_mamba(tmp_path / "c.gguf")))
    assert (mamba.recurrent, any(layer.key for layer in mamba.layers)) == (True, False)
    # Multi-head latent attention has no cache of values.
    values = {"attention__key_length_mla": 192, "attention__key_length": 576, "attention__head_count_kv": 1}
    latent = _shape(_with(llama, "deepseek2", **values))
    assert {(layer.key, layer.value) for layer in latent.layers} == {(576, 0)}
    windows = _shape(_with(llama, "gpt-oss", attention__sliding_window=128))
    assert [layer.window for layer in windows.layers] == [128, None, 128]
    # A pattern in the header wins over the architecture's own.
    facts = _with(llama, "gemma3", attention__sliding_window=512)
    listed = _shape(replace(facts, arrays={"gemma3.attention.sliding_window_pattern": (True, False, True)}))
    assert [layer.window for layer in listed.layers] == [512, None, 512]


@given(
    free=st.integers(0, 2**33),
    slots=st.sampled_from([slots_of(1), slots_of(3), slots_of(-1)]),
    kind=st.sampled_from(["f16", "q8_0"]),
    layers=st.sampled_from([0, ALL_LAYERS]),
    headroom=st.sampled_from([HEADROOM, HEADROOM_WITH_MTP]),
)
def test_the_largest_context_fits_and_a_step_more_does_not(
    llama: GgufFacts, free: int, slots: SlotLayout, kind: str, layers: int, headroom: float
) -> None:
    load = ModelLoad(256, slots, kind, kind, gpu_layers=layers)
    streams = 1 if slots.unified else slots.sequences
    most = fit_context(llama, load, free, headroom=headroom, draft=llama, draft_load=load)

    def needed(context: int) -> float:
        model_load = replace(load, cells=context // streams)
        found = together(llama, model_load, llama, model_load)
        assert found is not None
        return found.gpu + GPU_OVERHEAD if layers else found.host

    assert most % (256 * streams) == 0
    assert most <= 32768 * streams
    assert most == 0 or needed(most) <= free * headroom
    assert most == 32768 * streams or needed(most + 256 * streams) > free * headroom


def test_the_trained_context_and_what_gpus_take_beside_the_model_bound_the_largest(llama: GgufFacts) -> None:
    for trained, most in ((1000, 768), (100, 256), (32768, 32768)):
        facts = replace(llama, context_length=trained)
        assert fit_context(facts, ModelLoad(256, ONE), 2**40, headroom=1.0) == most
    load = ModelLoad(256, ONE, gpu_layers=ALL_LAYERS)
    found = [fit_context(llama, load, GPU_OVERHEAD + 2**24, headroom=1.0, gpus=count) for count in (1, 2)]
    assert found[0] > found[1] == 0


def test_the_own_prediction_layers_have_a_context_of_16_bit_floats(tmp_path: Path) -> None:
    facts = read_facts(tiny.write_qwen35(tmp_path / "q.gguf", heads_too=True))
    for heads, caches in ((True, [4096 * 2 * 128 * 2]), (False, [])):
        found = together(facts, ModelLoad(4096, ONE, "q8_0", "q8_0", heads=heads))
        assert found is not None
        assert [p.host for p in found.parts if (p.model, p.what) == ("draft", "KV cache")] == caches

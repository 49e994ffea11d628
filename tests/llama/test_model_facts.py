"""What a GGUF file is: against the gguf package, and as an operator would ask."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from msgspec.structs import replace

from specdash.core.speculation import MemoryKind, Rollback
from specdash.llama.gguf import GgufError, read_facts
from specdash.llama.model_facts import FileKind, ModelFacts, describe
from support import gguf_files as files
from support import tiny_models as tiny

WRITERS: dict[str, Callable[[Path], Path]] = {
    "llama": lambda path: tiny.write_llama(path, layers=2),
    "mamba": tiny.write_mamba,
    "lfm2": tiny.write_lfm2,
    "heads": lambda path: tiny.write_qwen35(path, heads_too=True),
    "dflash": tiny.write_dflash,
    "dspark": tiny.write_dspark,
    "eagle3": tiny.write_eagle3,
    "model": files.write_model,
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("facts")
    return {name: write(folder / f"{name}.gguf") for name, write in WRITERS.items()}


def _of(path: Path) -> ModelFacts:
    return describe(read_facts(path))


@pytest.mark.parametrize("name", WRITERS)
def test_parameters_sizes_and_types_are_those_the_gguf_package_reads(name: str, paths: dict[str, Path]) -> None:
    theirs = gguf.GGUFReader(str(paths[name])).tensors
    facts = read_facts(paths[name])
    found = describe(facts)
    assert found.parameters == sum(int(entry.n_elements) for entry in theirs)
    assert found.size == sum(int(entry.n_bytes) for entry in theirs)
    assert [(tensor.name, tensor.size, tensor.kind, tensor.shape) for tensor in facts.tensors] == [
        (entry.name, int(entry.n_bytes), int(entry.tensor_type), tuple(map(int, entry.shape))) for entry in theirs
    ]
    assert sum(row.tensors for row in found.types) == len(theirs)
    assert sum(row.share for row in found.types) == pytest.approx(1)
    assert {row.name for row in found.types} == {entry.tensor_type.name for entry in theirs}


MATRICES = {"output.weight": (14, (256, 64)), "blk.0.ffn_up.weight": (12, (256, 512)), "norm.weight": (0, (256,))}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "mostly Q4_K"),
        ({"general.file_type": 15}, "Q4_K_M"),
        ({"general.file_type": 14}, "Q4_K_S"),
        ({"general.file_type": 1024 + 15}, "Q4_K_M"),
        ({"general.file_type": 999}, "mostly Q4_K"),
        ({"general.file_type": 7}, "mostly Q4_K"),
    ],
)
def test_the_quantisation_is_the_declared_one_where_the_tensors_bear_it_out(
    values: dict[str, Any], said: str, tmp_path: Path
) -> None:
    found = _of(files.write_gguf(tmp_path / "x.gguf", "llama", values, MATRICES))
    assert found.quantisation == said
    assert [row.name for row in found.types] == ["Q4_K", "Q6_K", "F32"]


@pytest.mark.parametrize(
    ("name", "memory", "gives", "backs"),
    [
        ("llama", MemoryKind.ATTENTION, False, {Rollback.CUT}),
        ("mamba", MemoryKind.RECURRENT, False, {Rollback.CHECKPOINT}),
        ("lfm2", MemoryKind.HYBRID, True, {Rollback.CHECKPOINT, Rollback.STATE}),
        ("heads", MemoryKind.HYBRID, True, {Rollback.CHECKPOINT, Rollback.STATE}),
    ],
)
def test_the_memory_says_how_each_type_takes_its_drafts_back(
    name: str, memory: MemoryKind, gives: bool, backs: set[Rollback], paths: dict[str, Path]
) -> None:
    found = _of(paths[name])
    assert (found.memory, found.gives_states) == (memory, gives)
    assert {row.takes_back for row in found.spec_types} == backs


def test_a_sliding_window_is_a_memory_of_its_own(tmp_path: Path) -> None:
    values = {".block_count": 6, ".attention.sliding_window": 1024}
    found = _of(files.write_model(tmp_path / "x.gguf", architecture="gemma3", values=values))
    assert (found.memory, found.window) == (MemoryKind.WINDOW, 1024)


def test_which_types_fit_and_what_the_others_need(paths: dict[str, Path]) -> None:
    plain = {row.name: (row.fits, row.because) for row in _of(paths["llama"]).spec_types}
    assert plain["ngram-mod"] == (True, "nothing")
    assert plain["draft-simple"][0] is None
    assert plain["draft-mtp"] == (False, "it has no prediction (nextn) layers; a draft file that has them would do")
    heads = {row.name: (row.fits, row.because) for row in _of(paths["heads"]).spec_types}
    assert heads["draft-mtp"][0] is True
    assert "under 2B parameters" in heads["draft-mtp"][1]
    assert not _of(paths["mamba"]).spec_types[6].fits
    assert _of(paths["dflash"]).spec_types == ()


@pytest.mark.parametrize(
    ("name", "method", "spec_type", "block", "longest", "layers"),
    [
        ("dflash", "DFlash", "draft-dflash", 8, 7, (0, 1)),
        ("dspark", "DSpark", "draft-dspark", 8, 8, (0, 1)),
        ("eagle3", "EAGLE-3", "draft-eagle3", None, None, (0, 1, 2)),
    ],
)
def test_a_draft_says_what_it_needs(
    name: str,
    method: str,
    spec_type: str,
    block: int | None,
    longest: int | None,
    layers: tuple[int, ...],
    paths: dict[str, Path],
) -> None:
    found = _of(paths[name])
    needs = found.draft_needs
    assert needs is not None
    assert (needs.method, needs.spec_type, needs.block_size, needs.longest_draft) == (method, spec_type, block, longest)
    assert (needs.target_layers, needs.target_width) == (layers, tiny.WIDTH)
    assert found.kind is FileKind.DRAFT
    assert found.refusal is not None
    assert method in found.refusal


@pytest.mark.parametrize(
    ("draft", "spec_type"), [("llama", "draft-simple"), ("dspark", "draft-dspark"), ("eagle3", "draft-eagle3")]
)
def test_a_pair_is_judged_for_the_type_its_draft_is_for(draft: str, spec_type: str, paths: dict[str, Path]) -> None:
    model = read_facts(paths["lfm2"])
    pair = describe(model, read_facts(paths[draft])).pair
    assert pair is not None
    assert (pair.spec_type, pair.fits) == (spec_type, True)


def test_a_pair_that_does_not_fit_says_why(paths: dict[str, Path]) -> None:
    found = describe(read_facts(paths["mamba"]), read_facts(paths["eagle3"]))
    assert found.pair is not None
    assert not found.pair.fits
    row = next(row for row in found.spec_types if row.name == "draft-eagle3")
    assert (row.fits, row.because) == (False, found.pair.misfits[0].said)


OTHERS: list[tuple[Callable[[Path], Path], FileKind, str]] = [
    (files.write_projector, FileKind.PROJECTOR, "is a multimodal projector, no model; load it beside"),
    (files.write_adapter, FileKind.ADAPTER, "is a LoRA adapter, no model; load it beside its model with --lora"),
    (files.write_imatrix, FileKind.IMATRIX, "is an importance matrix, no model; llama-quantize reads it"),
    (files.write_control_vector, FileKind.CONTROL_VECTOR, "is a control vector, no model"),
    (files.write_vocabulary, FileKind.VOCABULARY, "is a vocabulary without weights, no model"),
]


@pytest.mark.parametrize(("write", "kind", "said"), OTHERS)
def test_what_accompanies_a_model_is_named_and_refused(
    write: Callable[[Path], Path], kind: FileKind, said: str, tmp_path: Path
) -> None:
    found = _of(write(tmp_path / "x.gguf"))
    assert (found.kind, found.generates, found.spec_types) == (kind, False, ())
    assert found.refusal is not None
    assert found.refusal.startswith(said)
    assert _of(files.write_model(tmp_path / "model.gguf")).refusal is None


def test_an_architecture_of_nobody_is_a_remark(tmp_path: Path) -> None:
    found = _of(files.write_model(tmp_path / "x.gguf", architecture="llama9"))
    assert "the architecture 'llama9' is unknown to b11434" in found.remarks[0]
    assert not found.known_architecture


def test_a_model_in_parts_is_read_whole(tmp_path: Path) -> None:
    tensors = {f"blk.{n}.attn_q.weight": (0, (256, 4)) for n in range(5)}
    whole = _of(files.write_model(tmp_path / "whole.gguf", tensors=tensors))
    first = files.write_gguf(tmp_path / "big.gguf", "llama", {".block_count": 1}, tensors, parts=2)
    found = _of(first)
    assert (found.parts, found.parameters, found.size) == (3, whole.parameters, whole.size)
    assert found.file_bytes == sum(path.stat().st_size for path in tmp_path.glob("big-*"))


def test_missing_parts_are_named_and_a_later_part_names_the_first(tmp_path: Path) -> None:
    tensors = {f"blk.{n}.attn_q.weight": (0, (256, 4)) for n in range(5)}
    first = files.write_gguf(tmp_path / "big.gguf", "llama", {}, tensors, parts=2)
    with pytest.raises(GgufError, match=r"is part 2 of 3 of a model; name .*/big-00001-of-00003\.gguf"):
        read_facts(tmp_path / "big-00002-of-00003.gguf")
    other = first.rename(tmp_path / "renamed.gguf")
    with pytest.raises(GgufError, match=r"the first of 3 files, and its name must end in -00001-of-00003\.gguf"):
        read_facts(other)
    other.rename(first)
    (tmp_path / "big-00003-of-00003.gguf").write_bytes((tmp_path / "big-00002-of-00003.gguf").read_bytes()[:-50])
    with pytest.raises(GgufError, match=r"big-00003-of-00003\.gguf: truncated"):
        read_facts(first)
    (tmp_path / "big-00003-of-00003.gguf").unlink()
    with pytest.raises(GgufError, match=r"split into 3 files, and 1 of them missing: .*big-00003-of-00003\.gguf"):
        read_facts(first)


def test_experts_are_told(paths: dict[str, Path]) -> None:
    facts = read_facts(paths["llama"])
    mixed = replace(facts, values={**facts.values, "llama.expert_count": 128, "llama.expert_used_count": 8})
    assert describe(mixed).experts == (8, 128)
    assert describe(facts).experts is None


@pytest.mark.parametrize("name", ["dflash", "dspark", "eagle3"])
def test_a_draft_of_other_words_is_a_warning_where_the_engine_compares_none(
    name: str, paths: dict[str, Path], tmp_path: Path
) -> None:
    model = read_facts(tiny.write_llama(tmp_path / "model.gguf", layers=3))
    draft = tmp_path / "draft.gguf"
    draft.write_bytes(paths[name].read_bytes().replace("▁large".encode(), "▁zebra".encode()))
    pair = describe(model, read_facts(draft)).pair
    assert pair is not None
    assert pair.fits
    assert [(row.rule, row.severity) for row in pair.misfits] == [("vocabulary", "warning")]
    assert "token 280 is '▁zebra', in the model '▁large'" in pair.misfits[0].said
    same = describe(model, read_facts(paths[name])).pair
    assert same is not None
    assert same.misfits == ()


def test_prediction_layers_of_another_width_are_an_error(paths: dict[str, Path], tmp_path: Path) -> None:
    values = {".nextn_predict_layers": 1, ".embedding_length": 256}
    wide = files.write_model(tmp_path / "wide.gguf", architecture="qwen35", values=values)
    pair = describe(read_facts(paths["lfm2"]), read_facts(wide)).pair
    assert pair is not None
    assert (pair.spec_type, pair.fits) == ("draft-mtp", False)
    assert "made for a model of width 256, this one has 128; the server would abort" in pair.misfits[0].said
    assert describe(read_facts(paths["heads"]), read_facts(paths["heads"])).pair == replace(
        pair, draft=str(paths["heads"]), misfits=()
    )

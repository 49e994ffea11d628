"""What a GGUF file is, as an operator would ask: against the gguf package, and against what drafts for it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from msgspec.structs import replace

from specdash.core.speculation import MemoryKind, Rollback
from specdash.llama.draft_fit import misfit
from specdash.llama.gguf import GgufFacts, read_facts
from specdash.llama.model_facts import FileKind, ModelFacts, describe
from support import gguf_files as files
from support import tiny_models as tiny
from support.tiny_models import TOKENS

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
def read(tmp_path_factory: pytest.TempPathFactory) -> dict[str, GgufFacts]:
    folder = tmp_path_factory.mktemp("facts")
    return {name: read_facts(write(folder / f"{name}.gguf")) for name, write in WRITERS.items()}


def model(folder: Path, **more: Any) -> ModelFacts:
    return describe(read_facts(files.write_model(folder / "x.gguf", **more)))


@pytest.mark.parametrize("name", WRITERS)
def test_parameters_sizes_and_types_are_those_the_gguf_package_reads(name: str, read: dict[str, GgufFacts]) -> None:
    facts = read[name]
    theirs, found = gguf.GGUFReader(facts.path).tensors, describe(facts)
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
    ("declared", "quantisation"),
    [(None, "mostly Q4_K"), (15, "Q4_K_M"), (14, "Q4_K_S"), (1024 + 15, "Q4_K_M"), (999, "mostly Q4_K"),
     (7, "mostly Q4_K")],
)  # fmt: skip
def test_the_quantisation_is_the_declared_one_where_the_tensors_bear_it_out(
    declared: int | None, quantisation: str, tmp_path: Path
) -> None:
    found = model(tmp_path, values={} if declared is None else {"general.file_type": declared}, tensors=MATRICES)
    assert found.quantisation == quantisation
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
    name: str, memory: MemoryKind, gives: bool, backs: set[Rollback], read: dict[str, GgufFacts]
) -> None:
    found = describe(read[name])
    assert (found.memory, found.gives_states) == (memory, gives)
    assert {row.takes_back for row in found.spec_types} == backs


def test_what_the_header_alone_says(read: dict[str, GgufFacts], tmp_path: Path) -> None:
    window = model(tmp_path, architecture="gemma3", values={".block_count": 6, ".attention.sliding_window": 1024})
    assert (window.memory, window.window) == (MemoryKind.WINDOW, 1024)
    unknown = model(tmp_path, architecture="llama9")
    assert "the architecture 'llama9' is unknown to b11434" in unknown.remarks[0]
    assert (unknown.known_architecture, unknown.experts) == (False, None)
    facts = read["llama"]
    mixed = replace(facts, values={**facts.values, "llama.expert_count": 128, "llama.expert_used_count": 8})
    assert describe(mixed).experts == (8, 128)


def test_which_types_fit_and_what_the_others_need(read: dict[str, GgufFacts]) -> None:
    plain = {row.name: (row.fits, row.because) for row in describe(read["llama"]).spec_types}
    assert plain["ngram-mod"] == (True, "nothing")
    assert plain["draft-simple"][0] is None
    assert plain["draft-mtp"] == (False, "it has no prediction (nextn) layers; a draft file that has them would do")
    heads = {row.name: (row.fits, row.because) for row in describe(read["heads"]).spec_types}
    assert heads["draft-mtp"][0] is True
    assert "under 2B parameters" in heads["draft-mtp"][1]
    assert not describe(read["mamba"]).spec_types[6].fits
    assert describe(read["dflash"]).spec_types == ()


@pytest.mark.parametrize(
    ("name", "method", "block", "longest", "layers"),
    [
        ("dflash", "DFlash", 8, 7, (0, 1)),
        ("dspark", "DSpark", 8, 8, (0, 1)),
        ("eagle3", "EAGLE-3", None, None, (0, 1, 2)),
    ],
)
def test_a_draft_says_what_it_needs_and_fits_its_target(
    name: str, method: str, block: int | None, longest: int | None, layers: tuple[int, ...], read: dict[str, GgufFacts]
) -> None:
    found = describe(read[name])
    needs = found.draft_needs
    assert needs is not None
    assert (needs.method, needs.spec_type, needs.block_size) == (method, f"draft-{name}", block)
    assert (needs.longest_draft, needs.target_layers, needs.target_width) == (longest, layers, tiny.WIDTH)
    assert found.kind is FileKind.DRAFT
    assert method in (found.refusal or "")
    pair = describe(read["lfm2"], read[name]).pair
    assert pair is not None
    assert (pair.spec_type, pair.fits) == (needs.spec_type, True)


def test_a_pair_that_does_not_fit_says_why(read: dict[str, GgufFacts], tmp_path: Path) -> None:
    found = describe(read["mamba"], read["eagle3"])
    assert found.pair is not None
    assert not found.pair.fits
    row = next(row for row in found.spec_types if row.name == "draft-eagle3")
    assert (row.fits, row.because) == (False, found.pair.misfits[0].said)
    values = {".nextn_predict_layers": 1, ".embedding_length": 256}
    wide = read_facts(files.write_model(tmp_path / "wide.gguf", architecture="qwen35", values=values))
    pair = describe(read["lfm2"], wide).pair
    assert pair is not None
    assert (pair.spec_type, pair.fits) == ("draft-mtp", False)
    assert "made for a model of width 256, this one has 128; the server would abort" in pair.misfits[0].said
    plain = describe(read["lfm2"], read["llama"]).pair
    assert plain is not None
    assert (plain.spec_type, plain.fits) == ("draft-simple", True)
    own = describe(read["heads"], read["heads"]).pair
    assert own == replace(pair, draft=read["heads"].path, misfits=())


OTHERS: list[tuple[Callable[[Path], Path], FileKind, str]] = [
    (files.write_projector, FileKind.PROJECTOR, "is a multimodal projector, no model; load it beside"),
    (files.write_adapter, FileKind.ADAPTER, "is a LoRA adapter, no model; load it beside its model with --lora"),
    (files.write_imatrix, FileKind.IMATRIX, "is an importance matrix, no model; llama-quantize reads it"),
    (files.write_control_vector, FileKind.CONTROL_VECTOR, "is a control vector, no model"),
    (files.write_vocabulary, FileKind.VOCABULARY, "is a vocabulary without weights, no model"),
]


@pytest.mark.parametrize(("write", "kind", "words"), OTHERS)
def test_what_accompanies_a_model_is_named_and_refused(
    write: Callable[[Path], Path], kind: FileKind, words: str, read: dict[str, GgufFacts], tmp_path: Path
) -> None:
    found = describe(read_facts(write(tmp_path / "x.gguf")))
    assert (found.kind, found.generates, found.spec_types) == (kind, False, ())
    assert (found.refusal or "").startswith(words)
    assert describe(read["model"]).refusal is None


@pytest.mark.parametrize("name", ["dflash", "dspark", "eagle3"])
def test_a_draft_of_other_words_is_a_warning_where_the_engine_compares_none(
    name: str, read: dict[str, GgufFacts], tmp_path: Path
) -> None:
    target = read_facts(tiny.write_llama(tmp_path / "model.gguf", layers=3))
    draft = tmp_path / "draft.gguf"
    draft.write_bytes(Path(read[name].path).read_bytes().replace("▁large".encode(), "▁zebra".encode()))
    other, same = describe(target, read_facts(draft)).pair, describe(target, read[name]).pair
    assert other is not None
    assert same is not None
    assert [(row.rule, row.severity) for row in other.misfits] == [("vocabulary", "warning")]
    assert "token 280 is '▁zebra', in the model '▁large'" in other.misfits[0].said
    assert (other.fits, same.fits, same.misfits) == (True, True, ())


def changed(at: int, text: str) -> list[str]:
    return [*TOKENS[:at], text, *TOKENS[at + 1 :]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, None),
        ({"tokens": changed(3, "<other>")}, None),
        ({"tokens": [*changed(3, "<longer than before>"), "x"]}, None),
        ({"tokens": changed(5, "x")}, "token 5 is 'x', in the model '<0x01>'"),
        ({"tokens": changed(280, "▁zebra")}, "token 280 is '▁zebra', in the model '▁large'"),
        ({"tokens": [*TOKENS, *(f"<{n}>" for n in range(128))]}, None),
        ({"tokens": [*TOKENS, *(f"<{n}>" for n in range(129))]}, "its vocabulary has 449 tokens, the model's 320"),
        ({"tokenizer": "gpt2"}, "its tokenizer is 'gpt2', the model's 'llama'"),
        ({"add_bos": True}, None),
        ({"add_eos": True}, "it adds the EOS token, the model does not add it"),
        ({"bos": 2}, "its BOS token is 2, the model's 1"),
        ({"bos": 2, "add_bos": False}, "it does not add the BOS token, the model adds it"),
    ],
)
def test_the_first_difference_between_vocabularies_is_named(
    options: dict[str, Any], words: str | None, tmp_path: Path
) -> None:
    target = read_facts(tiny.write_llama(tmp_path / "target.gguf"))
    assert misfit(target, read_facts(tiny.write_variant(tmp_path / "draft.gguf", **options))) == words


TUNE, NAME, BASE_OF = "general.finetune", "general.name", "general.base_model.0.name"


@pytest.mark.parametrize(
    ("values", "template", "verdict", "reason"),
    [
        ({TUNE: "Instruct"}, True, "instruct", "general.finetune is 'Instruct'"),
        ({TUNE: "it"}, False, "instruct", "general.finetune is 'it'"),
        ({TUNE: "Base"}, True, "base", "it has a chat template, as some base models do"),
        ({TUNE: "pt"}, False, "base", "general.finetune is 'pt'"),
        ({NAME: "Qwen3 8B Base"}, True, "base", "general.name is 'Qwen3 8B Base'"),
        ({NAME: "Meta-Llama-3-8B-Instruct"}, True, "instruct", "general.name is"),
        ({TUNE: "Coder-Instruct", NAME: "Db Base"}, True, "instruct", "'Db Base', which says base"),
        ({TUNE: "abliterated"}, True, "instruct", "it has a chat template"),
        ({NAME: "Databases for everyone"}, False, "unknown", "it has no chat template"),
        ({BASE_OF: "Qwen3 8B Base"}, True, "instruct", "it has a chat template"),
        ({BASE_OF: "Qwen3 8B Instruct"}, False, "unknown", "it has no chat template"),
    ],
)
def test_names_decide_base_or_instruct_then_the_chat_template(
    values: dict[str, str], template: bool, verdict: str, reason: str, tmp_path: Path
) -> None:
    found = model(tmp_path, values=values, template=template)
    assert found.tuning == verdict
    assert any(reason in name for name in found.tuning_reasons), found.tuning_reasons


def test_the_words_of_a_t5_models_name_are_its_size(tmp_path: Path) -> None:
    assert model(tmp_path, architecture="t5", values={NAME: "Flan T5 Base"}).tuning == "unknown"

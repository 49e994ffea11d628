"""GGUF headers: what is read of a file, and the one line a user gets for one that is none, is not whole, or lies."""

import contextlib
import os
import struct
import tracemalloc
from pathlib import Path

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.core.errors import ExitCode
from specdash.llama.gguf import FILE_TYPES, GUESSED, TENSOR_TYPES, GgufError, GgufHeader, read_facts
from specdash.llama.memory import ALL_LAYERS, ModelLoad, fit_context, slots_of
from specdash.llama.model_facts import describe
from support import tiny_models as tiny
from support.gguf_files import header, pair, tensor, write_gemma3, write_gguf, write_model

U32, TEXT, ARRAY = 4, 8, 9
HUGE = 2**60
FIVE = {f"blk.{n}.attn_q.weight": (0, (256, 4)) for n in range(5)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_llama(tmp_path_factory.mktemp("gguf") / "model.gguf", layers=2)


def test_the_header_says_what_the_model_is(model: Path) -> None:
    facts = read_facts(model)
    assert (facts.version, facts.architecture, facts.name) == (3, "llama", "tiny llama")
    assert (facts.context_length, facts.block_count, facts.nextn_layers) == (32768, 2, None)
    assert (facts.tokenizer, facts.vocabulary_size, facts.has_chat_template) == ("llama", len(tiny.TOKENS), True)
    assert facts.bytes_needed == facts.file_bytes == model.stat().st_size


def test_the_pairs_and_the_tensors_are_where_the_header_says(model: Path) -> None:
    found = GgufHeader(model.read_bytes(), "model.gguf")
    found.read()
    reader = gguf.GGUFReader(model)
    fields = [field for key, field in reader.fields.items() if not key.startswith("GGUF.")]
    assert found.spans == {
        field.name: (field.offset, field.offset + sum(part.nbytes for part in field.parts)) for field in fields
    }
    assert found.data_start == reader.data_offset == min(tensor.data_offset for tensor in reader.tensors)
    assert found.alignment == reader.alignment


@pytest.mark.parametrize("kept", [0.99, 0.5, 0.01, 0.0001])
def test_a_file_cut_anywhere_is_called_truncated(model: Path, tmp_path: Path, kept: float) -> None:
    data = model.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(data[: max(5, int(len(data) * kept))])
    with pytest.raises(GgufError, match=r"cut\.gguf: truncated.*download it again"):
        read_facts(cut)


BAD: list[tuple[bytes, str]] = [
    (b"", "is empty"),
    (b"root:x:0:0\n", r"is no GGUF file \(it starts with b'root'"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "but a Git LFS pointer; run `git lfs pull`"),
    (b"\n<html>", "but a web page"),
    (b"PK\x03\x04" + bytes(60), "ZIP archive or a PyTorch checkpoint"),
    (struct.pack("<Q", 1000) + b'{"__metadata__":', "but a safetensors file"),
    (b"GGUF" + struct.pack(">IQQ", 3, 1, 1), "GGUF version 50331648 is not supported, only little-endian"),
    (header(version=1), "GGUF version 1 is not supported.*convert it again"),
    (header(version=4), "GGUF version 4 is not supported"),
    (header(count=HUGE) + bytes(9), "truncated inside its header"),
    (header(pairs=[pair("a", 99, b"\1")]), "unknown value type 99"),
    (header(pairs=[pair("a", ARRAY, struct.pack("<IQ", 10, HUGE))]), "truncated inside"),
    (header(pairs=[pair("a", ARRAY, struct.pack("<IQ", 9, 1))]), "unknown array type 9 for 'a'"),
    (header(pairs=[pair("a", TEXT, b"\xff" * 8)]), "truncated inside"),
    (header(pairs=[pair("\x1b[2J", 99, b"\1")]), "unknown value type 99 for '.\\[2J'"),
    (header(pairs=[pair("general.alignment", U32, struct.pack("<I", 48))]), "alignment 48 is not a power of 2"),
    (header(tensors=[tensor("t", [1] * 5, 0, 0)]), "has 5 dimensions"),
    (header(tensors=[tensor("t", [2**40, 2**40], 0, 0)]), "has the shape 10995"),
    (header(tensors=[tensor("a", [8], 0, 2**63)]), r"truncated, \d+ of 9223\d+ bytes are there"),
    (header(tensors=[tensor("t", [100], 12, 0)]), "has rows of 100, and Q4_K comes in blocks of 256"),
    (header(tensors=[tensor("t", [2**40], 0, 0)]), r"truncated, \d+ of 4398046511\d+ bytes are there"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "words"), BAD, ids=[words for _, words in BAD])
def test_a_file_that_is_no_model_or_lies_is_refused_in_one_line_and_takes_no_memory(
    content: bytes, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(GgufError, match=words) as caught:
            read_facts(path)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert caught.value.exit_code is ExitCode.BAD_INPUT
    assert str(caught.value).startswith(f"model {path}: ")
    assert str(caught.value).isprintable()


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    paths = {
        tmp_path / "absent.gguf": "no such file",
        tmp_path: "is no regular file",
        tmp_path / "pipe": "is no regular file",
        Path("/dev/zero"): "is no regular file",
        Path("a\0b"): "cannot be read",
    }
    for path, words in paths.items():
        with pytest.raises(GgufError, match=words):
            read_facts(path)


def test_a_type_of_a_fork_is_no_error_and_judges_no_length(tmp_path: Path) -> None:
    path = tmp_path / "fork.gguf"
    path.write_bytes(header(tensors=[tensor("a", [256], 137, 0), tensor("b", [8], 0, 512)]) + bytes(999))
    facts = read_facts(path)
    assert [item.size for item in facts.tensors] == [0, 32]
    assert "tensor types 137 are unknown to b11434" in describe(facts).remarks[0]


def test_the_types_are_those_of_the_gguf_package() -> None:
    sizes = {int(kind): size for kind, size in gguf.GGML_QUANT_SIZES.items()}
    ours = {kind: (known.per_block, known.block_bytes) for kind, known in TENSOR_TYPES.items()}
    # The package's Q8_1 is of 2023; ggml says 36 bytes. Q2_0 is newer than the package.
    assert {kind: size for kind, size in ours.items() if sizes.get(kind) != size} == {9: (32, 36), 42: (64, 18)}
    names = {int(kind): kind.name for kind in gguf.GGMLQuantizationType}
    assert {kind: known.name for kind, known in TENSOR_TYPES.items() if kind != 42} == names
    files = {int(kind): kind.name.removeprefix("MOSTLY_").removeprefix("ALL_") for kind in gguf.LlamaFileType}
    assert {number: name for number, name in FILE_TYPES.items() if number != 41} == {
        number: name for number, name in files.items() if number != GUESSED
    }


def test_a_file_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", "llama", {}, FIVE)
    assert read_facts(str(path)).architecture == "llama"
    write_gguf(tmp_path / "other.gguf", "qwen2", {}, FIVE).replace(path)
    assert read_facts(str(path)).architecture == "qwen2"


def test_a_model_in_parts_is_read_whole(tmp_path: Path) -> None:
    whole = describe(read_facts(write_model(tmp_path / "whole.gguf", tensors=FIVE)))
    found = describe(read_facts(write_gguf(tmp_path / "big.gguf", "llama", {".block_count": 1}, FIVE, parts=2)))
    assert (found.parts, found.parameters, found.size) == (3, whole.parameters, whole.size)
    assert found.file_bytes == sum(path.stat().st_size for path in tmp_path.glob("big-*"))


def test_missing_parts_are_named_at_once_and_a_later_part_names_the_first(tmp_path: Path) -> None:
    first = write_gguf(tmp_path / "big.gguf", "llama", {}, FIVE, parts=2)
    second, third = (tmp_path / f"big-0000{number}-of-00003.gguf" for number in (2, 3))

    def refused(path: Path, words: str) -> None:
        with pytest.raises(GgufError, match=words):
            read_facts(path)

    assert read_facts(first).parts == 3
    refused(second, r"is part 2 of 3 of a model; name .*/big-00001-of-00003\.gguf")
    other = first.rename(tmp_path / "renamed.gguf")
    refused(other, r"the first of 3 files, and its name must end in -00001-of-00003\.gguf")
    other.rename(first)
    third.write_bytes(second.read_bytes()[:-50])
    refused(first, r"big-00003-of-00003\.gguf: truncated")
    third.unlink()
    refused(first, r"split into 3 files, and 1 of them missing: .*big-00003-of-00003\.gguf")


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("seeds")
    made = [
        tiny.write_llama(folder / "llama.gguf"),
        tiny.write_qwen35(folder / "qwen35.gguf", heads_too=True),
        tiny.write_mamba(folder / "mamba.gguf"),
        tiny.write_dflash(folder / "dflash.gguf"),
        write_gemma3(folder / "gemma3.gguf"),
    ]
    return [path.read_bytes()[:20_000] for path in made]


NUMBERS = st.sampled_from([0, 1, 2, 7, 8, 9, 12, 127, 255, 2**16, 2**31, 2**32 - 1, 2**40, 2**60, 2**63, 2**64 - 1])
NEW = st.binary(min_size=1, max_size=9) | NUMBERS.map(lambda number: struct.pack("<Q", number))
PLACES = st.integers(4, 1500) | st.integers(4, 20_000)


@given(which=st.integers(0, 4), changes=st.lists(st.tuples(PLACES, NEW), min_size=1, max_size=6))
def test_a_damaged_header_is_read_or_refused_and_nothing_else(
    which: int, changes: list[tuple[int, bytes]], seeds: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = bytearray(seeds[which])
    for at, new in changes:
        data[at : at + len(new)] = new
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(bytes(data))
    with path.open("r+b") as file:
        file.truncate(50_000_000)
    _read_and_judge(path)


def _read_and_judge(path: Path) -> None:
    """Read it; what can be read can be described, and its memory estimated."""
    with contextlib.suppress(GgufError):
        facts = read_facts(path)
        describe(facts, facts)
        for on_gpu in (0, ALL_LAYERS):
            fit_context(facts, ModelLoad(256, slots_of(1), gpu_layers=on_gpu, heads=True), 2**34, headroom=0.9)


KEYS = (
    *("block_count", "embedding_length", "feed_forward_length", "nextn_predict_layers", "context_length"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.sliding_window"),
    *("attention.sliding_window_pattern", "full_attention_interval", "ssm.conv_kernel", "ssm.inner_size", "block_size"),
    *("ssm.state_size", "ssm.group_count", "shortconv.l_cache", "wkv.head_size", "kda.head_dim", "target_layers"),
    *("expert_count", "expert_used_count", "attention.chunk_size", "target_hidden_size", "token_shift_count"),
)
ARCHITECTURES = ("llama", "gemma3", "llama4", "mamba", "rwkv7", "qwen35", "nemotron_h", "lfm2", "falcon-h1", "dflash")
VALUES = st.one_of(
    st.integers(0, 2**64 - 1).map(lambda n: (10, struct.pack("<Q", n))),
    st.integers(0, 70).map(lambda n: (U32, struct.pack("<I", n))),
    st.integers(-(2**31), 2**31 - 1).map(lambda n: (5, struct.pack("<i", n))),
    st.floats(width=32).map(lambda n: (6, struct.pack("<f", n))),
    st.text("ab", max_size=9).map(lambda t: (TEXT, struct.pack("<Q", len(t)) + t.encode())),
    st.lists(st.integers(-5, 300), max_size=70).map(lambda ns: (ARRAY, struct.pack(f"<IQ{len(ns)}i", 5, len(ns), *ns))),
)


@given(st.sampled_from(ARCHITECTURES), st.dictionaries(st.sampled_from(KEYS), VALUES), st.integers(0, 70))
def test_numbers_that_no_model_has_are_judged_without_a_fault(
    tmp_path_factory: pytest.TempPathFactory, architecture: str, values: dict[str, tuple[int, bytes]], layers: int
) -> None:
    named = architecture.encode()
    usual = {"block_count": (U32, struct.pack("<I", layers)), "embedding_length": (U32, struct.pack("<I", 64))}
    pairs = [pair("general.architecture", TEXT, struct.pack("<Q", len(named)) + named)]
    pairs += [pair(f"{architecture}.{key}", kind, value) for key, (kind, value) in {**usual, **values}.items()]
    path = tmp_path_factory.getbasetemp() / "numbers.gguf"
    path.write_bytes(header(pairs=pairs, tensors=[tensor("token_embd.weight", [64, 9], 0, 0)]) + bytes(9999))
    _read_and_judge(path)

"""Headers that lie: each ends in one clear error, at once, and without taking memory."""

import contextlib
import os
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.llama.gguf import GgufError, read_facts
from specdash.llama.memory import ALL_LAYERS, ModelLoad, fit_context, slots_of
from specdash.llama.model_facts import describe
from support import tiny_models as tiny
from support.gguf_files import header, pair, tensor, write_gguf

U32, TEXT, ARRAY = 4, 8, 9
HUGE = 2**60


def _array(kind: int, length: int, rest: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, length) + rest


HOSTILE: dict[str, tuple[bytes, str]] = {
    "an array of 2^60 numbers": (header(pairs=[pair("a", ARRAY, _array(10, HUGE))]) + bytes(64), "truncated inside"),
    "an array of arrays": (header(pairs=[pair("a", ARRAY, _array(9, 1))]) + bytes(64), "unknown array type 9 for 'a'"),
    "a text of 2^64 - 1 bytes": (header(pairs=[pair("a", TEXT, b"\xff" * 8)]) + bytes(64), "truncated inside"),
    "a key with control characters": (
        header(pairs=[pair("\x1b[2J", 99, b"\1")]) + bytes(32),
        "unknown value type 99 for '.\\[2J'",
    ),
    "an alignment of 48": (
        header(pairs=[pair("general.alignment", U32, struct.pack("<I", 48))]) + bytes(32),
        "alignment 48 is not a power of 2",
    ),
    "a tensor of 5 dimensions": (header(tensors=[tensor("t", [1] * 5, 0, 0)]) + bytes(99), "has 5 dimensions"),
    "a shape that overflows": (header(tensors=[tensor("t", [2**40, 2**40], 0, 0)]) + bytes(99), "has the shape 10995"),
    "a tensor far behind the end": (
        header(tensors=[tensor("a", [8], 0, 2**63)]) + bytes(999),
        r"truncated, \d+ of 9223\d+ bytes are there",
    ),
    "rows that are no whole blocks": (
        header(tensors=[tensor("t", [100], 12, 0)]) + bytes(999),
        "has rows of 100, and Q4_K comes in blocks of 256",
    ),
    "more tensor data than there is": (
        header(tensors=[tensor("t", [2**40], 0, 0)]) + bytes(99),
        r"truncated, \d+ of 4398046511\d+ bytes are there",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_header_that_lies_is_one_line_and_takes_no_memory(case: str, tmp_path: Path) -> None:
    content, said = HOSTILE[case]
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(GgufError, match=said) as caught:
            read_facts(path)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert str(caught.value).startswith(f"model {path}: ")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
            "is no GGUF file but a Git LFS pointer; run `git lfs pull`",
        ),
        (b"<!DOCTYPE html><html>", "but a web page"),
        (b"\n<html>", "but a web page"),
        (b"PK\x03\x04" + bytes(60), "ZIP archive or a PyTorch checkpoint"),
        (struct.pack("<Q", 1000) + b'{"__metadata__":', "but a safetensors file"),
        (
            b"GGUF" + struct.pack(">IQQ", 3, 1, 1) + bytes(64),
            "GGUF version 50331648 is not supported, only little-endian",
        ),
        (b"GGUF" + struct.pack("<IQQ", 1, 1, 1) + bytes(64), "GGUF version 1 is not supported.*convert it again"),
    ],
)
def test_what_people_name_by_mistake_is_named_as_what_it_is(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(GgufError, match=said):
        read_facts(path)


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(GgufError, match="is no regular file"):
            read_facts(path)
    with pytest.raises(GgufError, match="cannot be read"):
        read_facts("a\0b")


def test_a_type_that_nobody_knows_is_no_error_and_judges_no_length(tmp_path: Path) -> None:
    path = tmp_path / "fork.gguf"
    path.write_bytes(header(tensors=[tensor("a", [256], 137, 0), tensor("b", [8], 0, 512)]) + bytes(999))
    facts = read_facts(path)
    assert [item.size for item in facts.tensors] == [0, 32]
    assert "tensor types 137 are unknown to b11434" in describe(facts).remarks[0]


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("seeds")
    made = [
        tiny.write_llama(folder / "llama.gguf"),
        tiny.write_qwen35(folder / "qwen35.gguf", heads_too=True),
        tiny.write_mamba(folder / "mamba.gguf"),
        tiny.write_dflash(folder / "dflash.gguf"),
        write_gguf(
            folder / "gemma3.gguf",
            "gemma3",
            {".block_count": 6, ".embedding_length": 64, ".attention.sliding_window": 512, ".attention.head_count": 4},
            {"token_embd.weight": (8, (64, 4))},
        ),
    ]
    return [path.read_bytes()[:20_000] for path in made]


NUMBERS = st.sampled_from(
    [0, 1, 2, 7, 8, 9, 12, 127, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**60, 2**63, 2**64 - 1]
).map(lambda number: struct.pack("<Q", number))
CHANGES = st.lists(
    st.tuples(st.floats(0, 1), st.one_of(st.binary(min_size=1, max_size=9), NUMBERS)),
    min_size=1,
    max_size=6,
)


@given(which=st.integers(0, 4), changes=CHANGES, kept=st.floats(0, 1), near=st.booleans())
def test_a_damaged_header_is_read_or_refused_and_nothing_else(
    which: int,
    changes: list[tuple[float, bytes]],
    kept: float,
    near: bool,
    seeds: list[bytes],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    data = bytearray(seeds[which])
    reach = 1500 if near else len(data)
    for place, new in changes:
        at = 4 + int(place * (reach - 4))
        data[at : at + len(new)] = new
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(bytes(data) if kept > 0.1 else bytes(data[: int(len(data) * kept * 10)]))
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
    st.integers(0, 70).map(lambda n: (4, struct.pack("<I", n))),
    st.integers(-(2**31), 2**31 - 1).map(lambda n: (5, struct.pack("<i", n))),
    st.floats(width=32).map(lambda n: (6, struct.pack("<f", n))),
    st.booleans().map(lambda b: (7, bytes([b]))),
    st.text(max_size=9).map(lambda t: (8, struct.pack("<Q", len(t.encode())) + t.encode())),
    st.lists(st.integers(-5, 300), max_size=70).map(
        lambda ns: (9, _array(5, len(ns), struct.pack(f"<{len(ns)}i", *ns)))
    ),
)


@given(
    architecture=st.sampled_from(ARCHITECTURES),
    values=st.dictionaries(st.sampled_from(KEYS), VALUES),
    layers=st.integers(0, 70),
)
def test_numbers_that_no_model_has_are_judged_without_a_fault(
    architecture: str,
    values: dict[str, tuple[int, bytes]],
    layers: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    named = architecture.encode()
    pairs = [pair("general.architecture", TEXT, struct.pack("<Q", len(named)) + named)]
    given_values = {
        "block_count": (4, struct.pack("<I", layers)),
        "embedding_length": (4, struct.pack("<I", 64)),
    } | values
    pairs += [pair(f"{architecture}.{key}", kind, value) for key, (kind, value) in given_values.items()]
    path = tmp_path_factory.getbasetemp() / "numbers.gguf"
    path.write_bytes(header(pairs=pairs, tensors=[tensor("token_embd.weight", [64, 9], 0, 0)]) + bytes(9999))
    _read_and_judge(path)

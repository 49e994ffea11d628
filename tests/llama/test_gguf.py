"""GGUF facts, and the errors a user gets for a file that is none, or is not whole."""

import struct
from pathlib import Path

import gguf
import pytest

from specdash.core.errors import ExitCode
from specdash.llama.gguf import FILE_TYPES, GUESSED, TENSOR_TYPES, GgufError, GgufHeader, read_facts
from support.tiny_models import SENTENCE, TOKENS, write_llama, write_mamba


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("gguf") / "model.gguf", layers=2)


def test_the_header_tells_what_the_model_is(model: Path) -> None:
    facts = read_facts(model)
    assert (facts.version, facts.architecture, facts.name) == (3, "llama", "tiny llama")
    assert (facts.context_length, facts.block_count, facts.nextn_layers) == (32768, 2, None)
    assert (facts.tokenizer, facts.vocabulary_size, facts.has_chat_template) == ("llama", len(TOKENS), True)
    assert len(SENTENCE) < len(TOKENS)


def test_the_length_the_tensors_need_is_the_length_of_a_whole_file(model: Path, tmp_path: Path) -> None:
    for path in (model, write_mamba(tmp_path / "mamba.gguf")):
        facts = read_facts(path)
        assert facts.bytes_needed == facts.file_bytes == path.stat().st_size


def test_the_pairs_and_the_tensors_are_where_the_header_says(model: Path) -> None:
    data = model.read_bytes()
    header = GgufHeader(data, "model.gguf")
    header.read()
    reader = gguf.GGUFReader(model)
    fields = [field for key, field in reader.fields.items() if not key.startswith("GGUF.")]
    assert header.spans == {
        field.name: (field.offset, field.offset + sum(part.nbytes for part in field.parts)) for field in fields
    }
    assert header.data_start == reader.data_offset == min(tensor.data_offset for tensor in reader.tensors)
    assert header.alignment == reader.alignment


@pytest.mark.parametrize("kept", [0.99, 0.5, 0.01, 0.0001])
def test_a_file_cut_anywhere_is_called_truncated(model: Path, tmp_path: Path, kept: float) -> None:
    data = model.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(data[: max(5, int(len(data) * kept))])
    with pytest.raises(GgufError, match=r"cut\.gguf: truncated.*download it again"):
        read_facts(cut)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"root:x:0:0\n", "is no GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60) + b"\xff" * 64, "truncated inside its header|unknown value type"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0) + b"\xff" * 64, "truncated inside its header"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 50) + b"\xff" * 64, "truncated inside its header, 88 bytes are there"),
        (b"GGUF" + struct.pack("<IQQ", 4, 0, 0) + bytes(64), "GGUF version 4 is not supported"),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 99) + bytes(32),
            "unknown value type 99",
        ),
    ],
)
def test_a_file_that_is_no_model_is_refused_in_one_line(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(GgufError, match=message) as caught:
        read_facts(path)
    assert caught.value.exit_code is ExitCode.BAD_INPUT
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_directory_are_distinguished(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match="no such file"):
        read_facts(tmp_path / "absent.gguf")
    with pytest.raises(GgufError, match="is no regular file"):
        read_facts(tmp_path)


def test_the_tensor_sizes_are_those_of_the_gguf_package() -> None:
    theirs = {int(kind): size for kind, size in gguf.GGML_QUANT_SIZES.items()}
    ours = {kind: (known.per_block, known.block_bytes) for kind, known in TENSOR_TYPES.items()}
    # The package's Q8_1 is of 2023; ggml says 36 bytes (test_gguf_real). Q2_0 is newer than the package.
    assert {kind: size for kind, size in ours.items() if theirs.get(kind) != size} == {9: (32, 36), 42: (64, 18)}
    assert set(theirs) <= set(TENSOR_TYPES)


def test_the_names_of_types_are_those_of_the_gguf_package() -> None:
    theirs = {int(kind): kind.name for kind in gguf.GGMLQuantizationType}
    assert {kind: known.name for kind, known in TENSOR_TYPES.items() if kind != 42} == theirs
    files = {int(kind): kind.name.removeprefix("MOSTLY_").removeprefix("ALL_") for kind in gguf.LlamaFileType}
    assert {number: name for number, name in FILE_TYPES.items() if number != 41} == {
        number: name for number, name in files.items() if number != GUESSED
    }

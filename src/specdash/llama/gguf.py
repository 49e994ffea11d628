"""Facts in a GGUF file's header, read without the gguf package and without loading a tensor.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. Only the header is
read: key-value pairs and tensor descriptions. They give the length that the file must have, so a download that stopped
early is found before an engine is started on it. Long arrays, such as the vocabulary, are located and not kept.
What would make a reader run on or believe a wrong length is checked; the rest is left to the engine.
"""

from __future__ import annotations

import mmap
import re
import stat
import struct
from functools import lru_cache
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

from msgspec import Struct, field
from msgspec.structs import replace

from specdash.core.errors import InputError, Problem
from specdash.core.structs import Masked

if TYPE_CHECKING:
    from collections.abc import Mapping


class TensorType(Struct, frozen=True):
    """How elements of a tensor are kept: in blocks of `per_block` elements, each of `block_bytes` bytes."""

    name: str
    per_block: int
    block_bytes: int


def _types(text: str) -> dict[int, TensorType]:
    rows = (row.split() for row in text.strip().splitlines())
    return {int(number): TensorType(name, int(block), int(size)) for number, name, block, size in rows}


TENSOR_TYPES = _types(
    """
    0  F32      1    4
    1  F16      1    2
    2  Q4_0     32   18
    3  Q4_1     32   20
    6  Q5_0     32   22
    7  Q5_1     32   24
    8  Q8_0     32   34
    9  Q8_1     32   36
    10 Q2_K     256  84
    11 Q3_K     256  110
    12 Q4_K     256  144
    13 Q5_K     256  176
    14 Q6_K     256  210
    15 Q8_K     256  292
    16 IQ2_XXS  256  66
    17 IQ2_XS   256  74
    18 IQ3_XXS  256  98
    19 IQ1_S    256  50
    20 IQ4_NL   32   18
    21 IQ3_S    256  110
    22 IQ2_S    256  82
    23 IQ4_XS   256  136
    24 I8       1    1
    25 I16      1    2
    26 I32      1    4
    27 I64      1    8
    28 F64      1    8
    29 IQ1_M    256  56
    30 BF16     1    2
    34 TQ1_0    256  54
    35 TQ2_0    256  66
    39 MXFP4    32   17
    40 NVFP4    64   36
    41 Q1_0     128  18
    42 Q2_0     64   18
    """
)
"""ggml type number to the type. One that is not here is unknown to b11434: of a fork, or of a newer llama.cpp."""
FILE_TYPES: dict[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE", 39: "NVFP4",
    40: "Q1_0", 41: "Q2_0",
}  # fmt: skip
"""`general.file_type` to its name."""
GUESSED = 1024
"""Added to a file type that a program guessed."""

VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"
TOKENS_KEY = "tokenizer.ggml.tokens"

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_LONGEST_TEXT_KEPT = 64 * 1024
_LONGEST_ARRAY_KEPT = 4096
_MOST_DIMENSIONS = 4
_LONGEST = 2**63
MAGIC = b"GGUF"
_SPLIT_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_FIRST_BYTES = 64
_MOST = 2**48
_MOST_PARTS = 99_999
Value = int | float | bool | str


class GgufError(InputError):
    """The file is missing, unreadable, no GGUF, damaged, or shorter than its own header says.

    The message begins with `model PATH: `; `path` and `problem.what` are that path and what follows it.
    """

    def __init__(self, path: str, what: str, fix: str = "") -> None:
        super().__init__(Problem(what, fix, text=f"model {path}: {Problem(what, fix)}"))
        self.path = path


class Tensor(Struct, frozen=True):
    """One tensor as the header describes it: `size` in bytes, 0 for a type that is not in `TENSOR_TYPES`.

    `kind` is its ggml type number, `shape` its elements, the fastest dimension first.
    """

    name: str
    size: int
    kind: int = -1
    shape: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return prod(self.shape)


class ArraySpan(Struct, frozen=True):
    """Where the texts of an array are: byte positions in the file, from its first text's length to its end."""

    start: int
    end: int
    count: int


class GgufHeader:
    """Reads the header of `data`; `shown` names the file in errors. The attributes are filled by `read`."""

    def __init__(self, data: mmap.mmap | bytes, shown: str) -> None:
        self.data = data
        self.end = len(data)
        self.at = 4
        self.shown = shown
        self.version = 0
        self.values: dict[str, Value] = {}
        self.lengths: dict[str, int] = {}
        self.arrays: dict[str, tuple[int | float | bool, ...]] = {}
        self.tensors: list[Tensor] = []
        self.tokens: ArraySpan | None = None
        self.spans: dict[str, tuple[int, int]] = {}
        """Where the bytes of each pair are, from the length of its key to the end of its value."""
        self.alignment = DEFAULT_ALIGNMENT
        self.data_start = 0
        """Where the first tensor is; each next one follows at the next multiple of `alignment`."""
        self.bytes_needed = 0

    def read(self) -> None:
        """Read all of it. Raises `GgufError`, and nothing else."""
        try:
            self.version = self._number("<I")
            if self.version not in VERSIONS:
                what = f"GGUF version {self.version} is not supported, only little-endian 2 and 3"
                raise GgufError(self.shown, what, "convert it again, or use a newer specdash and engine")
            tensors, pairs = self._number("<Q"), self._number("<Q")
            for _ in range(pairs):
                self._pair()
            self._tensors(tensors)
        except (struct.error, IndexError):
            what = f"truncated inside its header, {self.end} bytes are there"
            raise GgufError(self.shown, what, "download it again") from None

    def _damaged(self, what: str) -> NoReturn:
        raise GgufError(self.shown, f"damaged, {what}", "download it again")

    def _number(self, form: str) -> int:
        value = struct.unpack_from(form, self.data, self.at)[0]
        self.at += struct.calcsize(form)
        return int(value)

    def _skip(self, length: int) -> int:
        """Step over so many bytes, and return where they begin. Raises IndexError where the file ends before."""
        start = self.at
        self.at += length
        if self.at > self.end:
            raise IndexError
        return start

    def _text(self) -> str:
        length = self._number("<Q")
        start = self._skip(length)
        return self.data[start : start + min(length, _LONGEST_TEXT_KEPT)].decode("utf-8", "replace")

    def _pair(self) -> None:
        start = self.at
        key, kind = self._text(), self._number("<I")
        if kind == _STRING:
            self.values[key] = self._text()
        elif kind == _ARRAY:
            self._array(key)
        elif kind in _SCALARS:
            form = _SCALARS[kind]
            self.values[key] = struct.unpack_from(form, self.data, self._skip(struct.calcsize(form)))[0]
        else:
            self._damaged(f"unknown value type {kind} for {_cut(key)}")
        self.spans[key] = (start, self.at)

    def _array(self, key: str) -> None:
        kind, length = self._number("<I"), self._number("<Q")
        self.lengths[key] = length
        if kind in _SCALARS:
            start = self._skip(length * struct.calcsize(_SCALARS[kind]))
            if length <= _LONGEST_ARRAY_KEPT:
                self.arrays[key] = struct.unpack_from(f"<{length}{_SCALARS[kind][1]}", self.data, start)
        elif kind == _STRING:
            start = self.at
            unpack = struct.Struct("<Q").unpack_from
            for _ in range(length):
                self._skip(8 + unpack(self.data, self.at)[0])
            if key == TOKENS_KEY:
                self.tokens = ArraySpan(start, self.at, length)
        else:
            self._damaged(f"unknown array type {kind} for {_cut(key)}")

    def _tensors(self, count: int) -> None:
        declared = self.values.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
        self.alignment = declared if isinstance(declared, int) else 0
        if self.alignment <= 0 or self.alignment & (self.alignment - 1):
            self._damaged(f"its alignment {declared} is not a power of 2")
        longest = 0
        for _ in range(count):
            tensor, offset = self._tensor()
            longest = max(longest, offset + tensor.size)
            self.tensors.append(tensor)
        self.data_start = -(-self.at // self.alignment) * self.alignment
        self.bytes_needed = self.data_start + longest if count else self.at

    def _tensor(self) -> tuple[Tensor, int]:
        """The next tensor and its offset."""
        name, dimensions = self._text(), self._number("<I")
        if dimensions > _MOST_DIMENSIONS:
            self._damaged(f"tensor {_cut(name)} has {dimensions} dimensions")
        shape = tuple(self._number("<Q") for _ in range(dimensions))
        kind, offset = self._number("<I"), self._number("<Q")
        if any(number >= _LONGEST for number in (prod(shape), *shape)):
            self._damaged(f"tensor {_cut(name)} has the shape {' x '.join(map(str, shape))}")
        known = TENSOR_TYPES.get(kind)
        if known is None:
            return Tensor(name, 0, kind, shape), offset
        row = shape[0] if shape else 1
        if row % known.per_block:
            blocks = f"{known.name} comes in blocks of {known.per_block}"
            self._damaged(f"tensor {_cut(name)} has rows of {row}, and {blocks}")
        return Tensor(name, prod(shape) // known.per_block * known.block_bytes, kind, shape), offset


def _cut(text: str) -> str:
    shown = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text[:60])
    return repr(shown) if len(text) <= len(shown) else repr(f"{shown}…")


class GgufFacts(Masked, Struct, frozen=True):
    """What the header says; None where it does not say it. `bytes_needed` is the length the tensors require.

    Of a model in several files these are the facts of the first, with the tensors and the bytes of all.
    """

    hidden = ("values", "arrays", "tensors")

    path: str
    version: int
    architecture: str | None
    name: str | None
    context_length: int | None
    block_count: int | None
    nextn_layers: int | None
    """Next-token-prediction layers, which `draft-mtp` needs."""
    tokenizer: str | None
    vocabulary_size: int | None
    has_chat_template: bool
    file_bytes: int
    bytes_needed: int
    values: Mapping[str, Value] = field(default_factory=dict)
    """Every key with one value, as numbers and texts."""
    arrays: Mapping[str, tuple[int | float | bool, ...]] = field(default_factory=dict)
    """Every array of up to 4096 numbers."""
    tensors: tuple[Tensor, ...] = ()
    token_texts: ArraySpan | None = None
    """Where the vocabulary's texts are."""
    parts: int = 1
    """Files the model is in."""

    @property
    def draft_architecture(self) -> str | None:
        """The architecture that picks its spec type: a DSpark draft is a DFlash one with a Markov head."""
        if self.architecture == "dflash" and any(tensor.name.startswith("markov_w1") for tensor in self.tensors):
            return "dspark"
        return self.architecture

    def number(self, name: str) -> int | None:
        """The whole number under `name`, a key without its architecture, None where the header has none that can be."""
        return _whole(self.values.get(f"{self.architecture}.{name}"))

    def array(self, name: str) -> tuple[int, ...] | None:
        """The whole numbers of the array under `name`, a key without its architecture, None where there is none."""
        found = self.arrays.get(f"{self.architecture}.{name}")
        if found is None:
            return None
        numbers = tuple(_whole(number) for number in found)
        return None if None in numbers else tuple(number for number in numbers if number is not None)

    def text(self, key: str) -> str | None:
        """The text under a whole key, None where there is none."""
        value = self.values.get(key)
        return value if isinstance(value, str) and value else None


def read_facts(path: str | Path) -> GgufFacts:
    """The facts of the model at `path`, with all its parts where it was split into several files.

    A file is read once for each of its states: a large vocabulary takes a tenth of a second. Raises `GgufError`, which
    names the file and says what is wrong with it and what to do.
    """
    return _join_parts(_cached(str(path)))


def _cached(path: str) -> GgufFacts:
    try:
        state = Path(path).stat()
    except (OSError, ValueError):
        return read_one_file(path)
    return _read_state(path, (state.st_mtime_ns, state.st_size, state.st_ino))


@lru_cache(maxsize=32)
def _read_state(path: str, _state: tuple[int, int, int]) -> GgufFacts:
    return read_one_file(path)


def _join_parts(facts: GgufFacts) -> GgufFacts:
    """The facts of a whole model, given those of its first file: one that was split into several, which the engine
    loads too, is named `NAME-00001-of-00003.gguf`. Raises `GgufError` where the engine would refuse it.
    """
    count, number = _whole(facts.values.get("split.count")), _whole(facts.values.get("split.no")) or 0
    if count is None or count < 2:
        return facts
    path = Path(facts.path)
    found = _SPLIT_NAME.fullmatch(path.name)
    if number > 0:
        first = path.with_name(f"{found.group(1)}-00001-of-{found.group(3)}.gguf") if found else "the first"
        raise GgufError(facts.path, f"is part {number + 1} of {count} of a model", f"name {first}")
    if found is None or int(found.group(2)) != 1 or int(found.group(3)) != count or count > _MOST_PARTS:
        what = f"is the first of {count} files, and its name must end in -00001-of-{count:05d}.gguf"
        raise GgufError(facts.path, what, "give all parts their names back")
    others = [path.with_name(f"{found.group(1)}-{at:05d}-of-{found.group(3)}.gguf") for at in range(2, count + 1)]
    absent = [other for other in others if not other.is_file()]
    if absent:
        what = f"is split into {count} files, and {len(absent)} of them missing: {absent[0]}"
        more = " and others" if len(absent) > 1 else ""
        raise GgufError(facts.path, f"{what}{more}", "download all of them to one folder")
    every = (facts, *(_cached(str(other)) for other in others))
    tensors = tuple(tensor for gguf_facts in every for tensor in gguf_facts.tensors)
    announced = _whole(facts.values.get("split.tensors.count"))
    if announced is not None and announced != len(tensors):
        what = f"its {count} files hold {len(tensors)} tensors, and the first announces {announced}"
        raise GgufError(facts.path, what, "the files are not of one model: download them again")
    return replace(
        facts,
        tensors=tensors,
        file_bytes=sum(gguf_facts.file_bytes for gguf_facts in every),
        bytes_needed=sum(gguf_facts.bytes_needed for gguf_facts in every),
        parts=count,
    )


def read_one_file(path: str | Path) -> GgufFacts:
    """The facts of one file of a model, which may have others. Raises `GgufError`."""
    shown = str(path)
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise GgufError(shown, "is no regular file", "name the .gguf file")
        with Path(path).open("rb") as file:
            start = file.read(_FIRST_BYTES)
            if start[:4] != MAGIC:
                raise GgufError(shown, *_not_gguf(start))
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                header = GgufHeader(data, shown)
                header.read()
                facts = _facts(header)
    except FileNotFoundError:
        raise GgufError(shown, "no such file") from None
    except (OSError, ValueError) as error:
        raise GgufError(shown, f"cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if facts.file_bytes < facts.bytes_needed:
        what = f"truncated, {facts.file_bytes} of {facts.bytes_needed} bytes are there"
        raise GgufError(shown, what, "download it again")
    return facts


def _whole(value: Value | None) -> int | None:
    return value if isinstance(value, int) and 0 <= value < _MOST else None


_OTHER_FORMATS: tuple[tuple[bytes, str, str], ...] = (
    (b"version https://git-lfs", "a Git LFS pointer", "run `git lfs pull`"),
    (b"<", "a web page", "download the file itself"),
    (b"PK\x03\x04", "a ZIP archive or a PyTorch checkpoint", "convert it with convert_hf_to_gguf.py"),
)


def _not_gguf(start: bytes) -> tuple[str, str]:
    if not start:
        return "is empty", "download it again"
    for magic, what, fix in _OTHER_FORMATS:
        if start.lstrip().startswith(magic):
            return f"is no GGUF file but {what}", fix
    if start[8:9] == b"{" and start[6:8] == b"\0\0":
        return "is no GGUF file but a safetensors file", "convert it with convert_hf_to_gguf.py"
    return f"is no GGUF file (it starts with {start[:4]!r}, not b'GGUF')", "name a .gguf model"


def _facts(header: GgufHeader) -> GgufFacts:
    texts = {key: value for key, value in header.values.items() if isinstance(value, str)}
    architecture = texts.get("general.architecture")
    return GgufFacts(
        path=header.shown,
        version=header.version,
        architecture=architecture,
        name=texts.get("general.name"),
        context_length=_whole(header.values.get(f"{architecture}.context_length")),
        block_count=_whole(header.values.get(f"{architecture}.block_count")),
        nextn_layers=_whole(header.values.get(f"{architecture}.nextn_predict_layers")),
        tokenizer=texts.get("tokenizer.ggml.model"),
        vocabulary_size=header.lengths.get(TOKENS_KEY),
        has_chat_template=bool(header.values.get("tokenizer.chat_template")),
        file_bytes=header.end,
        bytes_needed=header.bytes_needed,
        values=MappingProxyType(header.values),
        arrays=MappingProxyType(header.arrays),
        tensors=tuple(header.tensors),
        token_texts=header.tokens,
    )

"""Facts in a GGUF file's header, read without the gguf package and without loading a tensor.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. Only the header is
read: key-value pairs and tensor descriptions. They also tell how long the file must be, so a download that stopped
early is found before an engine is started on it. Long arrays, such as the vocabulary, are located and not kept.
"""

from __future__ import annotations

import mmap
import re
import struct
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from specdash.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_LONGEST_TEXT_KEPT = 64 * 1024
_LONGEST_ARRAY_KEPT = 4096
TOKENS_KEY = "tokenizer.ggml.tokens"
Value = int | float | bool | str

TENSOR_TYPES: dict[int, tuple[int, int]] = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66),
    17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136),
    24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54),
    35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18),
}  # fmt: skip
"""ggml type number: elements per block, bytes per block (ggml.h). A type not here is not used to judge the length."""


class GgufError(InputError):
    """The file is missing, unreadable, no GGUF, or shorter than its own header says."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor as the header describes it: `size` in bytes, 0 for a type that this module does not know."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Span:
    """Where the texts of an array are: byte positions in the file, from its first text's length to its end."""

    start: int
    end: int
    count: int


@dataclass(frozen=True, slots=True)
class GgufFacts:
    """What the header says; None where it does not say it. `bytes_needed` is the length the tensors require."""

    path: str
    version: int
    tensor_count: int
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
    values: Mapping[str, Value] = field(default_factory=dict, repr=False)
    """Every key with one value, as numbers and texts."""
    arrays: Mapping[str, tuple[int | float | bool, ...]] = field(default_factory=dict, repr=False)
    """Every array of up to 4096 numbers."""
    tensors: tuple[Tensor, ...] = field(default=(), repr=False)
    token_texts: Span | None = None
    """Where the vocabulary's texts are."""

    def number(self, name: str) -> int | None:
        """The whole number under `name`, a key without its architecture, None where the header has none."""
        value = self.values.get(f"{self.architecture}.{name}")
        return int(value) if isinstance(value, int) else None

    def array(self, name: str) -> tuple[int, ...] | None:
        """The whole numbers of the array under `name`, a key without its architecture, None where there is none."""
        found = self.arrays.get(f"{self.architecture}.{name}")
        return None if found is None else tuple(int(one) for one in found)


def read_facts(path: str | Path) -> GgufFacts:
    """Read the header of `path`. Raises `GgufError`, which says what is wrong with the file and what to do."""
    shown = str(path)
    try:
        with Path(path).open("rb") as file:
            start = file.read(8)
            if start[:4] != MAGIC:
                raise GgufError(_not_gguf(shown, start))
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                facts = _Header(data, shown).facts()
    except FileNotFoundError:
        raise GgufError(f"model {shown}: no such file") from None
    except IsADirectoryError:
        raise GgufError(f"model {shown}: is a directory; name the .gguf file") from None
    except (PermissionError, OSError) as error:
        raise GgufError(f"model {shown}: cannot be read ({error.strerror or error})") from None
    if facts.file_bytes < facts.bytes_needed:
        raise GgufError(
            f"model {shown}: truncated, {facts.file_bytes} of {facts.bytes_needed} bytes are there; download it again"
        )
    return facts


def split_paths(facts: GgufFacts) -> tuple[Path, ...]:
    """The other files of a model that was split into several (`NAME-00001-of-00003.gguf`), which the engine loads too.

    Empty for a model in one file, and for one whose name does not follow the rule.
    """
    count = facts.values.get("split.count")
    path = Path(facts.path)
    found = re.fullmatch(r"(.+)-(\d{5})-of-(\d{5})\.gguf", path.name)
    if not isinstance(count, int) or count < 2 or found is None:
        return ()
    names = [f"{found.group(1)}-{number:05d}-of-{found.group(3)}.gguf" for number in range(1, int(count) + 1)]
    return tuple(path.with_name(name) for name in names if name != path.name)


def _not_gguf(shown: str, start: bytes) -> str:
    if not start:
        return f"model {shown}: is empty; download it again"
    return f"model {shown}: is no GGUF file (it starts with {start[:4]!r}, not b'GGUF'); name a .gguf model"


class _Header:
    """A reader that walks the header once."""

    def __init__(self, data: mmap.mmap, shown: str) -> None:
        self.data = data
        self.at = 4
        self.shown = shown
        self.values: dict[str, Value] = {}
        self.lengths: dict[str, int] = {}
        self.arrays: dict[str, tuple[int | float | bool, ...]] = {}
        self.tensors: list[Tensor] = []
        self.tokens: Span | None = None

    def facts(self) -> GgufFacts:
        try:
            return self._facts()
        except (struct.error, IndexError):
            raise GgufError(f"model {self.shown}: truncated inside its header; download it again") from None

    def _facts(self) -> GgufFacts:
        version = self._number("<I")
        if version not in VERSIONS:
            raise GgufError(
                f"model {self.shown}: GGUF version {version} is not supported, only little-endian 2 and 3; "
                "convert it again"
            )
        tensors, pairs = self._number("<Q"), self._number("<Q")
        for _ in range(pairs):
            key = self._text()
            self._value(key, self._number("<I"))
        needed = self._bytes_needed(tensors)
        architecture = self._text_value("general.architecture")
        return GgufFacts(
            path=self.shown,
            version=version,
            tensor_count=tensors,
            architecture=architecture,
            name=self._text_value("general.name"),
            context_length=self._count(f"{architecture}.context_length"),
            block_count=self._count(f"{architecture}.block_count"),
            nextn_layers=self._count(f"{architecture}.nextn_predict_layers"),
            tokenizer=self._text_value("tokenizer.ggml.model"),
            vocabulary_size=self.lengths.get("tokenizer.ggml.tokens"),
            has_chat_template=bool(self.values.get("tokenizer.chat_template")),
            file_bytes=len(self.data),
            bytes_needed=needed,
            values=MappingProxyType(self.values),
            arrays=MappingProxyType(self.arrays),
            tensors=tuple(self.tensors),
            token_texts=self.tokens,
        )

    def _text_value(self, key: str) -> str | None:
        value = self.values.get(key)
        return value if isinstance(value, str) else None

    def _count(self, key: str) -> int | None:
        value = self.values.get(key)
        return value if isinstance(value, int) else None

    def _number(self, form: str) -> int:
        value = struct.unpack_from(form, self.data, self.at)[0]
        self.at += struct.calcsize(form)
        return int(value)

    def _skip(self, length: int) -> None:
        self.at += length
        if self.at > len(self.data):
            raise IndexError

    def _text(self) -> str:
        length = self._number("<Q")
        start = self.at
        self._skip(length)
        return self.data[start : start + min(length, _LONGEST_TEXT_KEPT)].decode("utf-8", "replace")

    def _value(self, key: str, kind: int) -> None:
        if kind == _STRING:
            self.values[key] = self._text()
        elif kind == _ARRAY:
            self._array(key)
        elif kind in _SCALARS:
            form = _SCALARS[kind]
            self.values[key] = struct.unpack_from(form, self.data, self.at)[0]
            self.at += struct.calcsize(form)
        else:
            raise GgufError(f"model {self.shown}: unknown value type {kind} for {key!r}; the file is damaged")

    def _array(self, key: str) -> None:
        kind, length = self._number("<I"), self._number("<Q")
        self.lengths[key] = length
        if kind in _SCALARS:
            start = self.at
            self._skip(length * struct.calcsize(_SCALARS[kind]))
            if length <= _LONGEST_ARRAY_KEPT:
                self.arrays[key] = struct.unpack_from(f"<{length}{_SCALARS[kind][1]}", self.data, start)
        elif kind == _STRING:
            start = self.at
            unpack, at, end = struct.Struct("<Q").unpack_from, self.at, len(self.data)
            for _ in range(length):
                at += 8 + unpack(self.data, at)[0]
                if at > end:
                    raise IndexError
            self.at = at
            if key == TOKENS_KEY:
                self.tokens = Span(start, at, length)
        else:
            raise GgufError(f"model {self.shown}: unknown array type {kind} for {key!r}; the file is damaged")

    def _bytes_needed(self, tensors: int) -> int:
        longest = 0
        for _ in range(tensors):
            name = self._text()
            shape = [self._number("<Q") for _ in range(self._number("<I"))]
            kind, offset = self._number("<I"), self._number("<Q")
            per_block, block_bytes = TENSOR_TYPES.get(kind, (1, 0))
            size = prod(shape) // per_block * block_bytes
            self.tensors.append(Tensor(name, size))
            longest = max(longest, offset + size)
        declared = self._count("general.alignment")
        alignment = declared if declared and declared > 0 else DEFAULT_ALIGNMENT
        return -(-self.at // alignment) * alignment + longest if tensors else self.at

"""One walk through a GGUF header, which believes nothing it has not checked.

The checks are those of llama.cpp b11434 (ggml/src/gguf.cpp), which refuses a file that fails one; limits on counts keep
a damaged or hostile file from taking time or memory. Nothing is read that the header does not make necessary.
"""

from __future__ import annotations

import struct
from math import prod
from typing import TYPE_CHECKING, NoReturn

from specdash.core.errors import InputError
from specdash.llama.gguf_types import REMOVED_TYPES, TENSOR_TYPES

if TYPE_CHECKING:
    import mmap

VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"
TOKENS_KEY = "tokenizer.ggml.tokens"

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_UINT32 = 4
_LONGEST_TEXT_KEPT = 64 * 1024
_TEXT_KEPT = 32 * 1024**2
"""Bytes of texts kept in all."""
_LONGEST_ARRAY_KEPT = 4096
_NUMBERS_KEPT = 1 << 20
"""Elements of arrays kept in all."""
_MOST_PAIRS = 1 << 16
_MOST_TENSORS = 1 << 17
_MOST_TEXTS = 1 << 22
"""Texts in arrays, in all; the largest vocabularies have 2^18, and twice as many merges."""
_LONGEST_TEXTS = 256 * 1024**2
"""Bytes of all texts of one array; a large vocabulary has 8 MiB."""
_MOST_KINDS = 1024
"""Types of forks have numbers of up to 400."""
_MOST_DIMENSIONS = 4
_LONGEST_NAME = 63
_LONGEST = 2**63
_LEAST_PAIR_BYTES = 13
_LEAST_TENSOR_BYTES = 24
_BYTES_SWAPPED = 0xFFFF
"""A version whose lower half is 0 was written by a machine of the other byte order."""
Value = int | float | bool | str


class GgufError(InputError):
    """The file is missing, unreadable, no GGUF, damaged, or shorter than its own header says."""


class Header:
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
        self.tensors: list[tuple[str, int, int, tuple[int, ...]]] = []
        """Name, bytes (0 for an unknown type), ggml type number and shape, the fastest dimension first."""
        self.tokens: tuple[int, int, int] | None = None
        self.bytes_needed = 0
        self._texts_kept = 0
        self._texts_walked = 0
        self._numbers_kept = 0

    def read(self) -> None:
        """Read all of it. Raises `GgufError`, and nothing else."""
        try:
            self._read()
        except (struct.error, IndexError):
            raise GgufError(
                f"model {self.shown}: truncated inside its header, {self.end} bytes are there; download it again"
            ) from None

    def _read(self) -> None:
        self.version = self._number("<I")
        if self.version not in VERSIONS:
            raise GgufError(f"model {self.shown}: {_bad_version(self.version)}")
        tensors, pairs = self._number("<Q"), self._number("<Q")
        self._possible("keys", pairs, _MOST_PAIRS, _LEAST_PAIR_BYTES)
        self._possible("tensors", tensors, _MOST_TENSORS, _LEAST_TENSOR_BYTES)
        for _ in range(pairs):
            key = self._text()
            if not key:
                self._damaged("a key has no name")
            if key in self.values or key in self.lengths:
                self._damaged(f"the key {_cut(key)} is there twice")
            self._value(key, self._number("<I"))
        alignment = self._alignment()
        self._tensors(tensors, alignment)

    def _damaged(self, what: str) -> NoReturn:
        raise GgufError(f"model {self.shown}: damaged, {what}; download it again")

    def _possible(self, what: str, count: int, most: int, least_bytes: int) -> None:
        if count > most:
            self._damaged(f"its header tells of {count} {what}")
        if count * least_bytes > self.end - self.at:
            raise IndexError

    def _number(self, form: str) -> int:
        value = struct.unpack_from(form, self.data, self.at)[0]
        self.at += struct.calcsize(form)
        return int(value)

    def _skip(self, length: int) -> None:
        self.at += length
        if self.at > self.end:
            raise IndexError

    def _text(self) -> str:
        length = self._number("<Q")
        start = self.at
        self._skip(length)
        kept = min(length, _LONGEST_TEXT_KEPT)
        self._texts_kept += kept
        if self._texts_kept > _TEXT_KEPT:
            self._damaged(f"its header has more than {_TEXT_KEPT >> 20} MiB of texts")
        return self.data[start : start + kept].decode("utf-8", "replace")

    def _value(self, key: str, kind: int) -> None:
        if key == ALIGNMENT_KEY and kind != _UINT32:
            self._damaged(f"{ALIGNMENT_KEY} is no 32-bit number")
        if kind == _STRING:
            self.values[key] = self._text()
        elif kind == _ARRAY:
            self._array(key)
        elif kind in _SCALARS:
            form = _SCALARS[kind]
            self.values[key] = struct.unpack_from(form, self.data, self.at)[0]
            self.at += struct.calcsize(form)
        else:
            self._damaged(f"unknown value type {kind} for {_cut(key)}")

    def _array(self, key: str) -> None:
        kind, length = self._number("<I"), self._number("<Q")
        self.lengths[key] = length
        if kind in _SCALARS:
            start = self.at
            self._skip(length * struct.calcsize(_SCALARS[kind]))
            self._numbers_kept += length if length <= _LONGEST_ARRAY_KEPT else 0
            if length <= _LONGEST_ARRAY_KEPT and self._numbers_kept <= _NUMBERS_KEPT:
                self.arrays[key] = struct.unpack_from(f"<{length}{_SCALARS[kind][1]}", self.data, start)
        elif kind == _STRING:
            self._texts(key, length)
        else:
            self._damaged(f"unknown array type {kind} for {_cut(key)}")

    def _texts(self, key: str, length: int) -> None:
        if length * 8 > self.end - self.at:
            raise IndexError
        self._texts_walked += length
        if self._texts_walked > _MOST_TEXTS:
            self._damaged(f"{_cut(key)} has {length} texts")
        start = at = self.at
        unpack, end = struct.Struct("<Q").unpack_from, self.end
        for _ in range(length):
            at += 8 + unpack(self.data, at)[0]
            if at > end:
                raise IndexError
        if at - start > _LONGEST_TEXTS:
            self._damaged(f"{_cut(key)} has {at - start} bytes of texts")
        self.at = at
        if key == TOKENS_KEY:
            self.tokens = (start, at, length)

    def _alignment(self) -> int:
        declared = self.values.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
        alignment = declared if isinstance(declared, int) else 0
        if alignment <= 0 or alignment & (alignment - 1):
            self._damaged(f"its alignment {declared} is no power of 2")
        return alignment

    def _tensors(self, count: int, alignment: int) -> None:
        names: set[str] = set()
        expected: int | None = 0
        longest = 0
        for _ in range(count):
            name, shape, kind, offset = self._tensor(names)
            size = self._size(name, shape, kind)
            if expected is not None and offset != expected:
                self._damaged(f"tensor {_cut(name)} is said to be at {offset}, the one before it ends at {expected}")
            if offset >= _LONGEST:
                self._damaged(f"tensor {_cut(name)} is said to be at {offset}")
            longest = max(longest, offset + (size or 0))
            expected = None if size is None or expected is None else expected + -(-size // alignment) * alignment
            self.tensors.append((name, size or 0, kind, shape))
        self.bytes_needed = -(-self.at // alignment) * alignment + longest if count else self.at

    def _tensor(self, names: set[str]) -> tuple[str, tuple[int, ...], int, int]:
        name = self._text()
        if len(name.encode("utf-8", "replace")) > _LONGEST_NAME or name in names:
            self._damaged(f"the tensor name {_cut(name)} is {'there twice' if name in names else 'too long'}")
        names.add(name)
        dimensions = self._number("<I")
        if dimensions > _MOST_DIMENSIONS:
            self._damaged(f"tensor {_cut(name)} has {dimensions} dimensions")
        shape = tuple(self._number("<Q") for _ in range(dimensions))
        return name, shape, self._number("<I"), self._number("<Q")

    def _size(self, name: str, shape: tuple[int, ...], kind: int) -> int | None:
        """Bytes of a tensor, None for a type that b11434 does not know."""
        if kind in REMOVED_TYPES:
            raise GgufError(
                f"model {self.shown}: tensor {_cut(name)} is of type {REMOVED_TYPES[kind]}, which llama.cpp removed; "
                "get or make the file anew"
            )
        if kind >= _MOST_KINDS:
            self._damaged(f"tensor {_cut(name)} is of type {kind}")
        elements = prod(shape)
        if elements >= _LONGEST or any(one >= _LONGEST for one in shape):
            self._damaged(f"tensor {_cut(name)} has the shape {' x '.join(map(str, shape))}")
        known = TENSOR_TYPES.get(kind)
        if known is None:
            return None
        row = shape[0] if shape else 1
        if row % known.per_block:
            self._damaged(
                f"tensor {_cut(name)} has rows of {row}, and {known.name} comes in blocks of {known.per_block}"
            )
        return elements // known.per_block * known.block_bytes


def _bad_version(version: int) -> str:
    if version and not version & _BYTES_SWAPPED:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        return (
            f"GGUF version {swapped} in big-endian byte order is not supported, only little-endian 2 and 3; "
            "convert it with gguf-convert-endian"
        )
    if version > max(VERSIONS):
        return f"GGUF version {version} is newer than 3, which llama.cpp b11434 knows; use a newer specdash and engine"
    return (
        f"GGUF version {version} is not supported, only little-endian 2 and 3 (llama.cpp dropped 1 in 2023); "
        "convert it again"
    )


def _cut(text: str) -> str:
    shown = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text[:60])
    return repr(shown) if len(text) <= len(shown) else repr(f"{shown}…")

"""Facts in a GGUF file's header, read without the gguf package and without loading a tensor.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. Only the header is
read: key-value pairs and tensor descriptions. They also tell how long the file must be, so a download that stopped
early is found before an engine is started on it. Long arrays, such as the vocabulary, are located and not kept.
"""

from __future__ import annotations

import mmap
import re
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from specdash.llama.gguf_header import GgufError, Header, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["GgufError", "GgufFacts", "Span", "Tensor", "join_parts", "read_facts", "read_one_file", "split_paths"]

MAGIC = b"GGUF"
_SPLIT_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_FIRST_BYTES = 64
_MOST = 2**48
_MOST_PARTS = 99_999
_PARTS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor as the header describes it: `size` in bytes, 0 for a type that this module does not know.

    `kind` is its ggml type number (`llama.gguf_types`), `shape` its elements, the fastest dimension first.
    """

    name: str
    size: int
    kind: int = -1
    shape: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        total = 1
        for length in self.shape:
            total *= length
        return total


@dataclass(frozen=True, slots=True)
class Span:
    """Where the texts of an array are: byte positions in the file, from its first text's length to its end."""

    start: int
    end: int
    count: int


@dataclass(frozen=True, slots=True)
class GgufFacts:
    """What the header says; None where it does not say it. `bytes_needed` is the length the tensors require.

    Of a model in several files these are the facts of the first, with the tensors and the bytes of all.
    """

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
    parts: int = 1
    """Files the model is in."""

    @property
    def draft_architecture(self) -> str | None:
        """The architecture that picks its spec type: a DSpark draft is a DFlash one with a Markov head."""
        if self.architecture == "dflash" and any(one.name.startswith("markov_w1") for one in self.tensors):
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
        numbers = tuple(_whole(one) for one in found)
        return None if None in numbers else tuple(one for one in numbers if one is not None)

    def text(self, key: str) -> str | None:
        """The text under a whole key, None where there is none."""
        value = self.values.get(key)
        return value if isinstance(value, str) and value else None


def read_facts(path: str | Path) -> GgufFacts:
    """The facts of the model at `path`, with all its parts where it was split into several files.

    Raises `GgufError`, which names the file and says what is wrong with it and what to do.
    """
    return join_parts(read_one_file(path), read_one_file)


def join_parts(facts: GgufFacts, read: Callable[[str], GgufFacts]) -> GgufFacts:
    """The facts of a whole model, given those of its first file; `read` reads another one. Raises `GgufError`."""
    others = split_paths(facts)
    if not others:
        return facts
    absent = [path for path in others if not path.is_file()]
    if absent:
        names = ", ".join(str(path) for path in absent[:_PARTS_SHOWN])
        more = f" and {len(absent) - _PARTS_SHOWN} more" if len(absent) > _PARTS_SHOWN else ""
        raise GgufError(
            f"model {facts.path}: is split into {len(others) + 1} files, and {len(absent)} of them "
            f"{'is' if len(absent) == 1 else 'are'} not there: {names}{more}; download all of them to one folder"
        )
    every = (facts, *(read(str(path)) for path in others))
    tensors = tuple(tensor for one in every for tensor in one.tensors)
    told = _whole(facts.values.get("split.tensors.count"))
    if told is not None and told != len(tensors):
        raise GgufError(
            f"model {facts.path}: its {len(every)} files hold {len(tensors)} tensors, and the first tells of {told}; "
            "the files are not of one model: download them again"
        )
    return replace(
        facts,
        tensors=tensors,
        tensor_count=len(tensors),
        file_bytes=sum(one.file_bytes for one in every),
        bytes_needed=sum(one.bytes_needed for one in every),
        parts=len(every),
    )


def read_one_file(path: str | Path) -> GgufFacts:
    """The facts of one file, whatever other files the model is in. Raises `GgufError`."""
    shown = str(path)
    try:
        kind = Path(path).stat().st_mode
        if stat.S_ISDIR(kind):
            raise GgufError(f"model {shown}: is a directory; name the .gguf file")
        if not stat.S_ISREG(kind):
            raise GgufError(f"model {shown}: is no regular file; name the .gguf file")
        with Path(path).open("rb") as file:
            start = file.read(_FIRST_BYTES)
            if start[:4] != MAGIC:
                raise GgufError(_not_gguf(shown, start))
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                header = Header(data, shown)
                header.read()
                facts = _facts(header)
    except FileNotFoundError:
        raise GgufError(f"model {shown}: no such file") from None
    except (OSError, ValueError) as error:
        raise GgufError(f"model {shown}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if facts.file_bytes < facts.bytes_needed:
        raise GgufError(
            f"model {shown}: truncated, {facts.file_bytes} of {facts.bytes_needed} bytes are there; download it again"
        )
    return facts


def split_paths(facts: GgufFacts) -> tuple[Path, ...]:
    """The other files of a model that was split into several (`NAME-00001-of-00003.gguf`), which the engine loads too.

    Empty for a model in one file. Raises `GgufError` for a part that is not the first, and where the name does not
    follow the rule: the engine would refuse it.
    """
    count = _whole(facts.values.get("split.count"))
    if count is None or count < 2:
        return ()
    number = _whole(facts.values.get("split.no")) or 0
    path = Path(facts.path)
    found = _SPLIT_NAME.fullmatch(path.name)
    if number > 0:
        first = path.with_name(f"{found.group(1)}-00001-of-{found.group(3)}.gguf") if found else "the first"
        raise GgufError(f"model {facts.path}: is part {number + 1} of {count} of a model; name {first}")
    if found is None or int(found.group(2)) != 1 or int(found.group(3)) != count or count > _MOST_PARTS:
        raise GgufError(
            f"model {facts.path}: is the first of {count} files, and its name must end in -00001-of-{count:05d}.gguf; "
            "give all parts their names back"
        )
    names = (f"{found.group(1)}-{at:05d}-of-{found.group(3)}.gguf" for at in range(2, count + 1))
    return tuple(path.with_name(name) for name in names)


def _whole(value: Value | None) -> int | None:
    return value if isinstance(value, int) and 0 <= value < _MOST else None


_OTHER_FORMATS: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "a Git LFS pointer; run `git lfs pull`"),
    (b"<", "a web page; download the file itself"),
    (b"PK\x03\x04", "a ZIP archive or a PyTorch checkpoint; convert it with convert_hf_to_gguf.py"),
    (b"\x1f\x8b", "one compressed with gzip; unpack it"),
    (b"\x28\xb5\x2f\xfd", "one compressed with zstd; unpack it"),
    *((magic, "a GGML file of before August 2023, which llama.cpp no longer reads; get it as GGUF")
      for magic in (b"lmgg", b"tjgg", b"fmgg", b"algg", b"ggml", b"ggjt", b"ggmf", b"ggla")),
)  # fmt: skip


def _not_gguf(shown: str, start: bytes) -> str:
    if not start:
        return f"model {shown}: is empty; download it again"
    for magic, what in _OTHER_FORMATS:
        if start.lstrip().startswith(magic):
            return f"model {shown}: is no GGUF file but {what}"
    if start[8:9] == b"{" and start[6:8] == b"\0\0":
        return f"model {shown}: is no GGUF file but a safetensors file; convert it with convert_hf_to_gguf.py"
    return f"model {shown}: is no GGUF file (it starts with {start[:4]!r}, not b'GGUF'); name a .gguf model"


def _facts(header: Header) -> GgufFacts:
    def text(key: str) -> str | None:
        value = header.values.get(key)
        return value if isinstance(value, str) else None

    architecture = text("general.architecture")
    tokens = header.tokens
    return GgufFacts(
        path=header.shown,
        version=header.version,
        tensor_count=len(header.tensors),
        architecture=architecture,
        name=text("general.name"),
        context_length=_whole(header.values.get(f"{architecture}.context_length")),
        block_count=_whole(header.values.get(f"{architecture}.block_count")),
        nextn_layers=_whole(header.values.get(f"{architecture}.nextn_predict_layers")),
        tokenizer=text("tokenizer.ggml.model"),
        vocabulary_size=header.lengths.get("tokenizer.ggml.tokens"),
        has_chat_template=bool(header.values.get("tokenizer.chat_template")),
        file_bytes=header.end,
        bytes_needed=header.bytes_needed,
        values=MappingProxyType(header.values),
        arrays=MappingProxyType(header.arrays),
        tensors=tuple(Tensor(*one) for one in header.tensors),
        token_texts=Span(*tokens) if tokens is not None else None,
    )

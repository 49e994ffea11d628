"""Whether a draft's vocabulary fits its target's, judged as llama.cpp judges it for `draft-simple`.

Source: `common_speculative_are_compatible` in llama.cpp b11434 (common/speculative.cpp), and the defaults of
src/llama-vocab.cpp: kind of vocabulary, whether BOS and EOS are added and which they are, sizes within 128 tokens, and
the same texts from token 5 on. Where the headers do not decide a point, it is not judged.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdash.llama.gguf import GgufFacts, Span

MOST_SIZE_DIFFERENCE = 128
FIRST_COMPARED = 5

_KINDS = {"no_vocab": "none", "gemma4": "gpt2"}
"""Names of tokenizers that are another one's vocabulary kind."""
_SPECIAL = {"bos": {"llama": 1, "gpt2": 11, "bert": 101, "plamo2": 1}, "eos": {"llama": 2, "gpt2": 11, "t5": 1}}
_ADDED = {
    "bos": {"llama": True, "bert": True, "t5": False, "rwkv": False, "none": False},
    "eos": {"llama": False, "gpt2": False, "t5": True, "rwkv": False, "none": False},
}
_BOS_OF_PRE = frozenset({"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2", "tekken"})
"""Pre-tokenizers of BPE vocabularies that add BOS when the header says nothing."""


def misfit(target: GgufFacts, draft: GgufFacts) -> str | None:
    """The first point in which the vocabularies differ, in words; None when they fit, as far as the files tell.

    Reads the token texts from the files, and only compares bytes while they are the same.
    """
    kinds = _kind(target), _kind(draft)
    if None not in kinds and kinds[0] != kinds[1]:
        return f"its tokenizer is {kinds[1]!r}, the model's {kinds[0]!r}"
    for name in ("bos", "eos"):
        said = _special_misfit(name, target, draft)
        if said is not None:
            return said
    sizes = target.vocabulary_size, draft.vocabulary_size
    if sizes[0] is None or sizes[1] is None:
        return None
    if abs(sizes[0] - sizes[1]) > MOST_SIZE_DIFFERENCE:
        return f"its vocabulary has {sizes[1]} tokens, the model's {sizes[0]}"
    return other_words(target, draft)


def _kind(facts: GgufFacts) -> str | None:
    return _KINDS.get(facts.tokenizer, facts.tokenizer) if facts.tokenizer is not None else None


def _special_misfit(name: str, target: GgufFacts, draft: GgufFacts) -> str | None:
    added = _added(name, target), _added(name, draft)
    if added[0] is None or added[1] is None:
        return None
    if added[0] != added[1]:
        verb = {True: "adds", False: "does not add"}
        return f"it {verb[added[1]]} the {name.upper()} token, the model {verb[added[0]]} it"
    ids = _special(name, target), _special(name, draft)
    if added[0] and None not in ids and ids[0] != ids[1]:
        return f"its {name.upper()} token is {ids[1]}, the model's {ids[0]}"
    return None


def _added(name: str, facts: GgufFacts) -> bool | None:
    told = facts.values.get(f"tokenizer.ggml.add_{name}_token")
    if isinstance(told, bool):
        return told
    kind = _kind(facts) or ""
    if name == "bos" and kind == "gpt2":
        pre = facts.values.get("tokenizer.ggml.pre")
        return True if pre in _BOS_OF_PRE else (False if pre in (None, "default", "gpt-2", "qwen2") else None)
    return _ADDED[name].get(kind)


def _special(name: str, facts: GgufFacts) -> int | None:
    told = facts.values.get(f"tokenizer.ggml.{name}_token_id")
    return int(told) if isinstance(told, int) else _SPECIAL[name].get(_kind(facts) or "")


def other_words(target: GgufFacts, draft: GgufFacts) -> str | None:
    """The first token, from the fifth on, that is another text in the draft, in words; None where there is none.

    Raises `OSError` when a file went away.
    """
    first, second = target.token_texts, draft.token_texts
    if first is None or second is None:
        return None
    with (
        Path(target.path).open("rb") as one,
        Path(draft.path).open("rb") as two,
        mmap.mmap(one.fileno(), 0, access=mmap.ACCESS_READ) as ours,
        mmap.mmap(two.fileno(), 0, access=mmap.ACCESS_READ) as theirs,
    ):
        length = min(first.end - first.start, second.end - second.start)
        if ours[first.start : first.start + length] == theirs[second.start : second.start + length]:
            return None
        pairs = zip(_texts(ours, first), _texts(theirs, second), strict=False)
        for number, (mine, other) in enumerate(pairs):
            if number >= FIRST_COMPARED and mine != other:
                return f"token {number} is {_shown(other)}, in the model {_shown(mine)}"
    return None


def _texts(data: mmap.mmap, span: Span) -> Iterator[bytes]:
    unpack, at = struct.Struct("<Q").unpack_from, span.start
    for _ in range(span.count):
        size = unpack(data, at)[0]
        at += 8 + size
        yield data[at - size : at].partition(b"\0")[0]


def _shown(text: bytes) -> str:
    return repr(text.decode("utf-8", "replace")[:40])

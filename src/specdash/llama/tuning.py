"""Whether a GGUF file holds an instruct model or a base model, as far as the file tells.

The words of `general.finetune` decide, then those of the model's name, then a chat template. Tokens of a chat format
and the name of the file decide nothing: base models of a family have the same tokens, and anybody names files. Words
of `general.base_model.*` are about the model this one was made from, and are not read.
"""

from __future__ import annotations

import mmap
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdash.llama.gguf import GgufFacts


class Tuning(StrEnum):
    """What a model was trained for last."""

    INSTRUCT = "instruct"
    """To answer in a chat."""
    BASE = "base"
    """To go on with a text, and nothing else."""
    UNKNOWN = "unknown"
    """The file does not tell."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the file tells, and by what."""

    tuning: Tuning
    because: tuple[str, ...]


_INSTRUCT = frozenset(
    {"it", "instruct", "instruction", "instructed", "chat", "assistant", "sft", "dpo", "orpo", "rlhf", "thinking"}
    | {"reasoning"}
)
_BASE = frozenset({"base", "pt", "pretrain", "pretrained", "foundation", "backbone"})
_WORD = re.compile(r"[a-z]+")
_CHAT_TOKENS = (
    b"<|im_start|>", b"<|eot_id|>", b"<start_of_turn>", b"<|turn>", b"[INST]", b"<|start_header_id|>", b"<|assistant|>",
    b"<|end_of_turn|>", b"<|channel|>", b"<|START_OF_TURN_TOKEN|>", b"<|end|>", b"<\xef\xbd\x9cAssistant\xef\xbd\x9c>",
)  # fmt: skip


def tuning_of(facts: GgufFacts) -> Verdict:
    """Judge the header; the vocabulary is read from the file for its chat tokens, without being kept."""
    reasons: list[str] = []
    decided = Tuning.UNKNOWN
    for where, text in _named(facts):
        said = _said(text)
        if said is not None:
            reasons.append(f"{where} is {text!r}")
            decided = said if decided is Tuning.UNKNOWN else decided
            if said is not decided:
                reasons[-1] += f", which says {said}"
    if facts.has_chat_template:
        reasons.append("it has a chat template" + (", as some base models do" if decided is Tuning.BASE else ""))
        decided = Tuning.INSTRUCT if decided is Tuning.UNKNOWN else decided
    else:
        reasons.append("it has no chat template")
    tokens = _chat_tokens(facts)
    if tokens:
        reasons.append(f"its vocabulary has {', '.join(tokens)}, as base models of the family may have too")
    if decided is Tuning.UNKNOWN:
        hint = _said(Path(facts.path).stem)
        if hint is not None:
            reasons.append(f"the file's name says {hint}, which anybody may write")
    return Verdict(decided, tuple(reasons))


def _named(facts: GgufFacts) -> Iterator[tuple[str, str]]:
    # The words of a T5 model's name are its size: small, base, large.
    names = () if facts.architecture == "t5" else ("general.name", "general.basename")
    for key in ("general.finetune", *names):
        text = facts.text(key)
        if text is not None:
            yield key, text[:120]


def _said(text: str) -> Tuning | None:
    words = set(_WORD.findall(text.lower()))
    if words & _INSTRUCT:
        return Tuning.INSTRUCT
    return Tuning.BASE if words & _BASE else None


def _chat_tokens(facts: GgufFacts) -> tuple[str, ...]:
    span = facts.token_texts
    if span is None:
        return ()
    try:
        with Path(facts.path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found = [
                one
                for one in _CHAT_TOKENS
                if data.find(len(one).to_bytes(8, "little") + one, span.start, span.end) >= 0
            ]
    except (OSError, ValueError):
        return ()
    return tuple(one.decode() for one in found[:3])

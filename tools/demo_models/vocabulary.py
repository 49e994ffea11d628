"""A byte-level BPE vocabulary in GPT-2's manner: every text round-trips, code merges well."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TEXT, IM_START, IM_END = range(3)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens in id order, merges in rank order, and the encoder itself."""

    tokens: tuple[str, ...]
    merges: tuple[str, ...]
    encoder: Tokenizer

    def encode(self, texts: Sequence[str]) -> list[npt.NDArray[np.int64]]:
        """Token ids of each text; control tokens in the text become control ids."""
        return [np.asarray(e.ids, dtype=np.int64) for e in self.encoder.encode_batch(list(texts))]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, control tokens shown."""
        text: str = self.encoder.decode(list(ids), skip_special_tokens=False)
        return text


def train(texts: Sequence[str], size: int) -> Vocabulary:
    """Learn merges from ``texts`` up to ``size`` tokens. The pre-tokenizer is the one llama.cpp calls ``gpt-2``."""
    encoder = Tokenizer(models.BPE())
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    encoder.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in CONTROL_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    encoder.train_from_iterator(texts, trainer)
    state = json.loads(encoder.to_str())["model"]
    tokens = sorted(state["vocab"], key=state["vocab"].__getitem__)
    merges = [m if isinstance(m, str) else " ".join(m) for m in state["merges"]]
    return Vocabulary(tuple(tokens), tuple(merges), encoder)

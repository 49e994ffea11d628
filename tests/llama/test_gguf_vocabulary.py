"""Vocabularies of a model and its draft. test_agreement asks the real server the same."""

from pathlib import Path

import pytest

from specdash.llama.draft_fit import misfit
from specdash.llama.gguf import read_facts
from support.tiny_models import TOKENS, write_llama, write_variant


def _changed(at: int, text: str) -> list[str]:
    return [*TOKENS[:at], text, *TOKENS[at + 1 :]]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, None),
        ({"tokens": _changed(3, "<other>")}, None),
        ({"tokens": [*TOKENS, *"abc"]}, None),
        ({"tokens": [*_changed(3, "<longer than before>"), "x"]}, None),
        ({"tokens": _changed(5, "x")}, "token 5 is 'x', in the model '<0x01>'"),
        ({"tokens": _changed(280, "▁zebra")}, "token 280 is '▁zebra', in the model '▁large'"),
        ({"tokens": [*TOKENS, *(f"<{n}>" for n in range(128))]}, None),
        ({"tokens": [*TOKENS, *(f"<{n}>" for n in range(129))]}, "its vocabulary has 449 tokens, the model's 320"),
        ({"tokenizer": "gpt2"}, "its tokenizer is 'gpt2', the model's 'llama'"),
        ({"add_bos": False}, "it does not add the BOS token, the model adds it"),
        ({"add_bos": True}, None),
        ({"add_eos": True}, "it adds the EOS token, the model does not add it"),
        ({"bos": 2}, "its BOS token is 2, the model's 1"),
        ({"bos": 2, "add_bos": False}, "it does not add the BOS token, the model adds it"),
    ],
)
def test_the_first_difference_is_named(options: dict[str, object], said: str | None, tmp_path: Path) -> None:
    target = read_facts(write_llama(tmp_path / "target.gguf"))
    draft = read_facts(write_variant(tmp_path / "draft.gguf", **options))  # type: ignore[arg-type]
    assert misfit(target, draft) == said

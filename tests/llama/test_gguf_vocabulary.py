"""Vocabularies of a model and its draft, and models in several files. test_agreement asks the real server the same."""

from pathlib import Path

import pytest

from specdash.llama.gguf import read_facts
from specdash.llama.model_facts import misfit
from support.tiny_models import TOKENS, write_lfm2, write_llama, write_variant


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


def test_a_vocabulary_is_located_and_not_kept(tmp_path: Path) -> None:
    facts = read_facts(write_llama(tmp_path / "m.gguf"))
    assert facts.token_texts is not None
    assert facts.token_texts.count == len(TOKENS)
    assert "tokenizer.ggml.tokens" not in facts.arrays
    assert len(facts.arrays["tokenizer.ggml.token_type"]) == len(TOKENS)


def test_numbers_arrays_and_tensors_of_the_header_are_there(tmp_path: Path) -> None:
    facts = read_facts(write_lfm2(tmp_path / "m.gguf"))
    assert facts.number("embedding_length") == 128
    assert facts.array("attention.head_count_kv") == (0, 0, 4)
    assert facts.number("general.name") is None
    assert sum(tensor.size for tensor in facts.tensors) <= facts.file_bytes
    assert {tensor.name for tensor in facts.tensors} >= {"token_embd.weight", "blk.2.attn_q.weight"}

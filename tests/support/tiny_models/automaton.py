"""What all tiny models share: the vocabulary, the sentence, and the writer of a GGUF file.

The output projections of attention, SSM and FFN are zero, so a token's hidden state is its embedding, and the head maps
it to one successor: the model is a token automaton that recites a sentence for ever, while real KV and recurrent
memory is allocated and updated. A draft has some wrong successors, which fixes what share of its drafts is accepted.
"""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

_TEXT = (
    "the speculative decoder drafts several tokens with a small model and verifies them in one batch by means of "
    "large target whose accepted prefix is kept while rejected suffix must be rolled back using checkpoints . this "
    "sentence never ends because every word here occurs exactly once so next follows from previous"
)
SENTENCE = tuple(_TEXT.split())
WIDTH = 128
CONTEXT = 32768
GAIN = 20.0


def _vocabulary() -> tuple[list[str], list[int], int]:
    tokens = ["<unk>", "<s>", "</s>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    kinds = [2, 3, 3, 3, *[6] * 256, 1]
    first_word = len(tokens)
    tokens += [f"▁{word}" for word in SENTENCE]
    kinds += [1] * len(SENTENCE)
    while len(tokens) % 32:
        tokens.append(f"<pad{len(tokens)}>")
        kinds.append(5)
    return tokens, kinds, first_word


TOKENS, TOKEN_KINDS, FIRST_WORD = _vocabulary()


def _acts_like() -> NDArray[np.int64]:
    """Which word of the sentence, as an index, each token acts like: itself, or the one before which it leads."""
    words = len(SENTENCE)
    alike = (np.arange(len(TOKENS)) - 1) % words
    alike[FIRST_WORD : FIRST_WORD + words] = np.arange(words)
    return alike


def embeddings() -> NDArray[np.float64]:
    """The embedding of each token: of words orthogonal, so that no word's successor disturbs another's."""
    orthogonal = np.ones((1, 1))
    while len(orthogonal) < WIDTH:
        orthogonal = np.kron(orthogonal, np.array([[1.0, 1.0], [1.0, -1.0]]))
    # Shuffled, the parts of two words that one attention head sees are not alike either.
    random = np.random.default_rng(0)
    shuffled: NDArray[np.float64] = orthogonal[random.permutation(WIDTH)][:, random.permutation(WIDTH)]
    return shuffled[_acts_like()]


def head(table: NDArray[np.int64]) -> NDArray[np.float64]:
    """The output projection that maps the embedding of each word to its successor in `table`."""
    rows = np.zeros((len(TOKENS), WIDTH))
    words = slice(FIRST_WORD, FIRST_WORD + len(SENTENCE))
    for embedding, successor in zip(embeddings()[words], table[words], strict=True):
        rows[successor] += embedding
    return rows * GAIN / WIDTH


def successors(wrong_every: int = 0) -> NDArray[np.int64]:
    """The successor of each token; every `wrong_every`-th word gets a wrong one.

    A token that is no word has the successor of a word, too: a prompt may end with anything.
    """
    words = len(SENTENCE)
    word = np.arange(words)
    wrong = (word % wrong_every == 0) if wrong_every else np.zeros(words, dtype=bool)
    following: NDArray[np.int64] = FIRST_WORD + (word + np.where(wrong, 7, 1)) % words
    return following[_acts_like()]


class Model:
    """A GGUF file being written: its common keys are set, tensors are added one by one, `close` ends it."""

    def __init__(self, path: Path, architecture: str, layers: int, feed_forward: int, heads: int, words: int) -> None:
        self.architecture = architecture
        self.random = np.random.default_rng(7)
        self.writer = gguf.GGUFWriter(str(path), architecture)
        self.writer.add_name(f"tiny {architecture}")
        self.writer.add_file_type(0)
        for key, value in {
            "context_length": CONTEXT,
            "embedding_length": WIDTH,
            "block_count": layers,
            "feed_forward_length": feed_forward,
            "attention.head_count": heads,
            "vocab_size": words,
        }.items():
            self.number(key, value)
        self.writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
        self.writer.add_tokenizer_model("llama")
        self.writer.add_token_list(TOKENS)
        self.writer.add_token_scores([-float(index) for index in range(words)])
        self.writer.add_token_types(TOKEN_KINDS)
        self.writer.add_bos_token_id(1)
        self.writer.add_eos_token_id(2)
        self.writer.add_unk_token_id(0)
        self.writer.add_chat_template(
            "{% for m in messages %}{{m.role}}: {{m.content}}\n{% endfor %}assistant:",
        )

    def number(self, key: str, value: int) -> None:
        """An integer key of the architecture."""
        self.writer.add_uint32(f"{self.architecture}.{key}", value)

    def tensor(self, name: str, values: Any) -> None:
        """A tensor of 32-bit floats."""
        self.writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))

    def noise(self, name: str, *shape: int, scale: float = 0.2) -> None:
        """A tensor whose values do not matter."""
        self.tensor(name, self.random.standard_normal(shape) * scale)

    def automaton(self, table: NDArray[np.int64], norm: str = "output_norm.weight") -> None:
        """Embeddings and head of the automaton with the successors `table`."""
        self.tensor("token_embd.weight", embeddings())
        self.tensor(norm, np.ones(WIDTH))
        self.tensor("output.weight", head(table))

    def close(self) -> None:
        """Write the file."""
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def feed_forward_block(model: Model, block: str, size: int, second_norm: str = "ffn_norm") -> None:
    """The norms of a layer and a feed-forward part that adds nothing."""
    model.tensor(block + "attn_norm.weight", np.ones(WIDTH))
    model.tensor(block + f"{second_norm}.weight", np.ones(WIDTH))
    model.noise(block + "ffn_gate.weight", size, WIDTH)
    model.noise(block + "ffn_up.weight", size, WIDTH)
    model.tensor(block + "ffn_down.weight", np.zeros((WIDTH, size)))

"""The models of the kit, written where there are numpy and gguf: tiny, of known acceptance, to be widened on the spot.

The automata recite a sentence for ever; their drafts have every token right, every 8th word wrong, or all of them.
They are in Q8_0, as large models are, with heads of 64, since llama.cpp's CUDA flash attention has none of 32, and with
delta nets of 64 for its kernels for those. Targets whose hidden states a draft reads are 512 wide, and stay it when
they are widened.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import numpy as np

from specdash.llama.gguf import read_facts
from specdash.llama.widening import Dimensions, plan, resize
from support import known_truth, tiny_models

if TYPE_CHECKING:
    from collections.abc import Callable

BUNDLED = Path(__file__).resolve().parents[2] / "src" / "specdash" / "backend" / "models"
WRONG_EVERY = 8
HEADS, STATES = 2, 64
_READ_WIDTH = 4
"""Times the width of the automata: 512."""
_LONGEST = {"draft-simple": 16}
_LONGEST_BLOCK = 7
"""Tokens that a block of 8 drafts, and that a recurrent target takes back without a replay."""
PROMPT = [1, tiny_models.FIRST_WORD]
TOKENS = 4 * len(tiny_models.SENTENCE)
"""Of the greedy request of which the counters are told: the sentence four times, after its first word."""


@dataclass(frozen=True, slots=True)
class KitModel:
    """One of the kit: how it is written, and what is known about it beforehand.

    `drafts_for` is the target that it drafts for, by `spec_type`, with every `wrong_every`-th word wrong (0: none).
    """

    name: str
    write: Callable[[Path], object]
    text: str = "the sentence"
    drafts_for: str | None = None
    spec_type: str | None = None
    wrong_every: int | None = None
    read_width: bool = False

    def facts(self, file: Path) -> dict[str, object]:
        """Its entry in models.json; `counted` is by draft length (`known_counts`)."""
        facts = read_facts(file)
        counted = None
        if self.spec_type is not None and self.wrong_every is not None:
            longest = _LONGEST.get(self.spec_type, _LONGEST_BLOCK)
            counted = {str(length): known_counts(self.wrong_every, length) for length in range(1, longest + 1)}
        return {
            "bytes": facts.file_bytes,
            "architecture": facts.architecture,
            "layers": facts.block_count,
            "width": facts.number("embedding_length"),
            "context": facts.context_length,
            "text": self.text,
            "drafts_for": self.drafts_for,
            "spec_type": self.spec_type,
            "wrong_every": self.wrong_every,
            "counted": counted,
        }


def known_counts(wrong_every: int, length: int) -> dict[str, int]:
    """What the engine counts for the request of TOKENS after PROMPT, with drafts of up to `length`.

    The share that is accepted depends on the place at which an answer begins, since the wrong words have fixed places.
    """
    counts = known_truth.run(PROMPT, TOKENS, known_truth.by_model(wrong_every, length))
    return {"drafted": counts.drafted, "accepted": counts.accepted, "steps": counts.steps}


def _bundled(name: str) -> Callable[[Path], object]:
    return lambda path: shutil.copyfile(BUNDLED / f"demo-{name}.gguf", path)


def _llama(layers: int, wrong_every: int = 0) -> Callable[[Path], object]:
    return lambda path: tiny_models.write_llama(path, layers=layers, wrong_every=wrong_every, heads=HEADS)


def _draft(name: str, wrong_every: int) -> KitModel:
    return KitModel(
        f"automaton-draft-{name}", _llama(1, wrong_every), "the sentence", "automaton", "draft-simple", wrong_every
    )


_TRAINED = "as demo-target was trained"
MODELS = (
    KitModel("target", _bundled("target"), _TRAINED),
    KitModel("draft", _bundled("draft"), _TRAINED, "target", "draft-simple"),
    KitModel("automaton", _llama(2)),
    _draft("all", 0),
    _draft("most", WRONG_EVERY),
    _draft("none", 1),
    KitModel(
        "mtp",
        lambda path: tiny_models.write_qwen35(
            path, heads_too=True, wrong_every=WRONG_EVERY, heads=HEADS, states=STATES
        ),
        "the sentence", "mtp", "draft-mtp", WRONG_EVERY,
    ),
    KitModel("eagle3-target", _llama(3), read_width=True),
    KitModel(
        "eagle3",
        lambda path: tiny_models.write_eagle3(path, wrong_every=WRONG_EVERY, heads=HEADS),
        "the sentence", "eagle3-target", "draft-eagle3", WRONG_EVERY, read_width=True,
    ),
    KitModel("dflash-target", _llama(3), read_width=True),
    KitModel(
        "dflash",
        lambda path: tiny_models.write_dflash(path, wrong_every=WRONG_EVERY),
        "the sentence", "dflash-target", "draft-dflash", WRONG_EVERY, read_width=True,
    ),
    KitModel(
        "dspark",
        lambda path: tiny_models.write_dspark(path, wrong_every=WRONG_EVERY, heads=HEADS),
        "the sentence", "automaton", "draft-dspark", WRONG_EVERY,
    ),
    KitModel("mamba", lambda path: tiny_models.write_mamba(path, layers=2)),
)  # fmt: skip


def write_models(directory: Path) -> None:
    """Write them into `directory`, with models.json: what is known about each, and the automata's vocabulary."""
    directory.mkdir(parents=True, exist_ok=True)
    known: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for model in MODELS:
            file = directory / f"{model.name}.gguf"
            if model.text == _TRAINED:
                model.write(file)
            else:
                plain, quantised = Path(scratch, "plain.gguf"), Path(scratch, "quantised.gguf")
                model.write(plain)
                as_q8_0(plain, quantised)
                if model.read_width:
                    facts = plan(quantised, quantised.stat().st_size)
                    resize(quantised, file, Dimensions(facts.layers, facts.rows, _READ_WIDTH))
                else:
                    shutil.copyfile(quantised, file)
            known[model.name] = model.facts(file)
    told = {
        "models": known,
        "sentence": " ".join(tiny_models.SENTENCE),
        "first_word": tiny_models.FIRST_WORD,
        "request": {"prompt": PROMPT, "n_predict": TOKENS},
    }
    (directory / "models.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def as_q8_0(source: Path, target: Path) -> None:
    """Write `source` with its matrices in Q8_0: those of whole blocks, as converters do; states and norms stay."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(str(target), architecture)
    kind = gguf.GGMLQuantizationType.Q8_0
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value = int(gguf.LlamaFileType.MOSTLY_Q8_0) if key == "general.file_type" else field.contents()
        array = field.types[0] == gguf.GGUFValueType.ARRAY
        writer.add_key_value(key, value, field.types[0], sub_type=field.types[-1] if array else None)
    for tensor in reader.tensors:
        values = np.array(tensor.data)
        if values.ndim == 2 and values.shape[1] % 32 == 0 and tensor.name.endswith(".weight"):
            writer.add_tensor(tensor.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

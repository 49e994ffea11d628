"""The models of the kit on the real engine: what is known about them beforehand holds, as large as they may get."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpu.kit import Kit
from gpu.models import MODELS, WRONG_EVERY
from specdash.core.speculation import SPEC_TYPES
from specdash.llama.gguf import read_facts
from specdash.llama.model_facts import draft_misfits
from specdash.llama.widening import plan
from support.engines import llama_server_binary

if TYPE_CHECKING:
    from collections.abc import Iterator

PROMPTS = (
    "The town of",
    "Once upon a time",
    "def main():",
    "A river is",
    "One, two, three,",
    "Why does",
    "In the morning",
    "<|im_start|>user\nWhat is a draft?<|im_end|>\n<|im_start|>assistant\n",
)
FLAGS = ("-c", "4096", "-np", "1", "-t", "1", "--no-warmup")
DRAFTED = [model.name for model in MODELS if model.spec_type is not None]
UNWIDENED = ("dspark",)
"""Drafts for a target as wide as they are."""
KNOWN = [(model.name, None) for model in MODELS if model.wrong_every is not None] + [
    (model.name, gigabytes)
    for model in MODELS
    if model.wrong_every == WRONG_EVERY and model.name not in UNWIDENED
    for gigabytes in (0.04, 0.11)
]
"""Those whose counters are known, and sizes of their targets: as they are, wider, and with everything larger."""
LENGTH = 7
HEAD_SIZES_OF_CUDA = {64, 80, 96, 112, 128, 256}
"""Of llama.cpp's flash attention on CUDA (ggml-cuda/fattn.cu), of those that a converter would choose."""


@pytest.fixture(scope="module")
def told(kit_models: Path) -> dict[str, Any]:
    """models.json."""
    read: dict[str, Any] = json.loads((kit_models / "models.json").read_text())
    return read


@pytest.fixture
def kit(kit_models: Path, tmp_path: Path) -> Iterator[Kit]:
    """The kit in full size, on the processor; what it widens is removed after each test."""
    yield Kit(kit_models.parent, tmp_path, tmp_path / "out", Path(llama_server_binary()), cpu=True)
    for file in tmp_path.glob("models/*.gguf"):
        file.unlink()


def test_the_kit_has_the_models_that_checks_name(kit_models: Path, told: dict[str, Any]) -> None:
    names = {
        "target",
        "draft",
        "automaton",
        "mtp",
        "eagle3-target",
        "eagle3",
        "dflash-target",
        "dflash",
        "dspark",
        "mamba",
    }
    names |= {f"automaton-draft-{share}" for share in ("all", "most", "none")}
    assert set(told["models"]) == {file.stem for file in kit_models.glob("*.gguf")} == names
    assert all(told["models"][name]["bytes"] == (kit_models / f"{name}.gguf").stat().st_size for name in names)
    assert sum(file.stat().st_size for file in kit_models.iterdir()) < 16 << 20


@pytest.mark.parametrize("gigabytes", [0.0, 0.08, 1.0, 30.0])
@pytest.mark.parametrize("name", [name for name in DRAFTED if name not in UNWIDENED])
def test_every_draft_fits_its_target_of_any_size(kit: Kit, told: dict[str, Any], name: str, gigabytes: float) -> None:
    known = told["models"][name]
    target = read_facts(kit.model(known["drafts_for"], gigabytes or None))
    draft = None if known["drafts_for"] == name else read_facts(kit.model(name))
    kind = next(kind for kind in SPEC_TYPES if kind.name == known["spec_type"])
    assert list(draft_misfits(kind, target, draft)) == []


@pytest.mark.parametrize("name", [model.name for model in MODELS if model.name != "mamba"])
def test_cuda_has_kernels_for_the_heads_of_every_model(kit_models: Path, name: str) -> None:
    facts = read_facts(kit_models / f"{name}.gguf")
    heads = facts.number("attention.head_count") or 1
    size = facts.number("attention.key_length") or (facts.number("embedding_length") or 0) // heads
    assert size in HEAD_SIZES_OF_CUDA
    inner, groups, states = (facts.number(f"ssm.{key}") or 0 for key in ("inner_size", "group_count", "state_size"))
    # Convolutions come in 128 channels, delta nets in states of 16, 32, 64 and 128.
    assert (inner + 2 * groups * states) % 128 == 0
    assert states in {0, 64}


@pytest.mark.llama_server
@pytest.mark.slow
def test_a_widened_target_writes_the_same_text(kit: Kit) -> None:
    texts = {}
    for gigabytes in (None, 0.08, 0.3):
        with kit.server(kit.model("target", gigabytes), *FLAGS) as server:
            texts[gigabytes] = [server.complete(prompt, 24)["content"] for prompt in PROMPTS]
    assert texts[0.08] == texts[None]
    assert texts[0.3] == texts[None]
    assert len(set(texts[None])) == len(PROMPTS)
    deep = plan(kit.model("target"), 300_000_000)
    assert (deep.layers, deep.width, deep.heads) == (16, 4, 5)


@pytest.mark.llama_server
@pytest.mark.slow
@pytest.mark.parametrize(("name", "gigabytes"), KNOWN)
def test_what_is_drafted_and_accepted_is_known_beforehand(
    kit: Kit, told: dict[str, Any], name: str, gigabytes: float | None
) -> None:
    known, asked = told["models"][name], told["request"]
    flags = [*FLAGS, "--spec-type", known["spec_type"], "--spec-draft-n-max", str(LENGTH)]
    if known["drafts_for"] != name:
        flags += ["-md", str(kit.model(name))]
    with kit.server(kit.model(known["drafts_for"], gigabytes), *flags) as server:
        answer = server.complete(asked["prompt"], asked["n_predict"])
    counted = known["counted"][str(LENGTH)]
    timings = answer["timings"]
    assert (timings["draft_n"], timings["draft_n_accepted"]) == (counted["drafted"], counted["accepted"])
    words = told["sentence"].split()
    assert answer["content"].split() == (words * 5)[1 : 1 + asked["n_predict"]]


@pytest.mark.llama_server
@pytest.mark.slow
def test_the_demo_pair_drafts_the_same_for_a_widened_target(kit: Kit) -> None:
    flags = [*FLAGS, "--spec-type", "draft-simple", "--spec-draft-n-max", "4", "-md", str(kit.model("draft"))]
    counted = {}
    for gigabytes in (None, 0.11):
        with kit.server(kit.model("target", gigabytes), *flags) as server:
            timings = [server.complete(prompt, 32)["timings"] for prompt in PROMPTS[:4]]
        counted[gigabytes] = [(timing["draft_n"], timing["draft_n_accepted"]) for timing in timings]
    assert counted[0.11] == counted[None]
    assert all(drafted > accepted > 0 for drafted, accepted in counted[None])


@pytest.mark.llama_server
def test_mamba_recites_too(kit: Kit, told: dict[str, Any]) -> None:
    with kit.server(kit.model("mamba"), *FLAGS) as server:
        answer = server.complete(told["request"]["prompt"], 60)
    assert answer["content"].split() == (told["sentence"].split() * 2)[1:61]

"""The demo's target is the bundled one at the cost of a real model, where there is room for that."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from specdash.backend import demo
from specdash.backend.workload import PAYING, PHASES
from specdash.llama.gguf import GgufHeader, read_facts
from specdash.llama.widening import widen

if TYPE_CHECKING:
    from pathlib import Path


def test_it_has_wide_layers_of_zeros_in_a_file_that_takes_little_room(tmp_path: Path) -> None:
    target = demo.widened_target(tmp_path)
    made, bundled = read_facts(target), read_facts(demo.bundled_model(demo.TARGET_MODEL))
    assert target.parent == tmp_path
    assert made.number("feed_forward_length") == demo.WIDE_ROWS
    assert made.block_count == bundled.block_count
    assert 80_000_000 < made.file_bytes <= 82_000_000
    assert target.stat().st_blocks * 512 < 10_000_000, "zeros are holes of the file"


def test_only_rows_of_zeros_are_added(tmp_path: Path) -> None:
    made, bundled = tmp_path / "wide.gguf", demo.bundled_model(demo.TARGET_MODEL)
    widen(bundled, made, 1024)
    (wide, values), (own, had) = (
        (GgufHeader(path.read_bytes(), path.name), path.read_bytes()) for path in (made, bundled)
    )
    for header in (wide, own):
        header.read()
    changed = {key for key in own.values if wide.values[key] != own.values[key]}
    assert changed == {"llama.feed_forward_length"}
    places = [(header.data_start, header) for header in (wide, own)]
    for tensor, before in zip(wide.tensors, own.tensors, strict=True):
        (at, _), (at_before, _) = places
        new, old = values[at : at + tensor.size], had[at_before : at_before + before.size]
        places = [(at + tensor.size + -tensor.size % 32, wide), (at_before + before.size + -before.size % 32, own)]
        if "ffn_down" in tensor.name:
            half = len(new) // (2 * tensor.shape[1])
            assert old == b"".join(new[row * 2 * half :][:half] for row in range(tensor.shape[1]))
            assert new.count(0) >= len(old)
        else:
            assert new == old + bytes(len(new) - len(old)), tensor.name


def test_each_target_has_the_draft_length_that_suits_it(tmp_path: Path) -> None:
    for path, length in ((None, 4), (tmp_path / "wide.gguf", 3)):
        text = demo.env_text(port=1, log=tmp_path / "l", spec_types=("draft-simple",), engine="auto", target=path)
        assert f'LLAMA_MODEL="{path or demo.bundled_model(demo.TARGET_MODEL)}"' in text
        assert f'LLAMA_DRAFT_MAX="{length}"' in text


@pytest.mark.parametrize("name", [demo.TARGET_MODEL, demo.DRAFT_MODEL])
def test_the_card_names_the_digest_and_the_size_of_the_file_it_describes(name: str) -> None:
    model = demo.bundled_model(name)
    card = (model.parent / "MODEL_CARD.md").read_text(encoding="utf-8")
    row = next(row for row in card.splitlines() if f"`{name}`" in row)
    assert "PSF-2.0" in card
    assert f"`{hashlib.sha256(model.read_bytes()).hexdigest()}`" in row
    assert f"| {model.stat().st_size:,} |" in row
    assert model.stat().st_size < 2_500_000


def test_a_round_of_traffic_pays_for_45_seconds_before_it_hurts() -> None:
    names = [phase.name for phase in PHASES]
    paying = PHASES[: names.index("hot")]
    assert set(PAYING) == set(names) - {"hot"}
    assert sum(phase.seconds for phase in paying) >= 45

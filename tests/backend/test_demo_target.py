"""The demo's target is the bundled one at the cost of a real model, where there is room for that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from specdash.backend import demo
from specdash.backend.workload import PAYING, PHASES
from specdash.core.errors import InputError
from specdash.llama.gguf import GgufHeader, read_facts
from specdash.llama.widening import Dimensions, resize

if TYPE_CHECKING:
    from pathlib import Path


def test_it_has_wide_layers_of_zeros_in_a_file_that_takes_little_room(tmp_path: Path) -> None:
    target, why = demo.widened_target(tmp_path)
    made, bundled = read_facts(target), read_facts(demo.bundled_model(demo.TARGET_MODEL))
    assert why == ""
    assert target.parent == tmp_path
    assert made.number("feed_forward_length") == demo.WIDE_ROWS
    assert made.block_count == bundled.block_count
    assert 80_000_000 < made.file_bytes <= 82_000_000
    assert target.stat().st_blocks * 512 < 10_000_000, "zeros are holes of the file"


def test_only_rows_of_zeros_are_added(tmp_path: Path) -> None:
    made, bundled = tmp_path / "wide.gguf", demo.bundled_model(demo.TARGET_MODEL)
    resize(bundled, made, Dimensions(demo.WIDE_LAYERS, 1024))
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
        new, old = values[at : at + tensor[1]], had[at_before : at_before + before[1]]
        places = [(at + tensor[1] + -tensor[1] % 32, wide), (at_before + before[1] + -before[1] % 32, own)]
        if "ffn_down" in tensor[0]:
            half = len(new) // (2 * tensor[3][1])
            assert old == b"".join(new[row * 2 * half :][:half] for row in range(tensor[3][1]))
            assert new.count(0) >= len(old)
        else:
            assert new == old + bytes(len(new) - len(old)), tensor[0]


def test_a_model_of_other_layers_or_more_rows_is_refused(tmp_path: Path) -> None:
    for wanted in (Dimensions(5, 1024), Dimensions(demo.WIDE_LAYERS, 256)):
        with pytest.raises(InputError, match="has 4 layers of 512 feed-forward rows"):
            resize(demo.bundled_model(demo.TARGET_MODEL), tmp_path / "wide.gguf", wanted)


def test_a_directory_that_cannot_be_written_is_a_reason_too(tmp_path: Path) -> None:
    target, why = demo.widened_target(tmp_path / "missing")
    assert target == demo.bundled_model(demo.TARGET_MODEL)
    assert "No such file" in why


def test_the_env_file_names_the_target_and_the_draft_length_that_suits_it(tmp_path: Path) -> None:
    target = tmp_path / "wide.gguf"
    text = demo.env_text(port=1, log=tmp_path / "l", spec_types=("draft-simple",), engine="auto", target=target)
    assert f'LLAMA_MODEL="{target}"' in text
    assert 'LLAMA_DRAFT_MAX="3"' in text


def test_a_round_of_traffic_pays_for_45_seconds_before_it_hurts() -> None:
    names = [phase.name for phase in PHASES]
    paying = PHASES[: names.index("hot")]
    assert set(PAYING) == set(names) - {"hot"}
    assert sum(phase.seconds for phase in paying) >= 45

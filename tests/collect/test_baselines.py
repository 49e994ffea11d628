"""Baselines measured by any process reach the dashboard, and are gone when somebody forgets them."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from specdash.collect.baselines import BaselineCollector
from specdash.core import paths
from specdash.core.baselines import Baseline
from specdash.core.readings import FailureKind, Reading, Source, Status

if TYPE_CHECKING:
    from pathlib import Path

ONE = Baseline(100.0, "m.gguf", "b1", 512, 1, 40.0, 39.0, 41.0, 5, model_bytes=7, decode_tokens=128)


class Room:
    def __init__(self, home: Path) -> None:
        self.env = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
        self.file = paths.baselines_file(self.env)
        self.file.parent.mkdir(parents=True)
        self.said: list[Reading[Any]] = []
        self.collector = BaselineCollector(self.said.append, self.env)

    def replace(self, *baselines: Baseline) -> None:
        fresh = self.file.with_name("fresh")
        fresh.write_text("".join(one.to_json() + "\n" for one in baselines) or "\n", encoding="utf-8")
        os.replace(fresh, self.file)  # noqa: PTH105


def test_without_a_file_it_says_how_to_record_one(tmp_path: Path) -> None:
    room = Room(tmp_path)
    room.collector.step()
    failure = room.said[-1].failure
    assert failure is not None
    assert failure.kind is FailureKind.NOT_CONFIGURED
    assert "specdash baseline record" in failure.detail


def test_all_baselines_are_published_and_again_when_the_file_is_replaced(tmp_path: Path) -> None:
    room = Room(tmp_path)
    room.replace(ONE)
    room.collector.step()
    assert room.said[-1] == Reading(Source.BASELINES, room.said[-1].at, Status.KNOWN, (ONE,))
    two = replace(ONE, context=4096)
    room.replace(ONE, two)
    room.collector.step()
    room.collector.step()
    assert room.said[-1].value == (ONE, two)


def test_forgetting_the_last_one_is_told(tmp_path: Path) -> None:
    room = Room(tmp_path)
    room.replace(ONE)
    room.collector.step()
    room.replace()
    room.collector.step()
    room.collector.step()
    assert room.said[-1].value == ()


def test_lines_that_are_no_baselines_are_passed_over(tmp_path: Path) -> None:
    room = Room(tmp_path)
    impossible = replace(ONE, low=50.0)
    room.file.write_text(f"[]\nnull\n{{}}\nhalf a li\n{impossible.to_json()}\n{ONE.to_json()}\n", encoding="utf-8")
    room.collector.step()
    assert room.said[-1].value == (ONE,)


@given(
    st.builds(
        Baseline,
        st.floats(0, 1e10),
        st.text(max_size=20),
        st.text(max_size=20),
        st.integers(0, 1 << 20),
        st.integers(1, 64),
        decode_rate=st.floats(1, 1e5),
        low=st.floats(0.1, 1),
        high=st.floats(1e5, 1e6),
        requests=st.integers(1, 100),
        model_bytes=st.none() | st.integers(0, 1 << 40),
        gpu=st.none() | st.text(max_size=10),
        decode_tokens=st.none() | st.integers(1, 1000),
    )
)
def test_a_baseline_survives_the_file_and_fields_of_newer_versions_do_not_hurt(one: Baseline) -> None:
    assert Baseline.from_json(one.to_json()) == one
    assert Baseline.from_json(one.to_json().replace("{", '{"new": 1, ', 1)) == one

"""`specdash autotune` and `simulate`: UAP's figures, and what they are said to be."""

import json

import pytest

from specdash.cli.main import main
from support.outside import say


def test_the_formula_is_printed_as_settings_and_as_what_it_is() -> None:
    code, out, _ = say("autotune", "--acceptance", "0.71", "--rollback", "0.14")
    assert code == 0
    assert out.startswith("19/5/0.76  (16/3/0.8 before; throughput")
    assert "LLAMA_DRAFT_MAX=19\nLLAMA_DRAFT_MIN=5\nLLAMA_DRAFT_P_MIN=0.76\n" in out
    assert "a heuristic" in out


def test_the_formula_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["autotune", "--acceptance", "0.9", "--rollback", "0.05", "--profile", "latency", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tuned"] == {"draft_max": 19, "draft_min": 4, "p_min": 0.75}
    assert found["metrics"] == {"acceptance": 0.9, "rollback": 0.05}
    assert "heuristic" in found["method"]


def test_the_simulation_says_that_it_is_circular(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--trace", "volatile", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["static"], found["adaptive"], found["improvement_percent"]) == (103.10, 115.76, 12.28)
    assert found["final"] == {"draft_max": 20, "draft_min": 6, "p_min": 0.73}
    assert "circular" in found["method"]
    code, out, _ = say("simulate")
    assert code == 0
    assert "a circular model" in out

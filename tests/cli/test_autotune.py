"""`specdash autotune` and `simulate`: UAP's figures, and what they are said to be."""

import json

import pytest

from specdash.cli.main import main
from support.outside import say


def test_the_formula_is_printed_as_settings_and_as_what_it_is() -> None:
    code, out, _ = say("autotune", "--acceptance", "0.9", "--rollback", "0.05", "--profile", "latency")
    assert code == 0
    assert out.startswith("19/4/0.75  (16/3/0.8 before; latency")
    assert "LLAMA_DRAFT_MAX=19\nLLAMA_DRAFT_MIN=4\nLLAMA_DRAFT_P_MIN=0.75\n" in out
    assert "a heuristic" in out


def test_the_simulation_says_that_it_is_circular(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--trace", "volatile", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["static"], found["adaptive"], found["improvement_percent"]) == (103.10, 115.76, 12.28)
    assert found["final"] == {"draft_max": 20, "draft_min": 6, "p_min": 0.73}
    assert "circular" in found["method"]
    code, out, _ = say("simulate")
    assert code == 0
    assert "a circular model" in out

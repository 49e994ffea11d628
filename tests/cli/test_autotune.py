"""`specdash autotune` and `simulate`: UAP's figures, and what they are said to be."""

import json
from pathlib import Path

import pytest

from specdash.cli.main import main
from support import tiny_models
from support.engines import engine_env, running_backend, with_draft
from support.fault_server import free_port
from support.outside import say


def test_the_formula_is_printed_as_settings_and_as_what_it_is() -> None:
    code, out, _ = say("autotune", "--acceptance", "0.9", "--rollback", "0.05", "--profile", "latency")
    assert code == 0
    assert out.startswith("19/4/0.75  (16/3/0.8 before; latency")
    assert "LLAMA_DRAFT_MAX=19\nLLAMA_DRAFT_MIN=4\nLLAMA_DRAFT_P_MIN=0.75\n" in out
    assert "a heuristic" in out


@pytest.mark.engine
def test_the_acceptance_is_that_of_the_server_that_is_named(tmp_path: Path) -> None:
    models = tiny_models.build(tmp_path)
    with running_backend({**engine_env("xllamacpp"), **with_draft(models)}, tmp_path / "backend") as backend:
        code, _, err = say("autotune", "--url", backend.url)
        assert code == 4
        assert "unknown" in err
        backend.complete("the", 60)
        code, out, err = say("autotune", "--url", backend.url, "--json")
        assert (code, err) == (0, "")
        speculation = json.loads(say("snapshot", "--url", backend.url, "--json")[1])["backend"]["speculation"]
    share = speculation["accepted_tokens_total"] / speculation["draft_tokens_total"]
    assert json.loads(out)["metrics"]["acceptance"] == pytest.approx(share, abs=1e-9)


def test_a_server_that_does_not_answer_has_no_acceptance() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    code, out, err = say("autotune", "--url", url)
    assert (code, out) == (4, "")
    assert err.startswith(f"specdash: the acceptance of {url} is unknown")


def test_the_simulation_says_that_it_is_circular(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--trace", "volatile", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["static"], found["adaptive"], found["improvement_percent"]) == (103.10, 115.76, 12.28)
    assert found["final"] == {"draft_max": 20, "draft_min": 6, "p_min": 0.73}
    assert "circular" in found["method"]
    code, out, _ = say("simulate")
    assert code == 0
    assert "a circular model" in out

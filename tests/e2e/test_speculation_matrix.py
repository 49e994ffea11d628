"""Every way to speculate on every kind of model, as an operator runs it: it starts, it speculates, and what is counted
is what must be counted; what cannot work is refused before anything starts.
"""

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from specdash.backend.launch import free_port
from specdash.cli.main import main
from specdash.collect.discover import target_for_url
from specdash.collect.hub import Hub
from specdash.core.errors import ExitCode
from specdash.core.speculation import SPEC_TYPES, Rollback
from specdash.insight.state import TargetState
from specdash.tui.app import Dashboard
from specdash.tui.screens.speculation import SpeculationScreen
from support import matrix
from support.asking import complete, read
from support.engines import RunningBackend, engine_env, running_backend, write_env
from support.known_truth import Counts
from support.matrix import Cell, Fit
from support.native_server import try_out
from support.waiting import until
from tui.drawn import block, screen

pytestmark = pytest.mark.slow
DIFFERENT = {(cell.types, cell.rollback, cell.draft): cell for cell in reversed(matrix.cells())}
"""A cell of each chain, each way to take tokens back and each draft; other targets behave like one of them."""
CELLS = [pytest.param(cell, 1 + number % 2, id=cell.name) for number, cell in enumerate(DIFFERENT.values())]
"""How many requests run at once, in turn one and two."""
CHAINS = [pytest.param(cell, id=cell.name) for cell in matrix.cells() if len(cell.types) > 1][1::2]
_SAMPLE = re.compile(r'^llamacpp:spec_decode_num_(\w+?)_total(?:\{position="(\d+)"\})? (\S+)$', re.MULTILINE)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return matrix.write_models(tmp_path_factory.mktemp("matrix"))


def counted(backend: RunningBackend) -> dict[str, int]:
    """The server's own counters; those of a position end in its number."""
    text = read(f"{backend.url}/metrics").decode()
    return {name + position: int(float(value)) for name, position, value in _SAMPLE.findall(text)}


def ask(backend: RunningBackend, cell: Cell, slots: int) -> list[tuple[int, int]]:
    """Drafted and accepted tokens of each prompt's request, as the answers tell them; at once, each in a slot."""

    def one(prompt: list[int], slot: int) -> tuple[int, int]:
        timings = complete(backend.url, prompt, cell.tokens, id_slot=slot)["timings"]
        return timings["draft_n"], timings["draft_n_accepted"]

    with ThreadPoolExecutor(slots) as pool:
        return list(pool.map(one, cell.prompts(), cycle(range(slots))))


def expected_counters(known: list[Counts]) -> dict[str, int]:
    total = known[0] + known[1]
    counters = {"draft_tokens": total.drafted, "accepted_tokens": total.accepted, "drafts": total.steps}
    return counters | {f"accepted_tokens_per_pos{place}": count for place, count in total.at_position.items()}


def snapshot(backend: RunningBackend, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What `specdash snapshot --json` says."""
    capsys.readouterr()
    assert main(["snapshot", "--json", "--url", backend.url]) == ExitCode.OK
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def check(cell: Cell, backend: RunningBackend, slots: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Ask, and hold what everybody says against what must be."""
    assert [slot["speculative"] for slot in backend.get("/slots")] == [True] * slots
    backend.wait_checked()
    before = counted(backend)
    answers = ask(backend, cell, slots)
    known = cell.known()
    after = counted(backend)
    grown = {name: more for name, count in after.items() if (more := count - before.get(name, 0))}
    if slots > 1 and cell.depends_on_order:
        assert (grown["draft_tokens"], grown["accepted_tokens"]) == tuple(map(sum, zip(*answers, strict=True)))
        assert known[0].accepted <= min(accepted for _, accepted in answers)
        assert max(drafted - accepted for drafted, accepted in answers) <= known[0].drafted - known[0].accepted
    else:
        assert answers == [(counts.drafted, counts.accepted) for counts in known]
        assert grown == expected_counters(known)
    told = snapshot(backend, capsys)
    speculation = told["backend"]["speculation"]
    assert speculation["active"] is True
    assert speculation["types"] == [kind.name for kind in cell.types]
    assert speculation["draft_tokens_total"] == after["draft_tokens"]
    assert speculation["accepted_tokens_total"] == after["accepted_tokens"]
    assert speculation["verification_steps_total"] == after["drafts"]
    assert sum(speculation["accepted_per_position"]) == after["accepted_tokens"]
    assert told["drafting"]["state"] == "speculating"
    assert told["drafter"]["type"] in speculation["types"]
    assert told["checkpoints"]["rollback"] == str(cell.rollback)


@pytest.mark.engine
@pytest.mark.parametrize(("cell", "at_once"), CELLS)
def test_requests_after_one_another_and_at_once(
    cell: Cell,
    at_once: int,
    files: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with running_backend({**cell.env(files, at_once), **engine_env("xllamacpp")}, tmp_path) as backend:
        monkeypatch.setenv("XDG_STATE_HOME", str(backend.state))
        check(cell, backend, at_once, capsys)


@pytest.mark.engine
@pytest.mark.parametrize("cell", CHAINS)
async def test_the_screen_names_the_types(
    cell: Cell, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_backend({**cell.env(files, 1), **engine_env("xllamacpp")}, tmp_path) as backend:
        monkeypatch.setenv("XDG_STATE_HOME", str(backend.state))
        backend.wait_checked()
        ask(backend, cell, 1)
        state = TargetState(target_for_url(backend.url))
        with Hub(state.target, [state.apply], gpu=False, host=False):
            app = Dashboard(state)
            until(lambda: app.state.picture(0.0, 0.0).backend.speculation.types is not None)
            async with app.run_test(size=(120, 36)) as pilot:
                await pilot.pause()
                overview = screen(app)
                await pilot.press("m")
                await pilot.pause()
                assert isinstance(app.screen, SpeculationScreen)
                method = "\n".join(block(part.lines) for part in app.screen.board.parts if part.display)
    for kind in cell.types:
        assert kind.name in overview
    assert f"SPECULATING {', '.join(kind.name for kind in cell.types)}" in method
    assert (str(Rollback.CHECKPOINT) in method) is (cell.rollback is Rollback.CHECKPOINT)


@pytest.mark.engine
@pytest.mark.parametrize("draft", ["dflash"])
def test_a_draft_that_names_its_type_needs_none_in_the_settings(
    draft: str,
    files: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = matrix.DRAFTS[draft]
    cell = Cell(
        matrix.TARGETS["plain"], small, tuple(spec_kind for spec_kind in SPEC_TYPES if spec_kind.name == small.made_for)
    )
    values = {**cell.env(files, 1), **engine_env("xllamacpp")}
    del values["LLAMA_SPEC_TYPE"]
    with running_backend(values, tmp_path) as backend:
        monkeypatch.setenv("XDG_STATE_HOME", str(backend.state))
        check(cell, backend, 1, capsys)


FAILS = [
    ("plain", "small-recurrent", "draft-simple"),
    ("plain", "small", "draft-eagle3"),
    ("recurrent", "dspark", "draft-dspark"),
    ("hybrid", None, "draft-mtp"),
    ("heads", "small", "draft-mtp"),
]
"""Refused ones to force on the engine, at least one of each way to fail; preflight is held to all of them elsewhere."""


@pytest.mark.llama_server
@pytest.mark.parametrize(("target", "draft", "name"), FAILS)
def test_the_server_fails_with_what_is_refused(
    target: str, draft: str | None, name: str, files: dict[str, Path], tmp_path: Path
) -> None:
    spec_type = next(spec_kind for spec_kind in SPEC_TYPES if spec_kind.name == name)
    small = matrix.DRAFTS[draft] if draft is not None else None
    assert matrix.fit(matrix.TARGETS[target], small, spec_type)[0] is Fit.REFUSED
    values = {
        "LLAMA_ARG_MODEL": str(files[target]),
        "LLAMA_ARG_SPEC_TYPE": name,
        "LLAMA_ARG_CTX_SIZE": "1024",
        "LLAMA_ARG_SPEC_DRAFT_N_MAX": str(matrix.LONGEST),
    }
    if draft is not None:
        values["LLAMA_ARG_SPEC_DRAFT_MODEL"] = str(files[draft])
    outcome = try_out(values, tmp_path)
    assert not (outcome.started and outcome.speculative and outcome.answered), outcome.log[-2000:]


@pytest.mark.engine
def test_what_must_be_refused_is_refused_before_anything_starts(files: dict[str, Path], tmp_path: Path) -> None:
    values = {"LLAMA_PORT": str(free_port("127.0.0.1")), "LLAMA_MODEL": str(files["plain"]), "LLAMA_CTX_SIZE": "1024"}
    values |= {"LLAMA_DRAFT_MODEL": str(files["small"]), "LLAMA_SPEC_TYPE": "draft-eagle3", **engine_env("xllamacpp")}
    env_file, log = write_env(tmp_path / "backend.env", values), tmp_path / "server.log"
    command = [sys.executable, "-m", "specdash", "backend", "run", "--env-file", str(env_file), "--log-file", str(log)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == ExitCode.BAD_INPUT
    assert not log.exists()
    [line] = done.stderr.splitlines()
    assert line.startswith("specdash: ")
    assert "the server would" in line or "aborts the server" in line

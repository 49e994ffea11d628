"""Slots of the real engines: saved, erased and restored, and what these engines do that specdash refuses beforehand."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from specdash.cli.main import main
from specdash.control import slots
from specdash.core.errors import ExitCode, RefusedError
from specdash.core.target import Target
from support.asking import ask
from support.engines import RunningBackend, engine_env, running_backend
from support.tiny_models import write_llama, write_mamba

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROMPT = "the speculative decoder drafts several tokens with a small model"
SAVE, RESTORE, ERASE = slots.SlotAction
ENGINES = [pytest.param("xllamacpp", marks=pytest.mark.engine)]


def complete(url: str, slot: int) -> Any:
    """The timings of one completion in that slot."""
    body = {"prompt": PROMPT, "n_predict": 8, "temperature": 0, "id_slot": slot}
    return ask(f"{url}/completion", body)["timings"]


def backend(engine: str, tmp_path: Path, model: Path, **more: str) -> Any:
    directory = tmp_path / "saved"
    directory.mkdir(exist_ok=True)
    settings = {"LLAMA_MODEL": str(model), "LLAMA_CTX_SIZE": "2048", "LLAMA_PARALLEL": "2"}
    env = {**engine_env(engine), **settings, "LLAMA_SLOT_SAVE_PATH": str(directory), **more}
    return running_backend(env, tmp_path / "run")


def change(target: Target, action: slots.SlotAction, slot: int, filename: str | None = None) -> slots.SlotChange:
    return slots.carry_out(slots.plan(target, action, slot, filename))


@pytest.fixture
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningBackend]:
    with backend(request.param, tmp_path, write_llama(tmp_path / "m.gguf", layers=2)) as found:
        yield found


@pytest.mark.parametrize("running", ENGINES, indirect=True)
def test_a_slot_comes_back_as_it_was_and_its_prompt_is_cached(running: RunningBackend, tmp_path: Path) -> None:
    target = Target(running.url)
    cold = complete(running.url, 0)
    saved = change(target, SAVE, 0, "talk.bin")
    file = tmp_path / "saved" / "talk.bin"
    assert saved.bytes == file.stat().st_size
    assert [path.name for path in file.parent.iterdir()] == ["talk.bin"]
    assert change(target, ERASE, 0).tokens == saved.tokens
    _, seen = slots.look(target)
    assert seen is not None
    assert seen.slots[0].n_prompt_tokens == 0
    assert change(target, RESTORE, 1, "talk.bin").tokens == saved.tokens
    warm = complete(running.url, 1)
    assert (cold["cache_n"], warm["prompt_n"]) == (0, 1)
    assert warm["cache_n"] == cold["prompt_n"] - 1


@pytest.mark.engine
def test_a_recurrent_memory_comes_back_where_slot_files_carry_checkpoints(tmp_path: Path) -> None:
    with backend("xllamacpp", tmp_path, write_mamba(tmp_path / "mamba.gguf")) as running:
        target = Target(running.url)
        complete(running.url, 0)
        tokens = change(target, SAVE, 0, "mamba.bin").tokens
        change(target, ERASE, 0)
        assert change(target, RESTORE, 0, "mamba.bin").tokens == tokens
        assert running.get("/health")["status"] == "ok"


@pytest.mark.llama_server
def test_the_engine_itself_aborts_on_a_recurrent_file_that_was_cut_off(tmp_path: Path) -> None:
    with backend("llama-server", tmp_path, write_mamba(tmp_path / "mamba.gguf")) as running:
        complete(running.url, 0)
        change(Target(running.url), SAVE, 0, "whole.bin")
        file = tmp_path / "saved" / "whole.bin"
        data = file.read_bytes()
        file.write_bytes(data[: len(data) // 2])
        with pytest.raises((OSError, urllib.error.URLError)):
            ask(f"{running.url}/slots/0?action=restore", {"filename": "whole.bin"})


@pytest.mark.llama_server
def test_a_sleeping_server_is_listed_and_goes_on_sleeping(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "m.gguf")
    more = {"LLAMA_EXTRA_ARGS": "--sleep-idle-seconds 1"}
    with backend("llama-server", tmp_path, model, **more) as running:
        complete(running.url, 0)
        while not running.get("/props")["is_sleeping"]:
            assert running.process.poll() is None
        for _ in range(3):
            assert slots.look(Target(running.url))[1] is None
        assert running.get("/props")["is_sleeping"] is True


@pytest.mark.llama_server
def test_a_busy_slot_is_refused_and_the_answer_goes_on(tmp_path: Path) -> None:
    with backend("llama-server", tmp_path, write_llama(tmp_path / "m.gguf"), LLAMA_CTX_SIZE="65536") as running:
        body = {"prompt": PROMPT, "n_predict": 30000, "stream": True, "id_slot": 0, "ignore_eos": True}
        request = urllib.request.Request(running.url + "/completion", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=20) as answer:
            answer.readline()
            with pytest.raises(RefusedError, match="busy"):
                change(Target(running.url), ERASE, 0)
            assert answer.readline() is not None


@pytest.mark.llama_server
def test_without_a_terminal_a_change_wants_yes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with backend("llama-server", tmp_path, write_llama(tmp_path / "m.gguf")) as running:
        complete(running.url, 0)
        at = ("--url", running.url)
        assert main(["slots", "erase", "0", *at]) == ExitCode.USAGE
        assert "--yes" in capsys.readouterr().err
        assert main(["slots", "save", "0", "a.bin", "--dry-run", *at]) == ExitCode.OK
        assert capsys.readouterr().out.startswith("Save slot 0")
        assert list((tmp_path / "saved").iterdir()) == []
        assert main(["slots", "save", "0", "a.bin", "--yes", "--json", *at]) == ExitCode.OK
        assert json.loads(capsys.readouterr().out)["tokens"] > 0
        assert [file.name for file in (tmp_path / "saved").iterdir()] == ["a.bin"]
        assert main(["slots", "--json", *at]) == ExitCode.OK
        assert [slot["id"] for slot in json.loads(capsys.readouterr().out)["slots"]] == [0, 1]
        assert main(["slots", *at, "restore", "1", "a.bin", "-y"]) == ExitCode.OK
        assert "restored from" in capsys.readouterr().out
        assert main(["slots", "erase", "5", "-y", *at]) == ExitCode.USAGE
        assert "2 slots, 0 to 1" in capsys.readouterr().err

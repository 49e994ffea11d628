"""What speculation depends on is read from the models' files, once a file, and without holding up anything."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from specdash.collect import model_files
from specdash.collect.model_files import ModelFiles, outline_of
from specdash.core.readings import ModelOutline, Props
from specdash.core.speculation import MemoryKind
from specdash.core.target import Target
from support import tiny_models as tiny
from support.waiting import until_async

URL = "http://127.0.0.1:1"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "llama": tiny.write_llama(folder / "llama.gguf"),
        "mamba": tiny.write_mamba(folder / "mamba.gguf"),
        "lfm2": tiny.write_lfm2(folder / "lfm2.gguf"),
        "qwen35": tiny.write_qwen35(folder / "heads.gguf", heads_too=True),
        "dflash": tiny.write_dflash(folder / "dflash.gguf", block=8),
    }


@pytest.mark.parametrize(
    ("name", "memory", "more"),
    [
        ("llama", MemoryKind.ATTENTION, {}),
        ("mamba", MemoryKind.RECURRENT, {}),
        ("lfm2", MemoryKind.HYBRID, {"gives_states": True}),
        ("qwen35", MemoryKind.HYBRID, {"gives_states": True}),
        ("dflash", MemoryKind.ATTENTION, {"block_size": 8}),
    ],
)
def test_the_header_shows_how_the_model_remembers(
    name: str, memory: MemoryKind, more: dict[str, Any], models: dict[str, Path]
) -> None:
    assert outline_of(str(models[name])) == ModelOutline(name, memory, **more)


async def test_a_draft_model_is_the_one_that_the_server_was_started_with(models: dict[str, Path]) -> None:
    target = Target(URL, parameters=(("spec-draft-model", str(models["dflash"])),))
    found = await ModelFiles(lambda: target).described(Props(model_path=str(models["llama"])))
    assert found.model_bytes == models["llama"].stat().st_size
    assert (found.model, found.draft) == (outline_of(str(models["llama"])), outline_of(str(models["dflash"])))


async def test_a_relative_path_is_one_of_the_servers_process(models: dict[str, Path]) -> None:
    process = await asyncio.create_subprocess_exec("/bin/sleep", "60", cwd=models["mamba"].parent)
    found = await ModelFiles(lambda: Target(URL, pid=process.pid)).described(Props(model_path="mamba.gguf"))
    process.kill()
    await process.wait()
    assert found.model == outline_of(str(models["mamba"]))


async def test_a_file_that_is_not_there_or_no_gguf_leaves_the_rest_as_it_is(tmp_path: Path) -> None:
    files = ModelFiles(lambda: Target(URL))
    gone = Props(model_path=str(tmp_path / "gone.gguf"), build_info="b1")
    assert await files.described(gone) == gone
    (tmp_path / "text.gguf").write_text("no model")
    found = await files.described(Props(model_path=str(tmp_path / "text.gguf")))
    assert (found.model_bytes, found.model) == (8, None)
    assert await files.described(Props()) == Props()


async def test_a_disk_that_takes_its_time_holds_up_nothing(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, looks = threading.Event(), []

    def slow(path: str) -> ModelOutline:
        looks.append(path)
        may_go_on.wait(30)
        return ModelOutline("slow")

    monkeypatch.setattr(model_files, "outline_of", slow)
    monkeypatch.setattr(model_files, "PATIENCE_S", 0.01)
    files, props = ModelFiles(lambda: Target(URL)), Props(model_path=str(models["llama"]))
    for _ in range(2):
        assert (await files.described(props)).model is None
    may_go_on.set()
    await until_async(lambda: not files.pending)
    assert (await files.described(props)).model == ModelOutline("slow")
    assert len(looks) == 1

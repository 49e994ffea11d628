"""The kit's way to `specdash backend run`."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from gpu.kit import Kit
from specdash.backend.demo import TARGET_MODEL, bundled_model
from support.engines import llama_server_binary


@pytest.mark.slow
@pytest.mark.llama_server
def test_the_engine_runs_until_the_block_ends(tmp_path: Path) -> None:
    kit = Kit(tmp_path, tmp_path, tmp_path, Path(llama_server_binary()), cpu=True)
    with kit.backend(kit.home("h"), LLAMA_MODEL=bundled_model(TARGET_MODEL), LLAMA_CTX_SIZE=512) as server:
        family = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(recursive=True)]
        assert len(family) > 1
        assert server.complete("The", 4)["timings"]["predicted_n"] == 4
        assert "listening" in server.log.read_text()
    assert not any(process.is_running() for process in family)


@pytest.mark.llama_server
def test_what_specdash_refuses_is_told(tmp_path: Path) -> None:
    kit = Kit(tmp_path, tmp_path, tmp_path, Path(llama_server_binary()), cpu=True)
    refused = kit.backend(kit.home("h"), LLAMA_MODEL=tmp_path / "nowhere.gguf")
    with pytest.raises(RuntimeError, match="nowhere"), refused:
        pass

"""The fleet in a real terminal, on two real servers: rows, a dashboard and back, and an end that leaves nothing."""

import sys
from pathlib import Path

import pytest

from specdash.backend.demo import DRAFT_MODEL, TARGET_MODEL, bundled_model
from support.asking import complete
from support.engines import running_backend
from support.fault_server import free_port
from support.terminal import Terminal

pytestmark = [pytest.mark.tmux, pytest.mark.engine]
MODEL = {"LLAMA_ENGINE": "xllamacpp", "LLAMA_MODEL": str(bundled_model(TARGET_MODEL)), "LLAMA_CTX_SIZE": "1024"}
DRAFT = {"LLAMA_DRAFT_MODEL": str(bundled_model(DRAFT_MODEL)), "LLAMA_SPEC_TYPE": "draft-simple"}


def test_a_server_is_opened_from_its_row_and_escape_comes_back(tmp_path: Path) -> None:
    with (
        running_backend(MODEL, tmp_path / "plain") as plain,
        running_backend(MODEL | DRAFT, tmp_path / "drafting") as drafting,
    ):
        urls = {"gone": f"http://127.0.0.1:{free_port()}", "plain": plain.url, "drafting": drafting.url}
        config = tmp_path / "specdash" / "config.toml"
        config.parent.mkdir()
        config.write_text("".join(f'[[target]]\nname = "{name}"\nurl = "{url}"\n' for name, url in urls.items()))
        env = {"XDG_CONFIG_HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path)}
        with Terminal([sys.executable, "-m", "specdash", "fleet"], columns=80, rows=24, env=env) as terminal:
            complete(drafting.url, "import os\n\ndef walk(path):\n", 64)
            terminal.wait_for("> gone", "down", "not spec.", "drafting", "worst first")
            terminal.press("/")
            terminal.wait_until(lambda screen: "enter dashboard" not in screen.splitlines()[-1])
            terminal.press("drafting", "Enter")
            terminal.wait_for("> drafting", "(1 of ")
            terminal.press("Enter")
            terminal.wait_for("LIVE", drafting.url)
            terminal.press("Escape")
            terminal.wait_for("> drafting", "(1 of ")
            terminal.press("q")
            terminal.wait_until(lambda _: terminal.exit_code is not None)
            assert terminal.exit_code == 0

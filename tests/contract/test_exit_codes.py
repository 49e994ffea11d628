"""Exit codes that scripts and monitors decide by, and one clear line beside each failure."""

from pathlib import Path

import pytest

from specdash.backend.demo import TARGET_MODEL, bundled_model
from support.fault_server import free_port
from support.outside import say

NOBODY = "NOBODY"
"""Stands for a URL at which nobody answers."""
MODEL = str(bundled_model(TARGET_MODEL))


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--version",), 0),
        (("nonsense",), 2),
        (("snapshot", "--nonsense"), 2),
        (("snapshot", "--url", "ftp://nowhere"), 2),
        (("snapshot", "--url", NOBODY, "--json"), 4),
        (("doctor", "--url", NOBODY), 4),
        (("status", "--url", NOBODY), 4),
        (("status", "--format", "{nonsense}"), 2),
        (("check", "--url", NOBODY), 2),
        (("check", "--nonsense"), 3),
        (("smoke", "--url", NOBODY), 4),
        (("slots", "list", "--url", NOBODY), 4),
        (("bench", "live", "--url", NOBODY), 4),
        (("baseline", "record", "--url", NOBODY), 4),
        (("parse-log", "/nowhere/server.log"), 3),
        (("gguf", "/nowhere/model.gguf"), 3),
        (("gguf", MODEL), 0),
        (("gguf", __file__), 3),
        (("config", "show"), 0),
        (("applies",), 0),
        (("recover",), 2),
        (("rollback",), 3),
        (("apply", "LLAMA_DRAFT_MAX=4"), 9),
        (("env", "show"), 3),
        (("preflight",), 3),
        (("profile", "list"), 0),
        (("profile", "show", "no-such-profile"), 3),
        (("services", "status"), 9),
        (("proxy", "show"), 0),
        (("proxy", "hold"), 4),
        (("history", "stats"), 3),
        (("backend", "run", "--env-file", "/nowhere/backend.env"), 3),
        (("proxy", "run", "--env-file", "/nowhere/proxy.env"), 3),
        (("autotune",), 0),
        (("tune", "--budget", "minus"), 2),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else str(value),
)
def test_exit_codes(words: tuple[str, ...], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    nobody = f"http://127.0.0.1:{free_port()}"
    ended, out, err = say(*(nobody if word == NOBODY else word for word in words))
    assert ended == code, (out, err)
    assert "Traceback" not in err
    if code and not out:
        assert err.startswith("specdash: ")
        assert err.count("\n") <= 2

"""A command pays only for what it uses."""

from __future__ import annotations

import subprocess
import sys

import pytest

LISTING = """
import sys, json
sys.argv = ["specdash", *{argv!r}]
from specdash.cli.main import main
try:
    main()
except SystemExit:
    pass
sys.stderr.write("\\nMODULES " + json.dumps(sorted(sys.modules)))
"""


def modules_after(*argv: str) -> set[str]:
    """The modules that a command has imported by its end, in a process of its own."""
    import json

    code = LISTING.format(argv=list(argv))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(done.stderr.rsplit("MODULES ", 1)[1]))


@pytest.mark.parametrize(
    "argv",
    [
        ("snapshot", "--json", "--url", "http://127.0.0.1:9"),
        ("doctor", "--url", "http://127.0.0.1:9"),
        ("config", "show"),
        ("parse-log", "/dev/null"),
        ("incident", "--url", "http://127.0.0.1:9"),
        ("--help",),
    ],
)
def test_commands_without_a_screen_never_import_the_screen_or_the_proxy(argv: tuple[str, ...]) -> None:
    seen = modules_after(*argv)
    for name in ("textual", "rich", "plotext", "starlette", "uvicorn", "xllamacpp", "numpy"):
        assert name not in seen
    assert not any(name.startswith(("specdash.tui", "specdash.proxy")) for name in seen)


def test_parsing_a_log_does_not_import_the_network() -> None:
    seen = modules_after("parse-log", "/dev/null")
    assert not {"httpx", "httpcore", "pynvml", "asyncio"} & seen

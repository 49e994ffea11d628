"""A command pays only for what it uses."""

import json
import subprocess
import sys

import pytest

from support.fault_server import FaultServer, says

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
    code = LISTING.format(argv=list(argv))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(done.stderr.rsplit("MODULES ", 1)[1]))


SCREEN = {"textual", "rich", "plotext", "starlette", "uvicorn", "xllamacpp", "numpy", "specdash.tui", "specdash.proxy"}
HTTPX_BRINGS = {"rich"}
"""Where rich and click are installed, httpx imports them for a program of its own."""
PYDANTIC = {"pydantic", "pydantic_core"}
NOBODY = ("--url", "http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("argv", "unused"),
    [
        (("snapshot", "--json", *NOBODY), (SCREEN | PYDANTIC) - HTTPX_BRINGS),
        (("status", *NOBODY), SCREEN | PYDANTIC | {"asyncio", "httpcore", "httpx", "specdash.insight.picture"}),
        (("check", "--list-rules", "--json"), SCREEN | PYDANTIC),
        (("parse-log", "/dev/null", "--json"), SCREEN | PYDANTIC | {"httpx", "pynvml", "asyncio"}),
        (("backend", "run", "--env-file", "/nowhere"), SCREEN),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_command_imports_nothing_that_it_does_not_use(argv: tuple[str, ...], unused: set[str]) -> None:
    assert {name for name in modules_after(*argv) if any(f"{name}.".startswith(f"{part}.") for part in unused)} == set()


WELL = {
    "/health": says(200, '{"status":"ok"}'),
    "/props": says(200, '{"total_slots":1}'),
    "/metrics": says(200, "llamacpp:n_decode_total 5\n"),
    "/slots": says(200, '[{"id":0,"is_processing":false}]'),
}


HTTP = {"anyio", "h11", "httpcore", "httpx"}


@pytest.mark.parametrize(
    ("argv", "asks"), [(("snapshot", "--json"), HTTP), (("check", "--for", "1"), HTTP), (("status",), set())]
)
def test_a_short_command_imports_nothing_heavy_to_ask(argv: tuple[str, ...], asks: set[str]) -> None:
    with FaultServer(WELL) as server:
        seen = modules_after(*argv, "--url", server.url)
    costly = {"tomllib", "sqlite3", "pydantic"}
    assert not costly & seen
    assert seen & HTTP == asks

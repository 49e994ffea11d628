"""A real llama.cpp server (the xllamacpp package) on a bundled tiny model, in a process of its own.

Run as a program: `python small_server.py PORT [ATTRIBUTE=VALUE …]` sets attributes of `CommonParams` and serves until
its standard input ends.
"""

import contextlib
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

MODELS = Path(__file__).resolve().parents[2] / "src" / "specdash" / "backend" / "models"
START_S = 60.0


@contextlib.contextmanager
def small_server(port: int, log: Path, **attributes: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server that answers on `port` and writes its log to `log`; killed at the end."""
    command = [sys.executable, __file__, str(port), *(f"{name}={value}" for name, value in attributes.items())]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + START_S
        while not _is_ready(port):
            assert process.poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.communicate(timeout=10)


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _serve(port: int, settings: list[str]) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(MODELS / "demo-target.gguf")
    params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    params.speculative.draft.mparams.path = str(MODELS / "demo-draft.gguf")
    params.port = port
    params.n_ctx = 4096
    params.n_parallel = 2
    params.endpoint_metrics = True
    for setting in settings:
        name, _, value = setting.partition("=")
        setattr(params, name, type(getattr(params, name))(int(value)))
    server = xllamacpp.Server(params)
    sys.stdin.read()
    del server


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.argv[2:])

"""A program in llama-server's place that tells of itself what a given build does: for builds that cannot be had."""

import shlex
import sys
from pathlib import Path

HELP = Path(__file__).parents[1] / "data" / "help"
TODAY, OLD = "b11434", "2026-05"
"""Names of the recorded helps; see the README beside them."""
SCRIPTED = (sys.executable, "-ISu", str(Path(__file__).with_name("scripted_llama_server.py")))
SIGN = "sign"
"""The file by which a test tells a scripted engine that the moment has come."""


def help_text(build: str) -> str:
    """What `llama-server --help` of that build prints."""
    return (HELP / f"{build}.txt").read_text(encoding="utf-8")


def help_engine(
    path: Path, build: str = TODAY, *, version: str = "1234 (abcdef)", version_s: float = 0.0, runs: str = "exit 0"
) -> Path:
    """Write the program to `path`. It describes itself; `runs` is the shell code for any other call."""
    told = shlex.quote(str(HELP / f"{build}.txt"))
    path.write_text(
        f"#!/bin/sh\ncase \"$1\" in\n--version) sleep {version_s}; echo 'version: {version}';;\n"
        f"--help) cat {told};;\n--list-devices) echo 'Available devices:';;\n*) {runs};;\nesac\n",
        encoding="utf-8",
    )
    path.chmod(0o755)
    return path


def scripted_engine(directory: Path, way: str = "good", *, version_s: float = 0.0) -> dict[str, str]:
    """Env keys that choose the scripted engine. `way` is one that it knows, or any other for one that serves."""
    path, runs = directory / "scripted-llama-server", shlex.join((*SCRIPTED, "--sign", str(directory / SIGN)))
    help_engine(path, version="4242 (scripted)", version_s=version_s, runs=f'exec {runs} "$@"')
    return {"LLAMA_ENGINE": "llama-server", "LLAMA_BIN": str(path), "LLAMA_ALIAS": way}

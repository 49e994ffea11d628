"""A program in llama-server's place that tells of itself what a given build does: for builds that cannot be had."""

from __future__ import annotations

import shlex
from pathlib import Path

HELP = Path(__file__).parents[1] / "data" / "help"
BUILDS = ("2025-03", "2026-02", "2026-05", "b11434")
"""Names of the recorded helps, oldest first; see the README beside them."""
TODAY = "b11434"


def help_text(build: str) -> str:
    """What `llama-server --help` of that build prints."""
    return (HELP / f"{build}.txt").read_text(encoding="utf-8")


def help_engine(path: Path, build: str = TODAY, *, version: str = "1234 (abcdef)", runs: str = "exit 0") -> Path:
    """Write the program to `path`. It answers --version and --help; `runs` is the shell code for any other call."""
    told = shlex.quote(str(HELP / f"{build}.txt"))
    path.write_text(
        f"#!/bin/sh\ncase \"$1\" in\n--version) echo 'version: {version}';;\n--help) cat {told};;\n*) {runs};;\nesac\n",
        encoding="utf-8",
    )
    path.chmod(0o755)
    return path

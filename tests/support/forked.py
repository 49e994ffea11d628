"""Runs of specdash without the price of their imports: forked from a process that has them."""

import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["specdash.cli.main", "specdash.cli.proxy", "specdash.proxy.http.server"])


def start(words: Sequence[str], env: Mapping[str, str], output: Path) -> ForkServerProcess:
    """`specdash WORDS` in a process of its own with that environment, and a file for all that it prints."""
    process = _FORKS.Process(target=_run, args=(list(words), dict(env), str(output)), daemon=True)
    process.start()
    return process


def _run(words: list[str], env: dict[str, str], output: str) -> None:
    from specdash.cli.main import entry

    os.environ.clear()
    os.environ.update(env)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    sys.argv = ["specdash", *words]
    entry()

"""A real engine with settings that nobody checked: what llama.cpp itself makes of them."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdash.backend.embedded import ASSIGNMENTS_VARIABLE
from specdash.backend.launch import free_port
from specdash.core.parameter_catalogue import BY_NAME
from specdash.core.parameters import Scalar
from support.asking import ask, complete, healthy
from support.engines import llama_server_binary
from support.native_server import wait_up

_START_S = 30.0
_PROMPT = "the speculative decoder drafts several tokens with a"
_HARD = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1}


@dataclass(frozen=True)
class RawOutcome:
    """How a run went. `code` is None for a server that went on; `speculative` what /slots says."""

    code: int | None
    speculative: bool | None
    drafted: int
    lines: tuple[str, ...]

    @property
    def ends(self) -> str:
        """`exit`, `abort`, `without`, or `speculates`."""
        if self.code is not None:
            return "exit" if self.code >= 0 else "abort"
        return "speculates" if self.speculative else "without"


def run_raw(
    engine: str,
    directory: Path,
    types: str | None,
    parameters: Mapping[str, Scalar],
    words: tuple[str, ...] = (),
    variables: Mapping[str, str] | None = None,
    crowd: int = 0,
) -> RawOutcome:
    """Start it, ask a completion that is easy to guess and one that is not, and end it.

    `types` is the chain as written, `parameters` by their names in the catalogue, `words` more arguments and
    `variables` more environment, which only llama-server reads. `crowd` long completions follow, all at once.
    """
    port = free_port("127.0.0.1")
    url = f"http://127.0.0.1:{port}"
    log = directory / "raw.log"
    given = {"host": "127.0.0.1", "port": port, "parallel": 1, "warmup": False, **parameters}
    env = {key: value for key, value in os.environ.items() if not key.startswith("LLAMA_")} | dict(variables or {})
    if engine == "xllamacpp":
        plain: list[list[Any]] = [[name, BY_NAME[name].attribute, value] for name, value in given.items()]
        plain += [["spec-type", "speculative.types", types.split(",")]] if types is not None else []
        env[ASSIGNMENTS_VARIABLE] = json.dumps(plain)
        command = [sys.executable, "-m", "specdash.backend.embedded"]
    else:
        chain = ("--spec-type", types) if types is not None else ()
        command = [llama_server_binary(), *_arguments(given), *chain, *words]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    speculative, drafted = None, 0
    try:
        if wait_up(process, url):
            with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
                speculative = bool(ask(f"{url}/slots")[0]["speculative"])
                for more in ({}, _HARD):
                    drafted += int(complete(url, _PROMPT, 48, **more)["timings"].get("draft_n") or 0)
                _crowd(url, crowd)
        code = _ended(process, url)
    finally:
        process.kill()
        process.wait(10)
    return RawOutcome(code, speculative, drafted, tuple(log.read_text(encoding="utf-8", errors="replace").splitlines()))


def _crowd(url: str, size: int) -> None:
    """Completions that together need more room than there may be."""

    def one(seed: int) -> None:
        with contextlib.suppress(OSError, ValueError):
            complete(url, f"{_PROMPT} {seed}", 300, temperature=1.0, ignore_eos=True, seed=seed)

    threads = [threading.Thread(target=one, args=(seed,)) for seed in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _arguments(given: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in given.items():
        parameter = BY_NAME[name]
        if isinstance(value, bool):
            words.append((parameter.flags if value else parameter.off_flags)[0])
        else:
            words += [parameter.flags[0], str(value)]
    return words


def _ended(process: subprocess.Popen[bytes], url: str) -> int | None:
    """The exit code of a server that has ended, or is about to: a backtrace takes a while."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        code = process.poll()
        if code is not None:
            return code
        if healthy(url):
            return None
        time.sleep(0.02)
    return None

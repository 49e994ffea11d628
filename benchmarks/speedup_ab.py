"""Whether the speed-up that is shown is the true one: against a direct A/B of the same prompts on two real servers.

`python benchmarks/speedup_ab.py [--cell KIND:LENGTH] [--seconds S] [--engine E]` prints JSON, a row each.
A cell is a way to draft and a draft length; all twelve are run where none is named. In each, `specdash backend run`
serves the demo's target, whose token takes some 5 ms, with speculation, and measures its own baseline after the start;
beside it the same engine serves the same file without. Then every prompt goes to both, in the order off, on, on, off.
The direct figure is decode time without over decode time with, of the same tokens; the other one is what `specdash
snapshot` of the speculating server prints after that, from its log and its baseline. Nothing watches meanwhile.

The measure of the machine is `on_cpu` and `off_cpu`, CPU time over wall time of either engine as it decoded: where they
differ, or are far from 1, others had the CPUs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from specdash.backend.child import Child  # noqa: E402
from specdash.backend.demo import (  # noqa: E402
    DRAFT_MODEL,
    TARGET_MODEL,
    WIDE_LAYERS,
    DemoTarget,
    bundled_model,
    env_text,
)
from specdash.backend.launch import free_port, plan_from_file  # noqa: E402
from specdash.backend.start_check import healthy  # noqa: E402
from specdash.backend.workload import PHASES  # noqa: E402
from specdash.llama.gguf import GgufHeader  # noqa: E402
from specdash.llama.widening import Dimensions, resize  # noqa: E402
from specdash.system.http import ask  # noqa: E402
from specdash.system.stats import interval, ratio_of  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = ("draft-simple", "ngram-mod", "ruined")
"""A draft model, n-grams, and the same draft model whose words are all other words."""
LENGTHS = (1, 2, 4, 8)
START_S = 60.0
BASELINE_S = 25.0
"""How long a server gets for its check and its baseline after the start."""
ROWS = 20_480
"""Feed-forward rows of the target: some 5 ms a token on one core."""
LONGEST_PROMPT = 400
"""Characters. A longer one takes seconds to read, and it is decode that is compared."""
TARGET_ERROR = 10.0
"""Per cent by which none may be off."""


def prompts(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """The demo's prompts, of every phase."""
    rng = random.Random(seed)
    phases = [phase for phase in PHASES if phase.clients == 1]
    for number in range(count):
        prompt = phases[number % len(phases)].prompt(rng)
        yield {
            "messages": [{"role": "user", "content": prompt.text}],
            "max_tokens": max(prompt.max_tokens, 96),
            "temperature": 0,
            "seed": number,
            "ignore_eos": True,
            "cache_prompt": False,
        }


def decode(url: str, body: dict[str, Any]) -> tuple[int, float]:
    """Tokens after the first, and the seconds that they took. Raises OSError."""
    reply = ask(url, "/v1/chat/completions", body=body, timeout=120)
    if reply.status != HTTPStatus.OK:
        raise OSError(f"{url} answered {reply.status}: {reply.body[:500]!r}")
    timings = reply.json["timings"]
    return timings["predicted_n"] - 1, timings["predicted_ms"] / 1000.0


@dataclass(slots=True)
class Arm:
    """One of the two servers of a cell, and what its decode took."""

    url: str
    process: psutil.Process
    tokens: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    wall: float = 0.0
    parts: list[tuple[int, float]] = field(default_factory=list)
    """Tokens and seconds of each request."""

    def ask(self, body: dict[str, Any]) -> None:
        """One request."""
        before, began = self._cpu(), time.monotonic()
        tokens, seconds = decode(self.url, body)
        self.wall += time.monotonic() - began
        self.cpu += self._cpu() - before
        self.tokens += tokens
        self.seconds += seconds
        self.parts.append((tokens, seconds))

    def _cpu(self) -> float:
        family = [self.process, *self.process.children(recursive=True)]
        return sum(sum(process.cpu_times()[:2]) for process in family)


def write_ruined(path: Path) -> Path:
    """The demo's draft, of whose words each stands for another one: its drafts are fluent and wrong."""
    data = bytearray(bundled_model(DRAFT_MODEL).read_bytes())
    header = GgufHeader(bytes(data), str(path))
    header.read()
    name, size, _, shape = header.tensors[0]
    assert name == "token_embd.weight"
    row, first = size // shape[1], header.data_start
    embeddings = bytes(data[first : first + size])
    data[first : first + size] = embeddings[7 * row :] + embeddings[: 7 * row]
    path.write_bytes(data)
    return path


def write_cell(directory: Path, kind: str, length: int, engine: str, models: Path) -> Path:
    """The env file of a server of this cell; `kind` "none" is the one without speculation."""
    target = DemoTarget(models / TARGET_MODEL, length)
    if not target.path.exists():
        resize(bundled_model(TARGET_MODEL), target.path, Dimensions(WIDE_LAYERS, ROWS))
    spec_types = ("draft-simple",) if kind == "ruined" else (kind,)
    text = env_text(
        port=free_port("127.0.0.1"), log=directory / "engine.log", spec_types=spec_types, engine=engine, target=target
    )
    more = {"LLAMA_START_BASELINE": "1", "LLAMA_DRAFT_MAX": str(length)} if kind != "none" else {}
    if kind == "ngram-mod":
        more["LLAMA_DRAFT_MIN"] = "1"
    if kind == "ruined":
        more["LLAMA_DRAFT_MODEL"] = str(write_ruined(models / "ruined.gguf"))
    kept = [line for line in text.splitlines() if line.partition("=")[0] not in more]
    file = directory / "backend.env"
    file.write_text("\n".join([*kept, *(f"{key}={value}" for key, value in more.items()), ""]), encoding="utf-8")
    return file


def serve(stack: ExitStack, file: Path, env: dict[str, str]) -> Arm:
    """`specdash backend run` of that file, until the stack ends."""
    url = plan_from_file(str(file)).settings.url
    output = stack.enter_context((file.parent / "run.log").open("wb"))
    argv = (sys.executable, "-m", "specdash", "backend", "run", "--env-file", str(file))
    child = Child.start(argv, env, output=output)
    stack.callback(child.stop, 10.0)
    deadline = time.monotonic() + START_S
    while not healthy(url):
        if child.exited() or time.monotonic() > deadline:
            raise RuntimeError(f"no server: {(file.parent / 'run.log').read_text()[-400:]}")
        time.sleep(0.1)
    return Arm(url, psutil.Process(child.pid))


def wait_quiet(url: str, limit_s: float = BASELINE_S) -> None:
    """Until nothing has been asked of a server that has just started for three seconds."""
    deadline = time.monotonic() + limit_s
    last, since = "", time.monotonic()
    while time.monotonic() < deadline and time.monotonic() - since < 3.0:
        slots = ask(url, "/slots", timeout=5).json
        now = json.dumps([(slot["is_processing"], slot.get("id_task")) for slot in slots])
        if now != last or "true" in now:
            last, since = now, time.monotonic()
        time.sleep(1.0)


def run_cell(kind: str, length: int, engine: str, seconds: float) -> dict[str, Any]:
    """The row of one cell."""
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        directory = Path(place)
        env = {**os.environ, "XDG_STATE_HOME": str(directory / "state"), "XDG_CONFIG_HOME": str(directory / "config")}
        files = {}
        for name, served in (("off", "none"), ("on", kind)):
            (directory / name).mkdir()
            files[name] = write_cell(directory / name, served, length, engine, directory)
        warm = serve(stack, files["off"], env)
        warm.ask(next(prompts(1, -1)))
        off = Arm(warm.url, warm.process)
        on = serve(stack, files["on"], env)
        wait_quiet(on.url)
        began = time.monotonic()
        bodies = (body for body in prompts(1000, length) if len(body["messages"][0]["content"]) <= LONGEST_PROMPT)
        for body in bodies:
            if time.monotonic() - began > seconds:
                break
            for arm in (off, on, on, off):
                arm.ask(body)
        shown = snapshot(on.url, directory / "on" / "engine.log", env)
    return cell_row(kind, length, off, on, shown)


def snapshot(url: str, log: Path, env: dict[str, str]) -> dict[str, Any]:
    """What is shown of the speed-up."""
    argv = [sys.executable, "-m", "specdash", "snapshot", "--url", url, "--log", str(log), "--json", "--window", "5m"]
    run = subprocess.run([*argv, "--wait", "3"], env=env, capture_output=True, text=True, timeout=60, check=False)
    if not run.stdout:
        raise RuntimeError(f"no snapshot: {run.stderr[-400:]}")
    found: dict[str, Any] = json.loads(run.stdout)["speedup"]
    return found


def cell_row(kind: str, length: int, off: Arm, on: Arm, shown: dict[str, Any]) -> dict[str, Any]:
    """The figures of a cell."""
    pairs = []
    for first in range(0, len(on.parts), 2):
        without, took = (sum(part[1] for part in arm.parts[first : first + 2]) for arm in (off, on))
        pairs.append((round(without * 1e6), round(took * 1e6)))
    direct = interval(ratio_of(pairs))
    value, low, high = (shown[name] for name in ("value", "low", "high"))
    return {
        "kind": kind, "length": length, "requests": len(on.parts), "direct": direct.value,
        "direct_low": direct.low, "direct_high": direct.high, "value": value, "low": low, "high": high,
        "basis": shown["basis"], "verdict": shown["verdict_text"], "why": shown["why"],
        "error_percent": None if value is None else (value / direct.value - 1) * 100,
        "covered": low is not None and low <= direct.value <= high,
        "length_mean": shown["mean_accepted_length"], "baseline": shown["baseline"],
        "off_ms": off.seconds / off.tokens * 1000, "on_ms": on.seconds / on.tokens * 1000,
        "off_cpu": off.cpu / off.wall, "on_cpu": on.cpu / on.wall,
    }  # fmt: skip


def main() -> int:
    """Print the cells; the exit code is 1 where fewer than 11 of 12 are covered, or one is off by more than 10 %."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cell", action="append", metavar="KIND:LENGTH", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--seconds", type=float, default=45.0, help="of traffic a cell")
    parser.add_argument("--engine", default="auto")
    args = parser.parse_args()
    rows = []
    for name in args.cell or [f"{kind}:{length}" for kind, length in itertools.product(KINDS, LENGTHS)]:
        kind, _, length = name.partition(":")
        rows.append(run_cell(kind, int(length), args.engine, args.seconds))
        print(json.dumps(rows[-1]), flush=True)
    missed = sum(not entry["covered"] for entry in rows)
    off = [entry for entry in rows if entry["error_percent"] is None or abs(entry["error_percent"]) > TARGET_ERROR]
    return int(missed > 1 or bool(off))


if __name__ == "__main__":
    sys.exit(main())

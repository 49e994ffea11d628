"""Whether the dashboard's speed-up is the true one: against a direct A/B of the same prompts on two real servers.

`python benchmarks/speedup_ab.py [--rounds N] [--prompts N] [--engine E] [--two-tokens]` prints a table and JSON. For
each spec type a server with it and one without run the bundled models. First the baseline is recorded, as `specdash
baseline record` does, on the one without, or by completions of two tokens on the one that speculates
(`--two-tokens`); then every prompt goes to both servers, in the order off, on, on, off. The direct figure is decode
time without over decode time with, of the same tokens; the dashboard's is what its picture says once a real hub has
read the log of the speculating one, from that log, the baseline and nothing else. The hub reads it after the traffic:
with the bundled models the log has thousands of lines a second, and on two processors reading them slows down what is
measured (`--live`).

A machine that others use is faster now and slower then, and a baseline of a minute ago is one of another machine. So
the baseline is measured twice: before the traffic (`error_percent_before`, which has the machine's drift in it), and
request by request in alternation with it (`error_percent`, the error of the method). Others stall single requests; the
direct figure has those stalls in its sums, so the second baseline is a mean over time too, not the recorder's median.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

from specdash.backend.baseline import (  # noqa: E402
    STEP_ROUNDS,
    BaselineCell,
    BaselineEffort,
    BaselineReport,
    MeasuredServer,
    add_baseline,
    measure_steps,
)
from specdash.backend.child import Child  # noqa: E402
from specdash.backend.demo import env_text, widened_target  # noqa: E402
from specdash.backend.launch import free_port, plan_from_file  # noqa: E402
from specdash.backend.workload import PHASES  # noqa: E402
from specdash.bench.baseline import measure, rate_of  # noqa: E402
from specdash.collect.hub import Hub  # noqa: E402
from specdash.control.apply.steps import healthy  # noqa: E402
from specdash.core.target import Target  # noqa: E402
from specdash.insight.state import TargetState  # noqa: E402
from specdash.system.http import ask  # noqa: E402
from specdash.system.stats import interval, median_of  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from specdash.insight.picture import SpeedUpPicture

    WriteEnv = Callable[[Path, tuple[str, ...]], Path]

CHAINS = (("draft-simple",), ("ngram-simple",), ("draft-simple", "ngram-mod"))
EFFORT = BaselineEffort((64, 512, 2048), (1,), rounds=5, tokens=192)
START_S = 60.0
SEEN_S = 2.5
"""How long the hub gets to read the last lines of the log."""


@dataclass(frozen=True, slots=True)
class Running:
    """One server under test."""

    url: str
    log: Path
    engine: str
    parameters: tuple[tuple[str, str], ...]


def bundled(directory: Path, chain: tuple[str, ...], engine: str) -> Path:
    """An env file for the demo's models, as the demo serves them."""
    file, port = directory / "backend.env", free_port("127.0.0.1")
    text = env_text(
        port=port, log=directory / "server.log", spec_types=chain, engine=engine, target=widened_target(directory)[0]
    )
    file.write_text(text, encoding="utf-8")
    return file


def start(stack: ExitStack, directory: Path, chain: tuple[str, ...], write_env: WriteEnv) -> Running:
    """A server of that env, until the stack ends."""
    directory.mkdir()
    log = directory / "server.log"
    plan = plan_from_file(str(write_env(directory, chain)))
    output = stack.enter_context(log.open("wb"))
    child = Child.start(plan.argv, plan.environment(), output=output)
    stack.callback(child.stop, 5.0)
    deadline = time.monotonic() + START_S
    while not healthy(plan.settings.url):
        if child.exited() or time.monotonic() > deadline:
            raise RuntimeError(f"the server with {','.join(chain)} does not start: {log.read_text()[-400:]}")
        time.sleep(0.05)
    return Running(plan.settings.url, log, plan.engine.words, plan.speculation)


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


def compare(
    chain: tuple[str, ...],
    write_env: WriteEnv,
    bodies: Iterable[dict[str, Any]],
    directory: Path,
    effort: BaselineEffort = EFFORT,
    *,
    live: bool = False,
    two_tokens: bool = False,
) -> dict[str, Any]:
    """One round: the direct figure, and the dashboard's. `write_env` writes a chain's env file into a directory."""
    env = {**os.environ, "XDG_STATE_HOME": str(directory)}
    with ExitStack() as stack:
        off = start(stack, directory / "off", ("none",), write_env)
        on = start(stack, directory / "on", chain, write_env)
        warm = next(prompts(1, -1))
        for backend in (off, on):
            decode(backend.url, warm)
        server = stack.enter_context(MeasuredServer(off.url, engine=off.engine))
        if two_tokens:
            speculating = stack.enter_context(MeasuredServer(on.url, engine=on.engine))
            steps = replace(effort, rounds=STEP_ROUNDS)
            report = measure_steps(speculating, steps, lambda baseline: add_baseline(baseline, env))
            print("\n".join(report.left_out), file=sys.stderr)
        else:
            measure(server, effort, lambda baseline: add_baseline(baseline, env))
        target = Target(on.url, log=str(on.log), engine=on.engine, parameters=on.parameters)
        state = TargetState(target, rules=())
        hub = Hub(target, [state.apply], gpu=False, host=False, env=env)
        if live:
            stack.enter_context(hub)
            time.sleep(SEEN_S)
        spent = {off.url: [0, 0.0], on.url: [0, 0.0]}
        between: dict[BaselineCell, list[float]] = {}
        cells = server.cells(effort, BaselineReport())
        for body in bodies:
            for place, url in enumerate((off.url, on.url, on.url, off.url)):
                tokens, seconds = decode(url, body)
                spent[url][0] += tokens
                spent[url][1] += seconds
                if place < len(cells) and not two_tokens:
                    prompt = server.prompt(cells[place].context, 0)
                    server.generate(0, prompt, 2)
                    between.setdefault(cells[place], []).append(rate_of(server.generate(0, prompt, effort.tokens)))
        if not live:
            stack.enter_context(hub)
        time.sleep(SEEN_S)
        before = state.picture(time.monotonic(), time.time(), 3600.0).speedup
        for cell, values in between.items():
            mean = statistics.harmonic_mean(values)
            made = server.baseline(cell, interval(median_of(values)), len(values), effort.tokens)
            add_baseline(replace(made, decode_rate=mean, low=min(made.low, mean), high=max(made.high, mean)), env)
        time.sleep(SEEN_S)
        told = state.picture(time.monotonic(), time.time(), 3600.0).speedup
    return row(chain, spent[off.url], spent[on.url], told, before)


def row(
    chain: tuple[str, ...], off: list[float], on: list[float], told: SpeedUpPicture, before: SpeedUpPicture
) -> dict[str, Any]:
    """The figures of one round."""
    direct = (off[1] / off[0]) / (on[1] / on[0])
    value = told.value or float("nan")
    return {
        "spec_type": ",".join(chain),
        "off_tok_s": round(off[0] / off[1], 1),
        "on_tok_s": round(on[0] / on[1], 1),
        "direct": round(direct, 3),
        "dashboard": round(value, 3),
        "low": round(told.low or 0.0, 3),
        "high": round(told.high or 0.0, 3),
        "basis": str(told.basis),
        "verdict": str(told.verdict),
        "requests": told.requests,
        "baseline_tok_s": round(told.baseline_rate or 0.0, 1),
        "error_percent": round((value / direct - 1) * 100, 2),
        "error_percent_before": round(((before.value or float("nan")) / direct - 1) * 100, 2),
    }


def main() -> int:
    """Print the figures; the exit code is 1 where a spec type's median error is above 5 %."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--two-tokens", action="store_true", help="the baseline is of the speculating server")
    parser.add_argument("--live", action="store_true", help="read the log meanwhile, on the processors of the servers")
    args = parser.parse_args()
    rows = []
    how = {"live": args.live, "two_tokens": args.two_tokens}
    for number in range(args.rounds):
        for chain in CHAINS:
            with tempfile.TemporaryDirectory() as directory:
                write_env = partial(bundled, engine=args.engine)
                rows.append(compare(chain, write_env, prompts(args.prompts, number), Path(directory), **how))
            print("  ".join(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    errors = {
        name: statistics.median(entry["error_percent"] for entry in rows if entry["spec_type"] == name)
        for name in dict.fromkeys(entry["spec_type"] for entry in rows)
    }
    json.dump({"median_error_percent": errors, "rows": rows}, sys.stdout, indent=1)
    print()
    return int(any(abs(error) > 5.0 for error in errors.values()))


if __name__ == "__main__":
    sys.exit(main())

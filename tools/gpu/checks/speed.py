"""How fast decode is: without speculation, by the size of the model; and with it, against what the dashboard says."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu.report import Check
from specdash.backend.baseline import BaselineEffort

if TYPE_CHECKING:
    from gpu.kit import Kit
    from gpu.report import Report

CHAINS = (
    (("draft-simple",), "target", "draft"),
    (("draft-mtp",), "mtp", None),
    (("ngram-mod",), "target", None),
)
CPU_CHAINS = 2
GIGABYTES, CPU_GIGABYTES = 8.0, 1.0
PROMPTS, CPU_PROMPTS = 8, 3
ANSWER_TOKENS, CPU_ANSWER_TOKENS = 128, 48
EFFORT = BaselineEffort((64, 512), (1,), rounds=4, tokens=128)
CPU_EFFORT = BaselineEffort((64, 512), (1,), rounds=2, tokens=32)
LONGEST_PROMPT = 1000
"""In characters: the automaton's vocabulary has hardly any word of a prompt, and takes a token for each."""
ERROR_PERCENT = 5.0
LIMIT_S = 120.0

SIZES = (1.0, 8.0, 30.0)
DECODED, CPU_DECODED = 256, 12
SIZES_LIMIT_S = 120.0
STEADY = 1.25
"""Of two sizes: the larger bandwidth over the smaller one, where decode is nothing but reading the weights."""


def run_speedup(kit: Kit, report: Report) -> None:
    """The dashboard's net speed-up from a recorded baseline, against a direct A/B in alternation."""
    began, longest = time.monotonic(), 0.0
    for place, (chain, target, draft) in enumerate(CHAINS):
        started = time.monotonic()
        if kit.cpu and place >= CPU_CHAINS:
            report.skipped(f"speed-up, {','.join(chain)}", "left out of a dry run, for time")
            continue
        if started - began + longest > LIMIT_S:
            report.skipped(f"speed-up, {','.join(chain)}", "no time was left")
            continue
        with report.part(f"speed-up, {','.join(chain)}"):
            judge_speedup(report, _compared(kit, chain, target, draft), cpu=kit.cpu)
        longest = max(longest, time.monotonic() - started)


def _compared(kit: Kit, chain: tuple[str, ...], target: str, draft: str | None) -> dict[str, Any]:
    # The repository's own benchmark does the work; what else it needs is imported for this check alone.
    sys.path.append(str(Path(__file__).parents[3]))
    from benchmarks.speedup_ab import compare, prompts

    count, most, effort = (CPU_PROMPTS, CPU_ANSWER_TOKENS, CPU_EFFORT) if kit.cpu else (PROMPTS, ANSWER_TOKENS, EFFORT)
    short = (body for body in prompts(3 * count, 0) if len(body["messages"][0]["content"]) <= LONGEST_PROMPT)
    bodies = [{**body, "max_tokens": most} for body, _ in zip(short, range(count), strict=False)]

    def write_env(directory: Path, types: tuple[str, ...]) -> Path:
        keys: dict[str, object] = {
            "LLAMA_MODEL": kit.model(target, CPU_GIGABYTES if kit.cpu else GIGABYTES),
            "LLAMA_SPEC_TYPE": ",".join(types),
            "LLAMA_CTX_SIZE": 4096,
            "LLAMA_LOG_VERBOSITY": 4,
        }
        if draft is not None and types != ("none",):
            keys["LLAMA_DRAFT_MODEL"] = kit.model(draft)
        if kit.cpu:
            keys["LLAMA_THREADS"] = 1
        return kit.env_file(directory, "backend.env", **keys)

    with tempfile.TemporaryDirectory(dir=kit.home("speedup")) as directory:
        return compare(chain, write_env, bodies, Path(directory), effort)


def judge_speedup(report: Report, row: dict[str, Any], *, cpu: bool) -> None:
    """One row of `benchmarks/speedup_ab.py`."""
    name = row["spec_type"]
    report.judge(
        f"speed-up, {name}: the dashboard measures it against the baseline", row["basis"] == "measured",
        row["basis"], "measured",
    )  # fmt: skip
    close = abs(row["error_percent"]) <= ERROR_PERCENT
    what = f"speed-up, {name}: the dashboard's is within {ERROR_PERCENT:g} % of a direct A/B, or its interval holds it"
    if cpu:
        report.skipped(what, "needs a GPU: others use these processors")
    else:
        holds = close or row["low"] <= row["direct"] <= row["high"]
        report.judge(what, holds, [row["dashboard"], row["low"], row["high"]], row["direct"], "times")
    report.figure(
        f"speed-up, {name}: direct A/B; dashboard; its error",
        [row["direct"], row["dashboard"], row["error_percent"]],
        "times, times, %",
        note=f"{row['off_tok_s']} tok/s without, {row['on_tok_s']} with; the dashboard says {row['verdict']}, interval "
        f"{row['low']} to {row['high']}; error with the baseline of before the traffic {row['error_percent_before']} %",
    )


def run_sizes(kit: Kit, report: Report) -> None:
    """Decode without speculation reads all weights once a token: milliseconds, and what bandwidth that is."""
    found: dict[float, float] = {}
    for size in SIZES:
        with report.part(f"decode of {size:g} GB"):
            found[size] = _bandwidth(kit, report, size)
    most, less = SIZES[-1], SIZES[-2]
    what = f"decode of {most:g} GB reads its weights as fast as that of {less:g} GB, so memory bounds it"
    if kit.cpu:
        report.skipped(what, "needs a GPU: others use these processors")
    elif most in found and less in found:
        ratio = found[most] / found[less]
        report.judge(what, 1 / STEADY <= ratio <= STEADY, round(ratio, 3), f"{1 / STEADY:g} to {STEADY:g}", "times")


def _bandwidth(kit: Kit, report: Report, size: float) -> float:
    """GB/s at which decode of a model of so many GB reads its weights."""
    model = kit.model("target", size)
    flags = ["-c", "2048", "-np", "1", *(["-t", "1"] if kit.cpu else [])]
    with kit.server(model, *flags, name=f"sizes-{size:g}") as server:
        server.complete("The", 8)
        timings = server.complete("The", CPU_DECODED if kit.cpu else DECODED, ignore_eos=True)["timings"]
    each_ms = timings["predicted_ms"] / (timings["predicted_n"] - 1)
    read = model.stat().st_size
    bandwidth = float(read / each_ms / 1e6)
    report.figure(
        f"decode without speculation, {read / 1e9:.3g} GB of weights: time of a token; weights over time",
        [round(each_ms, 3), round(bandwidth, 1)],
        "ms, GB/s",
    )
    return bandwidth


SPEEDUP = Check("speedup", "the dashboard's net speed-up is that of a direct A/B", run_speedup, limit_s=LIMIT_S)
SIZES_CHECK = Check("sizes", "decode is bound by memory, as that of real models", run_sizes, limit_s=SIZES_LIMIT_S)

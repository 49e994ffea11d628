"""The product's own storm of applies on this machine: good, bad and crashing ones while clients never stop asking."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu.checks.apply import within_overhead
from gpu.report import Check

if TYPE_CHECKING:
    from gpu.kit import Kit
    from gpu.report import Report

APPLIES, APPLIES_CPU = 20, 4
LIMIT_S = 120.0


def run(kit: Kit, report: Report) -> None:
    """See the module."""
    applies = APPLIES_CPU if kit.cpu else APPLIES
    words = ("bench", "apply-storm", "--applies", str(applies), "--manager", "supervisor", "--json")
    answer = kit.specdash(
        kit.home("storm"),
        *words,
        "--engine",
        "llama-server",
        timeout=LIMIT_S - 10,
        env={"LLAMA_BIN": str(kit.llama_server)},
    )
    told = answer.json()
    faults = [f"apply {attempt['number']}: {attempt['fault']}" for attempt in told["attempts"] if attempt["fault"]]
    failed = [f"{error['way']}: {error['error']}" for error in told["errors"]]
    report.judge(f"a storm of {applies} applies passes", answer.code == 0 and told["passed"], told["outcomes"])
    report.judge("every apply of the storm ended as it must", not faults, faults, [])
    asked = bool(told["requests"])
    report.judge("no client of the storm saw an error", asked and not failed, failed[:5] or told["requests"], [])
    for name, words_ in (("downtime_s", "downtime"), ("engine_load_s", "the engine's own load")):
        report.figure(f"{words_} in the storm, median and largest", _spread(told[name]), "s", "bundled models")
    overhead = told["overhead_s"]
    if overhead["max"] is not None:
        within_overhead(kit, report, "what an apply of the storm adds to the engine's load, at most", overhead["max"])
    report.figure("longest request in the storm", told["longest_request_s"], "s")


def _spread(told: dict[str, float | None]) -> list[float | None]:
    return [told["p50"], told["max"]]


CHECK = Check("storm", "A storm of applies under the built-in supervisor", run, limit_s=LIMIT_S)

"""What the tuner recommends on this machine, for speed and for energy, against a direct comparison of the same two."""

from __future__ import annotations

import json
import shutil
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpu.checks.apply import backend_env
from gpu.checks.energy import WARM_S, asker, generate, spend
from gpu.report import Check
from specdash.bench.compare.beds import OwnBed
from specdash.bench.load.workloads import CLASSES, bundled

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gpu.kit import Answer, Kit
    from gpu.report import Report

SIZE_GB = 1
DECODE, PER_WATT = "decode", "per-watt"
FINISHED = (0, 14)
"""Something better was found; nothing was, and the settings stay."""
USAGE = 2
REFUSAL = "needs GPUs whose driver tells their energy (NVML): "
ENERGY_S = 4.0
"""Of generating, each of four times."""
ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    restarts: int
    minutes: float
    each: int
    tokens: int
    timeout_s: float
    kinds: tuple[str, ...] = CLASSES
    more: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """Options of `specdash tune`."""
        numbers = {"restarts": self.restarts, "minutes": self.minutes, "each": self.each, "tokens": self.tokens}
        return (*(word for name, value in numbers.items() for word in (f"--{name}", f"{value:g}")), *self.more)


GPU = Effort(restarts=8, minutes=1.0, each=2, tokens=128, timeout_s=90.0)
CPU = Effort(3, 1.0, each=2, tokens=16, timeout_s=90.0, kinds=("coding",), more=("--busy-ok", "--no-check"))
"""The fewest restarts; others work on this machine, too, and two boots more would compare the texts."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What a run of the tuner came to: the settings it recommends or, where it keeps those in force, the fastest others
    that it measured. The gain is the share by which they are better than those in force, with its 95 % interval."""

    improved: bool
    settings: Mapping[str, str]
    gain: float | None
    low: float | None
    high: float | None

    @property
    def words(self) -> str:
        """As `bench ab` takes them."""
        return ",".join(f"{key}={value}" for key, value in self.settings.items())


def run(kit: Kit, report: Report) -> None:
    """See the module."""
    effort, file = CPU if kit.cpu else GPU, settings_file(kit)
    advice = _tuned(kit, report, file, effort, DECODE)
    if advice is not None:
        _judge_speed(kit, report, file, effort, advice)
    if kit.cpu:
        _judge_refusal(report, _tune(kit, file, effort, PER_WATT))
        report.skipped("tuning for tokens per joule", "needs a GPU")
    else:
        tune_per_watt(kit, report, file, effort)


def settings_file(kit: Kit) -> Path:
    """The settings to tune, in a home that was never tuned before."""
    home = kit.home("tune")
    shutil.rmtree(home)
    home.mkdir()
    return backend_env(kit, home, SIZE_GB)


def tune_per_watt(kit: Kit, report: Report, file: Path, effort: Effort, nvml: Any = None) -> None:
    """`nvml`, as in `collect.gpu`, is for what is measured here; `specdash tune` imports its own."""
    advice = _tuned(kit, report, file, effort, PER_WATT)
    if advice is not None:
        _judge_energy(kit, report, file, advice, nvml)


def _tune(kit: Kit, file: Path, effort: Effort, objective: str) -> Answer:
    words = ["tune", "--beside", "--env-file", str(file), "--prompts", str(_prompts(file, effort))]
    words += ["--objective", objective, "--yes", "--json", *effort.words]
    return kit.specdash(file.parent, *words, timeout=effort.timeout_s)


def _prompts(file: Path, effort: Effort) -> Path:
    """The same for tuner and comparison, beside the settings."""
    path = file.with_name("prompts.jsonl")
    rows = [
        {
            "id": prompt.id,
            "kind": prompt.kind,
            "messages": prompt.messages,
            **({"tools": prompt.tools} if prompt.tools else {}),
        }
        for prompt in bundled(effort.kinds, effort.each)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _tuned(kit: Kit, report: Report, file: Path, effort: Effort, objective: str) -> Advice | None:
    answer = _tune(kit, file, effort, objective)
    ended = answer.code in FINISHED
    note = "" if ended else answer.err[-1000:]
    if not report.judge(f"tune for {objective} ends with a verdict", ended, answer.code, FINISHED, note=note):
        return None
    told = answer.json()
    (kit.out / f"tune-{objective}.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    boots, outcome = told["boots"], told["end"]["outcome"]
    failed = [boot["result"]["failure"] for boot in boots if boot["result"]["failure"]]
    report.judge(f"every boot of tune for {objective} is measured", bool(boots) and not failed, failed or len(boots))
    discarded = [entry["why"] for entry in told["discarded"]]
    if "--busy-ok" not in effort.more:
        report.judge(f"no boot of tune for {objective} is discarded on a quiet machine", not discarded, discarded, [])
    report.figure(f"noise of boots in tune for {objective}", outcome["noise"], "share")
    advice = advice_of(told)
    at_start = next((boot["speed"] for boot in boots if not boot["settings"]), None)
    unit = "tok/J" if objective == PER_WATT else "tok/s"
    report.figure(f"{objective} at the start, draft-simple of 4, {SIZE_GB} GB model", _rounded(at_start), unit)
    if advice is None:
        report.figure(f"tune for {objective} recommends", "the settings in force", note=outcome["why"])
        return None
    named = advice.words if advice.improved else "the settings in force"
    report.figure(f"tune for {objective} recommends", named, note=outcome["why"])
    predicted = [_rounded(value) for value in (advice.gain, advice.low, advice.high)]
    report.figure(f"its gain for {objective}: {advice.words}", predicted, "share, 95 % interval", "by the tuner")
    return advice


def advice_of(told: Mapping[str, Any]) -> Advice | None:
    """Of the report of a run; None where no other settings were measured."""
    end = told["end"]
    if end["outcome"]["improved"]:
        outcome = end["outcome"]
        return Advice(True, dict(end["settings"]), outcome["gain"], outcome["low"], outcome["high"])
    others = [boot for boot in told["boots"] if boot["settings"] and boot["speed"] and boot["against_the_start"]]
    if not others:
        return None
    fastest = max(others, key=lambda entry: entry["speed"])
    gain = fastest["against_the_start"]
    return Advice(False, dict(fastest["settings"]), gain["gain"], gain["low"], gain["high"])


def _judge_speed(kit: Kit, report: Report, file: Path, effort: Effort, advice: Advice) -> None:
    words = ["bench", "ab", "current", f"advised:{advice.words}", "--env-file", str(file), "--json"]
    words += ["--prompts", str(_prompts(file, effort))]
    words += ["--rounds", str(ROUNDS), "--each", str(effort.each), "--max-tokens", str(effort.tokens)]
    answer = kit.specdash(file.parent, *words, timeout=effort.timeout_s)
    note = answer.err[-500:] if answer.code else ""
    if not report.judge("bench ab of the two ends with a comparison", answer.code == 0, answer.code, 0, note=note):
        return
    (found,) = answer.json()["comparisons"]
    measured = [_rounded(found[name]) for name in ("gain", "low", "high")]
    report.figure(f"gain by bench ab: {advice.words}", measured, "share, 95 % interval", found["verdict"])
    predicted = (advice.low, advice.high)
    if None in predicted or None in measured:
        report.figure("the tuner's gain and that of bench ab", [advice.gain, measured[0]], "share", "without intervals")
        return
    report.judge(
        "the tuner's gain and that of bench ab agree within their intervals",
        overlap(predicted, (found["low"], found["high"])),
        measured, [_rounded(value) for value in (advice.gain, *predicted)], "share",
    )  # fmt: skip


def overlap(pair: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    """Whether two intervals have a value in common."""
    return bool(pair[0] <= other[1] and other[0] <= pair[1])


def _judge_energy(kit: Kit, report: Report, file: Path, advice: Advice, nvml: Any) -> None:
    """Joules a token of both, in the order start, advised, advised, start, so that what changes steadily cancels."""
    logs = file.parent / "energy"
    logs.mkdir(exist_ok=True)
    bed = OwnBed(str(file), logs, env=kit.environment(file.parent))
    found: dict[bool, list[float]] = {False: [], True: []}
    for advised in (False, True, True, False):
        with bed.boot(advice.settings if advised else {}) as place:
            ask = asker(place.url)
            generate(ask, WARM_S)
            joules = spend(ask, ENERGY_S, nvml).joules_per_token
        if not report.judge("the energy counter tells joules a token", joules is not None and joules > 0, joules):
            return
        found[advised].append(joules or 0.0)
    start, other = (statistics.fmean(found[advised]) for advised in (False, True))
    report.figure("joules a token at the start, measured directly", _rounded(start), "J/token", f"{found[False]}")
    report.figure(f"joules a token with {advice.words}", _rounded(other), "J/token", f"{found[True]}")
    gain = start / other - 1
    what = "gain in tokens a joule, measured directly"
    if advice.improved:
        predicted = [_rounded(value) for value in (advice.gain, advice.low, advice.high)]
        report.judge(f"{what}, is one", gain > 0, _rounded(gain), predicted, "share")
    else:
        report.figure(what, _rounded(gain), "share")


def _judge_refusal(report: Report, answer: Answer) -> None:
    said = answer.err.strip()
    clear = answer.code == USAGE and REFUSAL in said and "use decode or latency-p95" in said
    report.judge("without a GPU, tokens per joule are refused with the reason and the way out", clear, said, REFUSAL)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


CHECK = Check("tune", f"The tuner against a direct comparison, draft-simple, {SIZE_GB} GB model", run, limit_s=240.0)

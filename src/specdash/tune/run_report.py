"""The report of a run, from its files: report.json, report.md and speeds.svg. Holds no text of any prompt or answer."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, replace
from math import ceil
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from specdash.control import safe_file
from specdash.core.change_words import between_words, change_words
from specdash.core.errors import InputError
from specdash.export.rows_svg import Row, Rows, draw_rows
from specdash.tune.gains import boot_noise, gains
from specdash.tune.objective import is_of_the_tail, unit_of
from specdash.tune.problem import BootResult
from specdash.tune.run_files import read_run
from specdash.tune.run_setup import SAMPLES, SCHEMA, read_setup
from specdash.tune.status import excluded_points

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from specdash.tune.gains import Gain
    from specdash.tune.problem import Point, PromptResult
    from specdash.tune.run_files import RunFiles
    from specdash.tune.status import Boot, Run

_OUT = "out by a limit"
JSON, MARKDOWN, PLOT = "report.json", "report.md", "speeds.svg"


def write_report(record: RunFiles) -> None:
    """Write all three. Raises `NotWrittenError`; does nothing where nothing was begun."""
    directory = record.directory
    run = read_run(directory)
    if run is None:
        return
    told = gains([one.result for one in run.boots], run.plan.start, run.plan.workload)
    texts = {JSON: json.dumps(as_json(run, told, directory), indent=1), MARKDOWN: markdown(run, told, directory)}
    if any(one.speed for one in run.boots):
        texts[PLOT] = draw_rows(plot(run))
    for name, text in texts.items():
        try:
            safe_file.replace(directory / name, text.encode())
        except OSError as error:
            raise safe_file.not_written(directory / name, error) from None


def as_json(run: Run, told: Sequence[Gain | None], directory: Path) -> dict[str, Any]:
    """Everything that was measured, and what came of it."""
    fingerprint: dict[str, str] = {}
    options: dict[str, Any] = {}
    with contextlib.suppress(InputError):
        setup = read_setup(directory)
        # A setting's digest tells a guesser its value.
        fingerprint = {name: text for name, text in setup.fingerprint.items() if not name.startswith("setting ")}
        options = dict(setup.options)
    slowest = latencies_p95(directory)
    return {
        "schema": SCHEMA,
        "state": str(run.state),
        "at": run.head.at,
        "plan": asdict(run.plan),
        "options": options,
        "measured_on": fingerprint,
        "boots": [
            {
                **asdict(one),
                "against_the_start": None if gain is None else asdict(gain),
                "classes": classes(one.result),
                "latency_p95_s": slowest.get(one.number),
            }
            for one, gain in zip(run.boots, told, strict=True)
        ],
        "discarded": discarded(directory),
        "measured_gain": _chosen_gain(run),
        "boot_noise": boot_noise([one.result for one in run.boots], run.plan.workload),
        "end": None if run.end is None else asdict(run.end),
    }


def _chosen_gain(run: Run) -> dict[str, float | None] | None:
    outcome = run.end.outcome if run.end is not None else None
    told = measured_gain(run, outcome.chosen) if outcome is not None else None
    return None if told is None else asdict(told)


def measured_gain(run: Run, point: Point) -> Gain | None:
    """What a point gains over the start by its own boots alone, all of them together; None where there is none.

    The tuner's figure takes in what all other boots say of it; this one takes in nothing but measured times.
    """
    start = run.plan.start
    own = [one.result for one in run.boots if one.result.point == point and not one.result.failure]
    if point == start or not own:
        return None
    if is_of_the_tail(run.plan.workload):
        from specdash.tune.tail import tail_gain

        at_start = [one.result for one in run.boots if one.result.point == start and not one.result.failure]
        return tail_gain(at_start, own, boot_noise([one.result for one in run.boots], run.plan.workload))
    sums: dict[str, PromptResult] = {}
    for one in (prompt for result in own for prompt in result.prompts):
        held = sums.get(one.prompt)
        sums[one.prompt] = one if held is None else replace(
            held, tokens=held.tokens + one.tokens, seconds=held.seconds + one.seconds
        )  # fmt: skip
    others = [one.result for one in run.boots if one.result.point == start]
    return gains([*others, BootResult(point, tuple(sums.values()))], start, run.plan.workload)[-1]


def classes(result: BootResult) -> dict[str, dict[str, float | None]]:
    """Speed and acceptance of each class of prompts."""
    kinds: dict[str, list[PromptResult]] = {}
    for one in result.prompts:
        kinds.setdefault(one.kind, []).append(one)
    return {kind: _figures(found) for kind, found in kinds.items()}


def _figures(found: Sequence[PromptResult]) -> dict[str, float | None]:
    tokens, seconds = sum(one.tokens for one in found), sum(one.seconds for one in found)
    drafted, accepted = sum(one.drafted for one in found), sum(one.accepted for one in found)
    steps = sum(one.steps for one in found)
    return {
        "tokens": tokens,
        "speed": tokens / seconds if seconds > 0 else None,
        "acceptance": accepted / drafted if drafted else None,
        "mean_accepted_length": 1 + accepted / steps if steps else None,
    }


def discarded(directory: Path) -> list[dict[str, Any]]:
    """Boots that did not count, and why."""
    kept = _kept(directory)
    return [{"boot": told.get("boot"), "why": told["discarded"]} for told in kept if told.get("discarded")]


def latencies_p95(directory: Path) -> dict[int, float]:
    """The 95th percentile of the latencies of each boot, in seconds."""
    found: dict[int, float] = {}
    for told in _kept(directory):
        rows = told.get("samples") if not told.get("discarded") else None
        with contextlib.suppress(TypeError, KeyError, AttributeError):
            taken = sorted(one["done_s"] - one["intended_s"] for one in rows or () if not one["error"])
            if taken:
                found[int(told["boot"])] = taken[ceil(0.95 * len(taken)) - 1]
    return found


def _kept(directory: Path) -> list[dict[str, Any]]:
    try:
        lines = (directory / SAMPLES).read_bytes().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):
            told = json.loads(line)
            if isinstance(told, dict):
                found.append(told)
    return found


def plot(run: Run) -> Rows:
    """The points' speeds in the order in which they came, with a tick for each boot, and a line at the start's."""
    speeds: dict[str, list[float]] = {}
    for one in run.boots:
        if one.speed is not None:
            speeds.setdefault(one.result.point.name, []).append(one.speed)
    chosen = run.end.outcome.chosen.name if run.end is not None and run.end.outcome is not None else None
    out = {point.name for point in excluded_points(run.boots)}
    rows = [
        Row(name, fmean(found), ticks=tuple(found), is_best=name == chosen, note=_OUT if name in out else "")
        for name, found in speeds.items()
    ]
    at_start = speeds.get(run.plan.start.name)
    reference = fmean(at_start) if at_start else None
    return Rows(
        f"Tuning for {run.plan.objective}",
        unit_of(run.plan.objective),
        tuple(rows),
        reference=reference,
        reference_words="the start",
        best_words="chosen",
    )


def markdown(run: Run, told: Sequence[Gain | None], directory: Path) -> str:
    """The report for people."""
    plan = run.plan
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(run.head.at))
    lines = [f"# Tuning {plan.service}, {when}", "", *_conclusion(run), ""]
    shares = ", ".join(f"{kind} {share:.0%}" for kind, share in plan.workload.shares if share)
    lines += [
        f"- objective: {plan.objective}; a change is worth it from {plan.least_gain:.0%} on",
        f"- workload: {plan.workload_words} ({shares}); {plan.prompts} prompts in every boot",
        *(f"- limit: {one}" for one in plan.limits),
        f"- {plan.points} points to choose from, {len(run.boots)} of {plan.budget.restarts} restarts used",
        *(f"- note: {one}" for one in plan.notes),
        "",
    ]
    if run.boots:
        lines += [*_table(run.boots, told, plan.start, latencies_p95(directory)), ""]
        lines += [*_by_class(run.boots), ""]
    if any(one.speed for one in run.boots):
        lines += [f"![speeds]({PLOT})", ""]
    noise = boot_noise([one.result for one in run.boots], plan.workload)
    if noise is not None:
        lines.append(f"The same settings differ by {noise:.2%} (standard deviation) from boot to boot.")
    thrown = discarded(directory)
    lines += [f"- discarded, boot {one['boot']}: {one['why']}" for one in thrown]
    away = [one.downtime_s for one in run.boots if one.downtime_s is not None]
    if away:
        lines.append(f"The engine was away for {median(away):.2f} s in a restart (median), {sum(away):.1f} s in all.")
    return "\n".join(lines).rstrip() + "\n"


def _conclusion(run: Run) -> list[str]:
    end = run.end
    if end is None:
        return [f"**{run.state}**: there is no result yet."]
    outcome = end.outcome
    lines = []
    if end.error:
        lines.append(f"**Failed**: {end.error}")
    elif outcome is not None and outcome.improved:
        lines.append(f"**Better: {outcome.chosen.name}**, {_words(outcome.gain, outcome.low, outcome.high)}.")
        told = measured_gain(run, outcome.chosen)
        if told is not None:
            lines.append(f"By its own boots alone: {_words(told.gain, told.low, told.high)}.")
        lines += ["", "```", *(f"{key}={value}" for key, value in end.settings), "```"]
    elif end.ending == "finished":
        lines.append(f"**No improvement found**: {run.plan.start.name} stays.")
        if outcome is not None and outcome.gain:
            lines.append(f"The best other point: {_words(outcome.gain, outcome.low, outcome.high)}.")
    else:
        lines.append("**Stopped**: nothing is recommended.")
    if outcome is not None and outcome.why:
        lines.append(f"Because: {outcome.why}.")
    if end.texts:
        lines.append(f"Texts at temperature 0: {end.texts}.")
    lines.append(f"In force: {end.in_force or 'unknown'}.")
    return lines


def _table(
    boots: Sequence[Boot], told: Sequence[Gain | None], start: object, slowest: Mapping[int, float]
) -> list[str]:
    lines = ["| boot | point | for | speed | against the start | TTFT | latency p95 | |", f"|{'---|' * 8}"]
    for one, gain in zip(boots, told, strict=True):
        beside = "the start" if one.result.point == start else "--"
        if gain is not None:
            beside = _words(gain.gain, gain.low, gain.high)
        speed = "--" if one.speed is None else f"{one.speed:.4g}"
        ttft = "--" if one.result.ttft_s is None else f"{one.result.ttft_s * 1000:.0f} ms"
        p95 = "--" if one.number not in slowest else f"{slowest[one.number]:.2f} s"
        cells = (one.number, one.result.point.name, one.stage, speed, beside, ttft, p95)
        lines.append(f"| {' | '.join(map(str, cells))} | {_cell(_remark(one))} |")
    return lines


def _remark(boot: Boot) -> str:
    """What became of a boot, else why it was made."""
    if boot.excluded:
        return f"{_OUT}: {boot.excluded}"
    return boot.result.failure or (f"this once: {boot.broke}; {boot.why}" if boot.broke else boot.why)


def _by_class(boots: Sequence[Boot]) -> list[str]:
    kinds = list(dict.fromkeys(prompt.kind for one in boots for prompt in one.result.prompts))
    if not kinds:
        return []
    lines = [f"| boot | {' | '.join(kinds)} |", f"|---|{'---|' * len(kinds)}"]
    for one in boots:
        found = classes(one.result)
        cells = [_class_cell(found.get(kind)) for kind in kinds]
        lines.append(f"| {one.number} {one.result.point.name} | {' | '.join(cells)} |")
    return ["Speed and acceptance by class:", "", *lines]


def _class_cell(told: dict[str, float | None] | None) -> str:
    if told is None or told["speed"] is None:
        return "--"
    acceptance = told["acceptance"]
    return f"{told['speed']:.4g}" + ("" if acceptance is None else f", {acceptance:.0%}")


def _words(gain: float | None, low: float | None, high: float | None) -> str:
    return change_words(gain) + ("" if low is None or high is None else f" ({between_words(low, high)})")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")

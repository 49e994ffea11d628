"""The report of a run, from its files: report.json and report.md. Holds no text of any prompt or answer."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from specdash.core.errors import InputError, NotWrittenError
from specdash.core.structs import json_of
from specdash.system import files
from specdash.system.stats import median, nearest_rank
from specdash.system.text import UNKNOWN, markdown_table, number, percent, seconds, significant, timestamp
from specdash.system.text import gain as gain_text
from specdash.tune.model.gains import boot_noise, gains
from specdash.tune.model.problem import BootResult
from specdash.tune.run.status import SCHEMA, by_class, kept_samples, read_run, read_setup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from specdash.tune.model.gains import Gain
    from specdash.tune.model.problem import Point, PromptResult
    from specdash.tune.run.status import Boot, ClassFigures, TuneRun, TuneRunRecord

_OUT = "out by a limit"
JSON, MARKDOWN = "report.json", "report.md"


def write_report(record: TuneRunRecord) -> None:
    """Write both. Raises `NotWrittenError`; does nothing where nothing was begun."""
    directory = record.directory
    run = read_run(directory)
    if run is None:
        return
    gained = gains([boot.result for boot in run.boots], run.plan.start, run.plan.workload)
    texts = {JSON: json.dumps(as_json(run, gained, directory), indent=1), MARKDOWN: markdown(run, gained, directory)}
    for name, text in texts.items():
        with files.writing(directory / name, NotWrittenError):
            files.replace(directory / name, text.encode())


def as_json(run: TuneRun, gained: Sequence[Gain | None], directory: Path) -> dict[str, Any]:
    """Everything that was measured, and what came of it."""
    fingerprint: dict[str, str] = {}
    options: dict[str, Any] = {}
    with contextlib.suppress(InputError):
        setup = read_setup(directory)
        # A setting's digest shows a guesser its value.
        fingerprint = {name: text for name, text in setup.fingerprint.items() if not name.startswith("setting ")}
        options = dict(setup.options)
    slowest = latencies_p95(directory)
    return {
        "schema": SCHEMA,
        "state": str(run.state),
        "at": run.head.at,
        "plan": json_of(run.plan),
        "options": options,
        "measured_on": fingerprint,
        "boots": [
            {
                **json_of(boot),
                "against_the_start": None if gain is None else json_of(gain),
                "classes": {kind: json_of(row) for kind, row in by_class(boot.result.prompts).items()},
                "latency_p95_s": slowest.get(boot.number),
            }
            for boot, gain in zip(run.boots, gained, strict=True)
        ],
        "discarded": discarded(directory),
        "measured_gain": _chosen_gain(run),
        "boot_noise": boot_noise([boot.result for boot in run.boots], run.plan.workload)[0],
        "end": None if run.end is None else json_of(run.end),
    }


def _chosen_gain(run: TuneRun) -> dict[str, float | None] | None:
    outcome = run.end.outcome if run.end is not None else None
    gained = measured_gain(run, outcome.chosen) if outcome is not None else None
    return None if gained is None else json_of(gained)


def measured_gain(run: TuneRun, point: Point) -> Gain | None:
    """What a point gains over the start by its own boots alone, all of them together; None where there is none.

    The tuner's figure takes in what all other boots say of it; this one takes in nothing but measured times.
    """
    start = run.plan.start
    own = [boot.result for boot in run.boots if boot.result.point == point and not boot.result.failure]
    if point == start or not own:
        return None
    sums: dict[str, PromptResult] = {}
    for prompt_result in (prompt for result in own for prompt in result.prompts):
        held = sums.get(prompt_result.prompt)
        sums[prompt_result.prompt] = prompt_result if held is None else replace(
            held, tokens=held.tokens + prompt_result.tokens, seconds=held.seconds + prompt_result.seconds
        )  # fmt: skip
    others = [boot.result for boot in run.boots if boot.result.point == start]
    return gains([*others, BootResult(point, tuple(sums.values()))], start, run.plan.workload)[-1]


def discarded(directory: Path) -> list[dict[str, Any]]:
    """Boots that did not count, and why."""
    kept = kept_samples(directory)
    return [{"boot": row.get("boot"), "why": row["discarded"]} for row in kept if row.get("discarded")]


def latencies_p95(directory: Path) -> dict[int, float]:
    """The 95th percentile of the latencies of each boot, in seconds."""
    found: dict[int, float] = {}
    for kept in kept_samples(directory):
        rows = kept.get("samples") if not kept.get("discarded") else None
        with contextlib.suppress(TypeError, KeyError, AttributeError):
            taken = sorted(row["done_s"] - row["intended_s"] for row in rows or () if not row["error"])
            if taken:
                found[int(kept["boot"])] = nearest_rank(taken, 0.95)
    return found


def markdown(run: TuneRun, gained: Sequence[Gain | None], directory: Path) -> str:
    """The report for people."""
    plan = run.plan
    when = timestamp(run.head.at, seconds=False, utc=True)
    lines = [f"# Tuning {plan.service}, {when}", "", *_conclusion(run), ""]
    shares = ", ".join(f"{kind} {percent(share)}" for kind, share in plan.workload.shares if share)
    lines += [
        f"- objective: {plan.objective}; a change is worth it from {percent(plan.least_gain)} on",
        f"- workload: {plan.workload_words} ({shares}); {plan.prompts} prompts in every boot",
        *(f"- limit: {limit}" for limit in plan.limits),
        f"- {plan.points} points to choose from, {len(run.boots)} of {plan.budget.restarts} restarts used",
        *(f"- note: {note}" for note in plan.notes),
        "",
    ]
    if run.boots:
        lines += [_table(run.boots, gained, plan.start, latencies_p95(directory)), ""]
        lines += [*_by_class(run.boots), ""]
    noise = boot_noise([boot.result for boot in run.boots], plan.workload)[0]
    if noise is not None:
        lines.append(f"The same settings differ by {percent(noise, 2)} (standard deviation) from boot to boot.")
    thrown = discarded(directory)
    lines += [f"- discarded, boot {entry['boot']}: {entry['why']}" for entry in thrown]
    away = [boot.downtime_s for boot in run.boots if boot.downtime_s is not None]
    if away:
        lines.append(
            f"The engine was away for {number(median(away), 2)} s in a restart (median), {sum(away):.1f} s in all."
        )
    return "\n".join(lines).rstrip() + "\n"


def _conclusion(run: TuneRun) -> list[str]:
    end = run.end
    if end is None:
        return [f"**{run.state}**: there is no result yet."]
    outcome = end.outcome
    lines = []
    if end.error:
        lines.append(f"**Failed**: {end.error}")
    elif outcome is not None and outcome.improved:
        lines.append(f"**Better: {outcome.chosen.name}**, {gain_text(outcome.gain, outcome.low, outcome.high)}.")
        gained = measured_gain(run, outcome.chosen)
        if gained is not None:
            lines.append(f"By its own boots alone: {gain_text(gained.gain, gained.low, gained.high)}.")
        lines += ["", "```", *(f"{key}={value}" for key, value in end.settings), "```"]
    elif end.ending == "finished":
        lines.append(f"**No improvement found**: {run.plan.start.name} stays.")
        if outcome is not None and outcome.gain:
            lines.append(f"The best other point: {gain_text(outcome.gain, outcome.low, outcome.high)}.")
    else:
        lines.append("**Stopped**: nothing is recommended.")
    if outcome is not None and outcome.why:
        lines.append(f"Because: {outcome.why}.")
    if end.texts:
        lines.append(f"Texts at temperature 0: {end.texts}.")
    lines.append(f"In force: {end.in_force or 'unknown'}.")
    return lines


def _table(boots: Sequence[Boot], gained: Sequence[Gain | None], start: object, slowest: Mapping[int, float]) -> str:
    rows = [("boot", "point", "for", "speed", "against the start", "TTFT", "latency p95", "")]
    for boot, gain in zip(boots, gained, strict=True):
        beside = "the start" if boot.result.point == start else UNKNOWN
        if gain is not None:
            beside = gain_text(gain.gain, gain.low, gain.high)
        ttft, p95 = seconds(boot.result.ttft_s), number(slowest.get(boot.number), 2, "s")
        speed = significant(boot.speed, 4)
        rows.append(
            (str(boot.number), boot.result.point.name, str(boot.stage), speed, beside, ttft, p95, _remark(boot))
        )
    return markdown_table(rows)


def _remark(boot: Boot) -> str:
    """What became of a boot, else why it was made."""
    if boot.excluded:
        return f"{_OUT}: {boot.excluded}"
    return boot.result.failure or boot.why


def _by_class(boots: Sequence[Boot]) -> list[str]:
    kinds = list(dict.fromkeys(prompt.kind for boot in boots for prompt in boot.result.prompts))
    if not kinds:
        return []
    rows = [["boot", *kinds]]
    for boot in boots:
        found = by_class(boot.result.prompts)
        rows.append([f"{boot.number} {boot.result.point.name}", *(_class_cell(found.get(kind)) for kind in kinds)])
    return ["Speed and acceptance by class:", "", markdown_table(rows)]


def _class_cell(figures: ClassFigures | None) -> str:
    if figures is None or figures.speed is None:
        return UNKNOWN
    acceptance = figures.acceptance
    return significant(figures.speed, 4) + ("" if acceptance is None else f", {percent(acceptance)}")

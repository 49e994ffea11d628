"""The report of a run, from its files: report.json and report.md. Holds no text of any prompt or answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from specdash.core.errors import NotWrittenError
from specdash.core.structs import json_of
from specdash.system import files
from specdash.system.stats import median
from specdash.system.text import UNKNOWN, markdown_table, number, percent, seconds, significant, timestamp
from specdash.system.text import gain as gain_text
from specdash.tune.model.gains import boot_noise, gains
from specdash.tune.run.status import by_class, read_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.tune.model.gains import Gain
    from specdash.tune.run.status import Boot, ClassFigures, TuneRun, TuneRunRecord

SCHEMA = "specdash.tune/1"
_OUT = "out by a limit"
JSON, MARKDOWN = "report.json", "report.md"


def write_report(record: TuneRunRecord) -> None:
    """Write both. Raises `NotWrittenError`; does nothing where nothing was begun."""
    directory = record.directory
    run = read_run(directory)
    if run is None:
        return
    gained = gains([boot.result for boot in run.boots], run.plan.start, run.plan.workload)
    texts = {JSON: json.dumps(as_json(run, gained), indent=1), MARKDOWN: markdown(run, gained)}
    for name, text in texts.items():
        with files.writing(directory / name, NotWrittenError):
            files.replace(directory / name, text.encode())


def as_json(run: TuneRun, gained: Sequence[Gain | None]) -> dict[str, Any]:
    """Everything that was measured, and what came of it."""
    return {
        "schema": SCHEMA,
        "state": str(run.state),
        "at": run.head.at,
        "plan": json_of(run.plan),
        "boots": [
            {
                **json_of(boot),
                "against_the_start": None if gain is None else json_of(gain),
                "classes": {kind: json_of(row) for kind, row in by_class(boot.result.prompts).items()},
            }
            for boot, gain in zip(run.boots, gained, strict=True)
        ],
        "boot_noise": boot_noise([boot.result for boot in run.boots], run.plan.workload)[0],
        "end": None if run.end is None else json_of(run.end),
    }


def markdown(run: TuneRun, gained: Sequence[Gain | None]) -> str:
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
        lines += [_table(run.boots, gained, plan.start), ""]
        lines += [*_by_class(run.boots), ""]
    noise = boot_noise([boot.result for boot in run.boots], plan.workload)[0]
    if noise is not None:
        lines.append(f"The same settings differ by {percent(noise, 2)} (standard deviation) from boot to boot.")
    lines += [f"- discarded, boot {boot.number}: {why}" for boot in run.boots for why in boot.discarded]
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
        lines += ["", "```", *(f"{key}={value}" for key, value in end.settings), "```"]
    elif end.ending == "finished":
        lines.append(f"**No improvement found**: {run.plan.start.name} stays.")
        if outcome is not None and outcome.gain:
            lines.append(f"The best other point: {gain_text(outcome.gain, outcome.low, outcome.high)}.")
    else:
        lines.append("**Stopped**: nothing is recommended.")
    if outcome is not None and outcome.why:
        lines.append(f"Because: {outcome.why}.")
    lines.append(f"In force: {end.in_force or 'unknown'}.")
    return lines


def _table(boots: Sequence[Boot], gained: Sequence[Gain | None], start: object) -> str:
    rows = [("boot", "point", "for", "speed", "against the start", "TTFT", "")]
    for boot, gain in zip(boots, gained, strict=True):
        beside = "the start" if boot.result.point == start else UNKNOWN
        if gain is not None:
            beside = gain_text(gain.gain, gain.low, gain.high)
        speed, ttft = significant(boot.speed, 4), seconds(boot.result.ttft_s)
        rows.append((str(boot.number), boot.result.point.name, str(boot.stage), speed, beside, ttft, _remark(boot)))
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

"""What `tuner_real.py` found: a table in Markdown, summary.json, and files for `simulator_fit.py`."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.tuner_lab.beliefs import from_results, on_another_mix
from benchmarks.tuner_lab.harness import Figure
from benchmarks.tuner_lab.step_line import step_line
from benchmarks.tuner_real_cells import SYNTHETIC, on
from benchmarks.tuner_real_judge import (
    Sweep,
    by_formula,
    curve_errors,
    random_search,
    replayed,
    speed_of,
    swept_once,
)
from benchmarks.tuner_real_tables import Row, cells_table, percent, short_table, table
from specdash.tune.model.problem import Point, WorkloadShares

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from benchmarks.tuner_real_cells import Cell, Results, SweepBoot, TunedRun
    from specdash.tune.model.problem import BootResult, Task

    Floats = NDArray[np.float64]

FORECAST_BOOTS = 4
DRAWN = 2000
SIDE = 6
"""The draft length that step times are predicted from, beside off."""


def report(results: Results, directory: Path) -> str:
    """Judges what there is, writes it down, and gives the table."""
    summary: dict[str, Any] = {"cells": {}, "rows": []}
    lines, rows, forecasts = _same_words(results), [], []
    for name in results.cells:
        boots = results.sweep(name)
        if name == SYNTHETIC.name:
            continue
        try:
            sweep = Sweep(results.tasks[name], boots)
        except ValueError as error:
            lines.append(f"{name}: {error}")
            continue
        own = [run for run in results.runs if run.cell == name]
        rows += _rows(name, sweep, boots, own)
        rows += _without_off(name, results.tasks[name], boots)
        summary["cells"][name] = _cell_summary(sweep, boots)
        lines += _failures(name, sweep, boots, own)
        forecasts += _forecasts(name, sweep, own)
        if len(results.cells[name].kinds) > 1:
            rescored = _rescored(name, sweep, own)
            rows += rescored
        _write_fit(directory, results.cells[name], sweep)
    summary["rows"] = [asdict(row) for row in rows]
    summary["forecasts"] = forecasts
    synthetic = [sweep_boot for sweep_boot in results.sweep(SYNTHETIC.name) if not sweep_boot.result.failure]
    told, summary["synthetic"] = _synthetic(synthetic, directory)
    short = short_table([row for row in rows if "scored" not in row.way])
    tables = (cells_table(summary["cells"]), short, table(rows), _curve(forecasts), told)
    text = "\n".join([*lines, *(line for row in tables for line in ("", *row))])
    (directory / "summary.json").write_text(json.dumps(summary, indent=1), encoding="utf-8")
    (directory / "table.md").write_text(text + "\n", encoding="utf-8")
    return text


def _rows(name: str, sweep: Sweep, boots: Sequence[SweepBoot], runs: Sequence[TunedRun]) -> list[Row]:
    found = []
    for restarts in sorted({run.restarts for run in runs}, reverse=True):
        some = [run for run in runs if run.restarts == restarts]
        ended = [tuned_run for tuned_run in some if tuned_run.outcome is not None]
        chosen = [tuned_run.outcome.chosen for tuned_run in ended if tuned_run.outcome is not None]
        if chosen:
            spent = float(np.mean([len(tuned_run.results) for tuned_run in ended]))
            took = float(np.mean([tuned_run.seconds for tuned_run in ended]))
            judged = sweep.judge(sweep.certainly(*chosen), chosen)
            words = f"tuner, {restarts} restarts, {len(chosen)} runs"
            found.append(Row(name, words, judged, spent, took, _names(chosen)))
    for restarts in (12, 8):
        weights, _ = replayed(sweep, restarts)
        chose = _often(sweep, weights.mean(0))
        found.append(Row(name, f"tuner, {restarts}, on the sweep's boots", sweep.judge(weights), restarts, None, chose))
    took = float(np.sum([boot.seconds for boot in boots]))
    rounds = max(1, len({boot.turn for boot in boots}))
    picks = {"the start, kept": sweep.task.start, "UAP's formula": by_formula(sweep)}
    default = Point(sweep.task.start.types, n_max=3, p_min=0.0)
    if default in sweep.points:
        picks["llama.cpp's default"] = default
    for way, point in picks.items():
        found.append(Row(name, way, sweep.judge(sweep.certainly(point)), None, None, point.name))
    for way, weights, restarts in (
        ("random, 12", random_search(sweep), 12),
        ("every point once", swept_once(sweep), len(sweep.points)),
    ):
        once = took / rounds * restarts / len(sweep.points)
        found.append(Row(name, way, sweep.judge(weights), restarts, once, _often(sweep, weights.mean(0))))
    best = sweep.points[sweep.best]
    found.append(
        Row(name, f"every point {rounds} times", sweep.judge(sweep.certainly(best)), len(boots), took, best.name)
    )
    return found


def _without_off(name: str, task: Task, boots: Sequence[SweepBoot]) -> list[Row]:
    """Where drafts cost what they save, "off" is easily found; so also how it chooses among points that draft."""
    drafting = replace(task, points=tuple(point for point in task.points if point.types))
    try:
        sweep = Sweep(drafting, [boot for boot in boots if boot.result.point.types])
    except ValueError:
        return []
    found = [
        Row(name, "drafts only: the start, kept", sweep.judge(sweep.certainly(task.start)), None, None, task.start.name)
    ]
    for restarts in (12, 8):
        weights, _ = replayed(sweep, restarts)
        words = f"drafts only: tuner, {restarts}, on the sweep's boots"
        found.append(Row(name, words, sweep.judge(weights), restarts, None, _often(sweep, weights.mean(0))))
    weights = random_search(sweep)
    found.append(Row(name, "drafts only: random, 12", sweep.judge(weights), 12, None, _often(sweep, weights.mean(0))))
    return found


def _rescored(name: str, sweep: Sweep, runs: Sequence[TunedRun]) -> list[Row]:
    """Runs on both classes, judged for one of them without a restart; and what their own choice loses there."""
    found = []
    for kind, _ in sweep.task.workload.shares:
        shares = {other: float(other == kind) for other, _ in sweep.task.workload.shares}
        other = sweep.on(shares)
        for restarts in sorted({run.restarts for run in runs}, reverse=True):
            some = [run for run in runs if run.restarts == restarts and run.outcome is not None]
            if not some:
                continue
            again = [
                on_another_mix(
                    from_results(on(sweep.task, restarts=restarts), tuned_run.results),
                    WorkloadShares(tuple(shares.items())),
                ).chosen
                for tuned_run in some
            ]
            before = [tuned_run.outcome.chosen for tuned_run in some if tuned_run.outcome is not None]
            for way, chosen in (("re-scored", again), ("not re-scored", before)):
                judged = other.judge(other.certainly(*chosen), chosen)
                words = f"tuner, {restarts} restarts, {way} for {kind}"
                found.append(Row(name, words, judged, 0.0 if chosen is again else None, None, _names(chosen)))
    return found


def _forecasts(name: str, sweep: Sweep, runs: Sequence[TunedRun]) -> list[dict[str, Any]]:
    """Errors of the predicted n_max curve after four boots, of each run."""
    if not any(point.n_max for point in sweep.points):
        return []
    recorded = replayed(sweep, 12)[1] if len(sweep.turns) > 0 else []
    known = [("its own boots", run.results) for run in runs] + [("the sweep's boots", tuple(recorded))]
    return [
        {"cell": name, "boots": words, "errors": errors}
        for words, results in known
        if len(results) >= FORECAST_BOOTS and (errors := curve_errors(sweep, results[:FORECAST_BOOTS]))
    ]


def _curve(forecasts: Sequence[dict[str, Any]]) -> list[str]:
    if not forecasts:
        return []
    lines = [
        f"Speed of the n_max curve, predicted after {FORECAST_BOOTS} boots, against the sweep:",
        "",
        "| type, workload | from | runs | median error | p90 | largest |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for key in dict.fromkeys((forecast["cell"], forecast["boots"]) for forecast in forecasts):
        some = [
            list(forecast["errors"].values()) for forecast in forecasts if (forecast["cell"], forecast["boots"]) == key
        ]
        errors = np.abs(np.array(some))
        cells = (f"{100 * x:.1f} %" for x in (np.median(errors), np.quantile(errors, 0.9), errors.max()))
        lines.append(f"| {key[0]} | {key[1]} | {len(some)} | {' | '.join(cells)} |")
    return lines


def _synthetic(boots: Sequence[SweepBoot], directory: Path) -> tuple[list[str], dict[str, Any]]:
    """Step times with synthetic acceptance, predicted from off and one length; intervals by drawing boots again."""
    by_length: dict[int, list[float]] = {}
    for boot in boots:
        prompts = boot.result.prompts
        steps = sum(part.steps or part.tokens - part.accepted for part in prompts)
        by_length.setdefault(boot.result.point.n_max or 0, []).append(1000 * sum(p.seconds for p in prompts) / steps)
    if 0 not in by_length or SIDE not in by_length or 1 not in by_length or len(by_length) < 4:
        return [], {}
    lengths = sorted(by_length)
    times = {n: np.array(by_length[n]) for n in lengths}

    means = {n: float(times[n].mean()) for n in lengths}
    lines = [
        "Milliseconds of a step with synthetic acceptance, by longest draft, and as two of them predict the others:",
        "",
        "| n | " + " | ".join(str(n) if n else "off" for n in lengths) + " | median error | largest |",
        "| --- |" + " --- |" * (len(lengths) + 2),
        "| measured | " + " | ".join(f"{means[n]:.3f}" for n in lengths) + " | | |",
    ]
    told: dict[str, Any] = {"step_ms": means}
    for first in (0, 1):
        words = f"{f'n {first}' if first else 'off'} and n {SIDE}"
        median, most = _line_errors(times, first)
        line = _line(means, first)
        row = " | ".join(f"{line(n):.3f}" for n in lengths)
        lines.append(f"| from {words} | {row} | {percent(median)} | {percent(most)} |")
        told[words] = {"median_error": asdict(median), "largest_error": asdict(most)}
    accepted = {
        n: curve
        for n in lengths
        if n and (curve := _accepted(boot.result for boot in boots if boot.result.point.n_max == n))
    }
    _write(directory, "synthetic", {"step_ms": means, "accepted": accepted})
    return lines, told


def _line(means: dict[int, float], first: int) -> Callable[[int], float]:
    """Through two lengths; of drafting steps alone where the first is not off."""
    line = step_line(means[first], means[SIDE], SIDE - first)
    return lambda length: line(length - first)


def _line_errors(times: dict[int, Floats], first: int) -> tuple[Figure, Figure]:
    """Median and largest error of the other lengths, with intervals by drawing boots again."""
    random = np.random.default_rng(1)
    others = [n for n in times if n not in (first, SIDE) and n >= first]

    def errors(means: dict[int, float]) -> tuple[float, float]:
        line = _line(means, first)
        found = np.abs([line(n) / means[n] - 1 for n in others])
        return float(np.median(found)), float(found.max())

    found = errors({n: float(moment.mean()) for n, moment in times.items()})
    drawn = [
        errors({n: float(random.choice(moment, moment.size).mean()) for n, moment in times.items()})
        for _ in range(DRAWN)
    ]
    low, high = np.quantile(np.array(drawn), (0.025, 0.975), axis=0)
    return Figure(found[0], float(low[0]), float(high[0])), Figure(found[1], float(low[1]), float(high[1]))


def _write_fit(directory: Path, cell: Cell, sweep: Sweep) -> None:
    """Step times and acceptance by position of ungated drafts, as `simulator_fit.py` reads them."""
    step_ms, accepted = {}, {}
    for point, boots in zip(sweep.points, sweep.results, strict=True):
        if point.types and (point.n_max is None or point.p_min):
            continue
        parts = [prompt for boot in boots for prompt in boot.prompts]
        steps = sum(part.steps or part.tokens - part.accepted for part in parts)
        step_ms[point.n_max or 0] = 1000 * sum(part.seconds for part in parts) / steps
        curve = _accepted(boots)
        if point.n_max and curve:
            accepted[point.n_max] = curve
    if accepted and len(step_ms) > 2:
        _write(directory, cell.slug, {"step_ms": step_ms, "accepted": accepted})


def _accepted(boots: Iterable[BootResult]) -> list[float]:
    """Acceptance by position over steps that drafted."""
    parts = [prompt for boot in boots for prompt in boot.prompts if prompt.steps and prompt.accepted_per_position]
    steps = sum(part.steps for part in parts)
    longest = max((len(part.accepted_per_position) for part in parts), default=0)
    return [
        sum(part.accepted_per_position[at] for part in parts if at < len(part.accepted_per_position)) / steps
        for at in range(longest)
    ]


def _write(directory: Path, name: str, told: dict[str, Any]) -> None:
    (directory / f"fit-{name}.json").write_text(json.dumps(told, indent=1), encoding="utf-8")


def _cell_summary(sweep: Sweep, boots: Sequence[SweepBoot]) -> dict[str, Any]:
    speeds = {point.name + _more(point): 1 / cost for point, cost in zip(sweep.points, sweep.mean_cost, strict=True)}
    return {
        "points": len(sweep.points),
        "rounds": len(sweep.turns),
        "noise": sweep.noise,
        "best": sweep.points[sweep.best].name + _more(sweep.points[sweep.best]),
        "start": sweep.task.start.name,
        "spread": float(sweep.mean_cost.max() / sweep.mean_cost.min() - 1),
        "seconds": sum(boot.seconds for boot in boots),
        "disturbed": sum(bool(boot.disturbed) for boot in boots),
        "speeds": dict(sorted(speeds.items(), key=lambda pair: -pair[1])),
    }


def _same_words(results: Results) -> list[str]:
    boots = [boot for boot in results.boots if boot.what == "same" and not boot.result.failure]
    if len(boots) < 2:
        return []
    task = results.tasks[boots[0].cell]
    logs = np.log([speed_of(boot.result, task) for boot in boots])
    apart = f"{100 * logs.std(ddof=1):.1f} % (sd)"
    return [f"{len(boots)} boots of {task.start.name} ({boots[0].cell}): speeds differ by {apart}"]


def _failures(name: str, sweep: Sweep, boots: Sequence[SweepBoot], runs: Sequence[TunedRun]) -> list[str]:
    said = [f"{name}: {point.name} failed in every boot" for point in sweep.failed]
    failures = {boot.result.point.name: boot.result.failure for boot in boots if boot.result.failure}
    said += [f"{name}: {point}: {why}" for point, why in failures.items()]
    for run in runs:
        said += [
            f"{name}: tuner, {run.restarts} restarts, run {run.turn + 1}: {result.point.name}: {result.failure}"
            for result in run.results
            if result.failure
        ]
        if run.error:
            said.append(f"{name}: tuner, {run.restarts} restarts, run {run.turn + 1}: {run.error}")
    return said


def _names(points: Iterable[Point]) -> str:
    names = [point.name + _more(point) for point in points]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _often(sweep: Sweep, weights: Any) -> str:
    order = [place for place in np.argsort(-weights)[:2] if weights[place] > 0]
    return ", ".join(f"{100 * weights[at]:.0f} % {sweep.points[at].name}{_more(sweep.points[at])}" for at in order)


def _more(point: Point) -> str:
    """Knobs that the name leaves out."""
    least = "" if point.ngram_min is None else f" min {point.ngram_min}"
    return least + ("" if point.ngram_size is None else f" match {point.ngram_size}")

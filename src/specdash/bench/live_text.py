"""The report of `bench live` for people: a table for the terminal, and the same as Markdown."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from specdash.bench.live import notes
from specdash.bench.progress import duration
from specdash.bench.statistics import spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.bench.figures import Figures
    from specdash.bench.live import Live
    from specdash.bench.machine import MachineState
    from specdash.bench.statistics import Figure

UNKNOWN = "--"
LATENCY = "latency p50 / p95"
_THOUSAND = 1000


def text(live: Live) -> list[str]:
    """For the terminal."""
    lines = [*about(live), ""]
    if live.run.answered:
        lines += [*aligned(table(live)), ""]
        if live.throughput is not None and not live.options.alone:
            lines.append(f"all requests together: {number(live.throughput)} tokens/s")
    return [*lines, *(f"- {one}" for one in notes(live))]


def markdown(live: Live) -> str:
    """report.md."""
    lines = ["# bench live", "", *(f"{one}  " for one in about(live)), ""]
    if live.run.answered:
        lines += [*_md_table(table(live)), ""]
        lines += ["![Decode](decode.svg)", "", "![Time to the first token](ttft.svg)", ""]
        if live.overall.acceptance is not None:
            lines += ["![Acceptance](acceptance.svg)", ""]
        lines += ["## Both ways to average", "", *_both_ways(live), ""]
    lines += ["## What to know", "", *(f"- {one}" for one in notes(live)), ""]
    lines += ["## Machine", "", *_machine(live), ""]
    return "\n".join(lines)


def about(live: Live) -> list[str]:
    """Who was asked what."""
    engine, options = live.engine, live.options
    spoken = engine.speculative
    speculation = {True: ", ".join(engine.speculative_types or ()) or "on", False: "off", None: "unknown"}[spoken]
    load = (
        f"{options.concurrency} at a time"
        if options.rate is None
        else f"{options.rate:g} a second, {'evenly' if options.constant else 'Poisson'}"
    )
    length = f"{'exactly' if options.force_length else 'at most'} {options.max_tokens} tokens"
    began = datetime.fromtimestamp(live.run.started_at, UTC)
    named = live.engine_words or (f"build {engine.build}" if engine.build else "build unknown")
    asked = f"{len(live.prompts)} prompts ({live.source}) × {options.runs} runs, {load}, {length}"
    return [
        f"{engine.url}: {engine.model or 'model unknown'}, {named}, speculation {speculation}",
        f"{asked}, temperature {options.temperature:g}, seed {options.seed}",
        f"{began:%Y-%m-%d %H:%M:%S} UTC, {duration(live.run.duration_s)}" + (", stopped" if live.interrupted else ""),
    ]


def table(live: Live) -> list[list[str]]:
    """Headings, then a row a class. Latencies only where requests are not simply one after the other."""
    columns = [_cells(name, told) for name, told in live.groups.items()]
    heads = [name for name in columns[0] if name != LATENCY or not live.options.alone]
    return [heads, *([cells[name] for name in heads] for cells in columns)]


def _cells(name: str, told: Figures) -> dict[str, str]:
    runs = spread(told.by_run)
    over = UNKNOWN
    if runs is not None and runs.deviation is not None:
        digits = 0 if runs.deviation >= 10 else 1 if runs.deviation >= 1 else 2
        over = f"{runs.mean:.{digits}f} ± {runs.deviation:.{digits}f}"
    failed = f" ({told.failed} failed)" if told.failed else ""
    length = UNKNOWN if told.mean_accepted_length is None else f"{told.mean_accepted_length:.2f}"
    accepted = UNKNOWN
    if told.acceptance is not None:
        accepted = _percent(told.acceptance)
    return {
        "class": name,
        "requests": f"{told.requests}{failed}",
        "decode tok/s [95 %]": rate(told.decode),
        "runs mean ± sd": over,
        "prefill tok/s": UNKNOWN if told.prefill is None else number(told.prefill.value),
        "TTFT p50 / p95": f"{seconds(told.ttft_tail[0])} / {seconds(told.ttft_tail[1])}",
        LATENCY: f"{seconds(told.latency_tail[0])} / {seconds(told.latency_tail[1])}",
        "acceptance [95 %]": accepted,
        "mean len": length,
    }


def rate(figure: Figure | None) -> str:
    """`812.4 [790.1, 830.2]`."""
    if figure is None:
        return UNKNOWN
    if figure.low is None or figure.high is None:
        return number(figure.value)
    return f"{number(figure.value)} [{number(figure.low)}, {number(figure.high)}]"


def number(value: float) -> str:
    """Four digits, or all before the point: `57.61`, `25,031`."""
    return f"{value:,.0f}" if abs(value) >= _THOUSAND else f"{value:.4g}"


def seconds(value: float | None) -> str:
    """`12.3 ms` below a second."""
    if value is None:
        return UNKNOWN
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"


def aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Columns under each other."""
    widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def _percent(figure: Figure) -> str:
    if figure.low is None or figure.high is None:
        return f"{figure.value:.1%}"
    return f"{figure.value:.1%} [{figure.low * 100:.1f}, {figure.high * 100:.1f}]"


def _both_ways(live: Live) -> list[str]:
    """Beside llama.cpp's speed-bench, which takes the mean of the requests' rates."""
    heads = ("class", "decode, Σ tokens / Σ time", "decode, mean of requests", "accepted / drafted", "acceptance",
             "acceptance, mean of requests")  # fmt: skip
    rows = [
        [
            name,
            UNKNOWN if told.decode is None else f"{told.decode.value:.2f}",
            UNKNOWN if told.decode_mean is None else f"{told.decode_mean:.2f}",
            f"{told.accepted} / {told.drafted}",
            UNKNOWN if told.acceptance is None else f"{told.acceptance.value:.2%}",
            UNKNOWN if told.acceptance_mean is None else f"{told.acceptance_mean:.2%}",
        ]
        for name, told in live.groups.items()
    ]
    return _md_table([heads, *rows])


def _machine(live: Live) -> list[str]:
    told = live.machine.as_json()
    lines = [f"- CPU: {told['cpu'] or 'unknown'}, {told['cores']} cores"]
    states = live.machine.states
    if states:
        lines += [f"- before: {_state(states[0])}", f"- after: {_state(states[-1])}"]
        lines += [f"- GPU: {states[0].gpu_absent}"] if states[0].gpu_absent else []
    limits = told["during"].get("clock_limits")
    if limits:
        lines.append(f"- clocks were limited: {', '.join(limits)}")
    return lines


def _state(state: MachineState) -> str:
    parts = [
        f"CPU {state.cpu_mhz:.0f} MHz" if state.cpu_mhz is not None else "CPU clock unknown",
        f"{state.cpu_celsius:.0f} °C" if state.cpu_celsius is not None else "",
        f"load {state.cpu_load_1m:.1f}" if state.cpu_load_1m is not None else "",
    ]
    for gpu in state.gpus:
        parts += [
            f"GPU {gpu.index} {gpu.name or ''}".rstrip(),
            f"{gpu.sm_clock_mhz} MHz" if gpu.sm_clock_mhz is not None else "",
            f"{gpu.temperature_celsius:.0f} °C" if gpu.temperature_celsius is not None else "",
            f"{gpu.power_watts:.0f} of {gpu.power_limit_watts:.0f} W"
            if gpu.power_watts is not None and gpu.power_limit_watts is not None
            else "",
        ]
    return ", ".join(one for one in parts if one)


def _md_table(rows: Sequence[Sequence[str]]) -> list[str]:
    return [_md_row(rows[0]), _md_row(["---"] * len(rows[0])), *(_md_row(one) for one in rows[1:])]


def _md_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(one.replace("|", "\\|") for one in cells) + " |"

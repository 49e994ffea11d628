"""A running server measured on prompts, as a report: what was asked, of whom, in which state of the machine, and what
came of it. docs/measuring.md says what each figure means."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from specdash import __version__
from specdash.bench.load.figures import (
    Figures,
    acceptance_parts,
    by_class,
    decode_parts,
    faults,
    figures_of,
    flags,
    usable,
    value_of,
    was_cached,
)
from specdash.bench.load.samples import NO_TIMINGS, SHORT
from specdash.bench.report import BenchReport, bullets, page, sample_json, section
from specdash.core.structs import json_of
from specdash.system import stats
from specdash.system.stats import spread
from specdash.system.text import (
    UNKNOWN,
    counted,
    duration,
    markdown_table,
    number,
    percent,
    seconds,
    significant,
    timestamp,
)
from specdash.system.text import table as text_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specdash.bench.compare.machine import MachineState, MachineWatch
    from specdash.bench.load.contact import ServerDescription
    from specdash.bench.load.drive import MeasuredRun
    from specdash.bench.load.figures import Figure
    from specdash.bench.load.samples import BenchSample, MeasureOptions, WorkloadPrompt

SCHEMA = "specdash.bench.live/1"
ALL = "all"
_LEARNT = 0.05
"""A change of the share of tokens from drafts, from the first run to later ones, that is worth saying."""
_LAG = 0.1
_BUSY_GPU = 0.2
_MANY_KINDS = 1


@dataclasses.dataclass(frozen=True, slots=True)
class LiveReport:
    """What is known once it is over."""

    run: MeasuredRun
    engine: ServerDescription
    options: MeasureOptions
    prompts: tuple[WorkloadPrompt, ...]
    machine: MachineWatch
    source: str
    """Where the prompts are from, in words."""
    interrupted: bool = False
    settings: tuple[tuple[str, str], ...] = ()
    """Speculation parameters of the server, where its runner recorded them."""
    engine_words: str | None = None
    classes: dict[str, Figures] = dataclasses.field(init=False)
    overall: Figures = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", by_class(self.run.samples))
        object.__setattr__(self, "overall", figures_of(self.run.samples))

    @property
    def groups(self) -> dict[str, Figures]:
        """The classes, and all of them where there are several."""
        return {**self.classes, ALL: self.overall} if len(self.classes) > _MANY_KINDS else self.classes

    @property
    def throughput(self) -> float | None:
        """Generated tokens of all requests per second of the whole measurement, waiting and prompts included."""
        return self.overall.tokens / self.run.duration_s if self.run.duration_s > 0 and self.overall.tokens else None


def notes(live: LiveReport) -> list[str]:
    """What must be known to read the figures, one sentence each."""
    found = [cache_words(live), *_trouble(live), *live.run.notes]
    found += [*_load(live), *_busy(live)]
    learnt = _learnt(live.overall)
    if learnt is not None:
        found.append(learnt)
    if live.run.draft_s is not None and live.run.draft_s > 0:
        decode = sum(bench_sample.predicted_ms or 0.0 for bench_sample in live.run.answered) / 1000.0
        if decode > 0:
            found.append(
                f"drafting took {live.run.draft_s:.2f} s, {percent(live.run.draft_s / decode)} of the decode time"
            )
    return found


def cache_words(live: LiveReport) -> str:
    """Whether a cache was used, as it was seen and not only as it was asked for."""
    samples = live.run.answered
    if live.options.cache:
        share = live.overall.cached_tokens / live.overall.prompt_tokens if live.overall.prompt_tokens else 0.0
        return f"cache on: {percent(share)} of all prompt tokens came from the server's cache"
    used = was_cached(samples)
    if used:
        return f"cache off was asked for, but {counted(used, 'request')} used one; their speeds are left out"
    return "cache off: every request began differently and asked for no cache, and no prompt token was cached"


def _trouble(live: LiveReport) -> Iterable[str]:
    run, overall = live.run, live.overall
    if not run.complete:
        yield f"{len(run.samples)} of {run.planned} requests were made"
    if overall.failed:
        kinds = ", ".join(f"{count} {kind}" for kind, count in faults(run.samples).items())
        example = next(sample.error for sample in run.samples if sample.failed)
        yield f"{counted(overall.failed, 'request')} failed ({kinds}): {example}"
    odd = flags(run.samples)
    if overall.empty:
        yield f"{counted(overall.empty, 'answer')} came back empty"
    if odd.pop(SHORT, 0):
        yield (
            f"{counted(overall.short, 'answer')} ended before a quarter of the length asked for; --force-length goes "
            "on past the end of the text"
        )
    if odd.pop(NO_TIMINGS, 0):
        yield "the server does not tell its own times: no prefill, decode or acceptance; is it llama-server?"
    if overall.unusable:
        kinds = ", ".join(f"{count} {kind}" for kind, count in odd.items())
        yield f"{counted(overall.unusable, 'request')} left out of the speeds for figures that cannot be ({kinds})"


def _load(live: LiveReport) -> Iterable[str]:
    options, slots = live.options, live.engine.slots
    if options.rate is None:
        if slots is not None and options.concurrency > slots:
            yield f"{options.concurrency} requests at a time on {slots} slots: some waited in the server's queue"
        return
    lags = [bench_sample.latency_s for bench_sample in live.run.answered if bench_sample.latency_s is not None]
    ended = [bench_sample.done_s for bench_sample in live.run.answered if bench_sample.done_s is not None]
    begun = [sample.intended_s for sample in live.run.samples]
    if len(lags) > 1 and max(begun) > min(begun):
        served = (len(ended) - 1) / (max(ended) - min(ended)) if max(ended) > min(ended) else 0.0
        words = f"offered {options.rate:g} requests a second, {served:.3g} a second were answered"
        if served < options.rate * (1 - _LAG):
            words += ": the server cannot keep up, so latencies grow with the length of the measurement"
        yield words


def _learnt(overall: Figures) -> str | None:
    """n-gram drafts know in the second run the text of the first; it shows in how much they draft, above all."""
    known = [value for value in overall.from_drafts_by_run if value is not None]
    if len(known) < 2:
        return None
    later = sum(known[1:]) / len(known[1:])
    if later - known[0] < _LEARNT:
        return None
    return (
        f"{percent(known[0], 1)} of the tokens came from drafts in the first run and {percent(later, 1)} later: "
        "the drafter has learnt the prompts, so these speeds are too good for new text; --runs 1 on a fresh server "
        "shows that"
    )


def _busy(live: LiveReport) -> Iterable[str]:
    states = live.machine.states
    for gpu in states[0].gpus if states else ():
        if gpu.utilisation is not None and gpu.utilisation > _BUSY_GPU:
            busy = percent(gpu.utilisation)
            yield f"GPU {gpu.index} was busy already: {busy}; other work is in these figures"
    limits = live.machine.as_json()["during"]["clock_limits"]
    if limits:
        yield f"the GPU's clocks were limited meanwhile: {', '.join(limits)}"
    load, cores = (states[0].cpu_load_1m if states else None), os.cpu_count()
    if load is not None and cores and load > cores:
        yield (
            f"this machine was busy already: load {load:.1f} on {cores} cores; where the server is here and uses the "
            "CPU, its speeds are those of a busy machine"
        )


def report(live: LiveReport) -> BenchReport:
    """All files of the report, and what the terminal shows. No text of prompts or answers."""
    run = live.run
    document = {
        "schema": SCHEMA,
        "specdash": __version__,
        "started_at": datetime.fromtimestamp(run.started_at, UTC).isoformat(timespec="seconds"),
        "duration_s": round(run.duration_s, 3),
        "complete": run.complete,
        "interrupted": live.interrupted,
        "engine": {**json_of(live.engine), "words": live.engine_words, "settings": dict(live.settings)},
        "options": json_of(live.options),
        "machine": live.machine.as_json(),
        "workload": {
            "source": live.source,
            "classes": dict(Counter(prompt.kind for prompt in live.prompts)),
            "prompts": [prompt.id for prompt in live.prompts],
        },
        "planned": run.planned,
        "warm_up": sample_json(run.warm_up, run.warm_up.sent_s) if run.warm_up is not None else None,
        "figures": {name: group.as_json() for name, group in live.groups.items()} if run.answered else {},
        "by_prompt": _by_prompt(run.samples),
        "throughput_tokens_per_s": live.throughput,
        "draft_s": run.draft_s,
        "faults": faults(run.samples),
        "flags": flags(run.samples),
        "notes": notes(live),
    }
    lines = [*about(live), ""]
    parts = ["\n".join(f"{line}  " for line in about(live))]
    if run.answered:
        lines += [*text_table(table(live)), ""]
        if live.throughput is not None and not live.options.alone:
            lines.append(f"all requests together: {significant(live.throughput, 4)} tokens/s")
        parts += [markdown_table(table(live))]
        parts.append(section("Both ways to average", _both_ways(live)))
    parts += [section("What to know", notes(live)), section("Machine", _machine(live))]
    return BenchReport(document, [*lines, *bullets(notes(live))], page("bench live", *parts))


def _by_prompt(samples: Sequence[BenchSample]) -> list[dict[str, Any]]:
    groups: dict[str, list[BenchSample]] = {}
    for sample in samples:
        groups.setdefault(sample.prompt, []).append(sample)
    found = []
    for name, asked in sorted(groups.items()):
        answered = [sample for sample in asked if not sample.failed]
        decoded = [parts for sample in usable(asked) if (parts := decode_parts(sample)) is not None]
        drafts = [parts for sample in answered if (parts := acceptance_parts(sample)) is not None]
        found.append(
            {
                "id": name,
                "kind": asked[0].kind,
                "requests": len(asked),
                "failed": len(asked) - len(answered),
                "decode_tokens_per_s": stats.ratio(decoded),
                "ttft_s": stats.median(sample.ttft_s for sample in answered),
                "acceptance": stats.ratio(drafts),
                "tokens": sum(sample.predicted_tokens or 0 for sample in answered),
                "accepted": sum(sample.accepted or 0 for sample in answered),
                "drafted": sum(sample.drafted or 0 for sample in answered),
            }
        )
    return found


LATENCY = "latency p50 / p95"


def about(live: LiveReport) -> list[str]:
    engine, options = live.engine, live.options
    spoken = engine.speculative
    speculation = {True: ", ".join(engine.speculative_types or ()) or "on", False: "off", None: "unknown"}[spoken]
    load = (
        f"{options.concurrency} at a time"
        if options.rate is None
        else f"{options.rate:g} a second, {'evenly' if options.constant else 'Poisson'}"
    )
    length = f"{'exactly' if options.force_length else 'at most'} {options.max_tokens} tokens"
    named = live.engine_words or (f"build {engine.build}" if engine.build else "build unknown")
    asked = f"{len(live.prompts)} prompts ({live.source}) × {options.runs} runs, {load}, {length}"
    return [
        f"{engine.url}: {engine.model or 'model unknown'}, {named}, speculation {speculation}",
        f"{asked}, temperature {options.temperature:g}, seed {options.seed}",
        f"{timestamp(live.run.started_at, utc=True)}, {duration(live.run.duration_s)}"
        + (", stopped" if live.interrupted else ""),
    ]


def table(live: LiveReport) -> list[list[str]]:
    """Headings, then a row a class. Latencies only where requests are not simply one after the other."""
    columns = [_cells(name, figures) for name, figures in live.groups.items()]
    heads = [name for name in columns[0] if name != LATENCY or not live.options.alone]
    return [heads, *([cells[name] for name in heads] for cells in columns)]


def _cells(name: str, figures: Figures) -> dict[str, str]:
    runs = spread(figures.by_run)
    over = UNKNOWN
    if runs is not None and runs.standard_deviation is not None:
        digits = 0 if runs.standard_deviation >= 10 else 1 if runs.standard_deviation >= 1 else 2
        over = f"{runs.mean:.{digits}f} ± {runs.standard_deviation:.{digits}f}"
    failed = f" ({figures.failed} failed)" if figures.failed else ""
    return {
        "class": name,
        "requests": f"{figures.requests}{failed}",
        "decode tok/s [95 %]": rate(figures.decode),
        "runs mean ± sd": over,
        "prefill tok/s": significant(value_of(figures.prefill), 4),
        "TTFT p50 / p95": f"{seconds(figures.ttft_tail[0])} / {seconds(figures.ttft_tail[1])}",
        LATENCY: f"{seconds(figures.latency_tail[0])} / {seconds(figures.latency_tail[1])}",
        "acceptance [95 %]": _accepted(figures.acceptance),
        "mean len": number(figures.mean_accepted_length, 2),
    }


def rate(figure: Figure | None) -> str:
    if figure is None:
        return UNKNOWN
    if figure.low is None or figure.high is None:
        return significant(figure.value, 4)
    return f"{significant(figure.value, 4)} [{significant(figure.low, 4)}, {significant(figure.high, 4)}]"


def _accepted(figure: Figure | None) -> str:
    if figure is None or figure.low is None or figure.high is None:
        return percent(value_of(figure), 1)
    return f"{percent(figure.value, 1)} [{percent(figure.low, 1, '')}, {percent(figure.high, 1, '')}]"


def _both_ways(live: LiveReport) -> str:
    """Beside llama.cpp's speed-bench, which takes the mean of the requests' rates."""
    heads = ("class", "decode, Σ tokens / Σ time", "decode, mean of requests", "accepted / drafted", "acceptance",
             "acceptance, mean of requests")  # fmt: skip
    rows = [
        [
            name,
            number(value_of(figures.decode), 2),
            number(figures.decode_mean, 2),
            f"{figures.accepted} / {figures.drafted}",
            percent(value_of(figures.acceptance), 2),
            percent(figures.acceptance_mean, 2),
        ]
        for name, figures in live.groups.items()
    ]
    return markdown_table([heads, *rows])


def _machine(live: LiveReport) -> list[str]:
    machine = live.machine.as_json()
    lines = [f"CPU: {machine['cpu'] or 'unknown'}, {machine['cores']} cores"]
    states = live.machine.states
    if states:
        lines += [f"before: {_state(states[0])}", f"after: {_state(states[-1])}"]
        lines += [f"GPU: {states[0].gpu_absent}"] if states[0].gpu_absent else []
    limits = machine["during"].get("clock_limits")
    if limits:
        lines.append(f"clocks were limited: {', '.join(limits)}")
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
    return ", ".join(part for part in parts if part)

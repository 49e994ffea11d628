"""A running server measured on prompts, as a report: what was asked, of whom, in which state of the machine, and what
came of it. docs/bench-live.md says what each figure means."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from specdash import __version__
from specdash.bench.figures import Figures, by_class, faults, figures_of, flags, was_cached
from specdash.bench.plausible import NO_TIMINGS, SHORT
from specdash.bench.results import REPORT_JSON, REPORT_MD, sample_json
from specdash.bench.statistics import acceptance_parts, decode_parts, percentiles, ratio, usable
from specdash.export.rows_svg import Row, Rows, draw_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specdash.bench.contact import Engine
    from specdash.bench.drive import Run
    from specdash.bench.machine import MachineWatch
    from specdash.bench.results import Results
    from specdash.bench.samples import Prompt, Sample
    from specdash.bench.schedule import Options

SCHEMA = "specdash.bench.live/1"
ALL = "all"
_LEARNT = 0.05
"""A change of the share of tokens from drafts, from the first run to later ones, that is worth saying."""
_LAG = 0.1
_BUSY_GPU = 0.2
_MANY_KINDS = 1


@dataclass(frozen=True, slots=True)
class Live:
    """What is known once it is over."""

    run: Run
    engine: Engine
    options: Options
    prompts: tuple[Prompt, ...]
    machine: MachineWatch
    source: str
    """Where the prompts are from, in words."""
    interrupted: bool = False
    settings: tuple[tuple[str, str], ...] = ()
    """Speculation parameters of the server, where whoever started it wrote them down."""
    engine_words: str | None = None
    classes: dict[str, Figures] = field(init=False)
    overall: Figures = field(init=False)

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


def notes(live: Live) -> list[str]:
    """What must be known to read the figures, one sentence each."""
    found = [cache_words(live), *_trouble(live), *live.run.notes]
    found += [*_load(live), *_busy(live)]
    learnt = _learnt(live.overall)
    if learnt is not None:
        found.append(learnt)
    if live.run.draft_s is not None and live.run.draft_s > 0:
        decode = sum(one.predicted_ms or 0.0 for one in live.run.answered) / 1000.0
        if decode > 0:
            found.append(f"drafting took {live.run.draft_s:.2f} s, {live.run.draft_s / decode:.0%} of the decode time")
    return found


def cache_words(live: Live) -> str:
    """Whether a cache was used, as it was seen and not only as it was asked for."""
    samples = live.run.answered
    if live.options.cache:
        share = live.overall.cached_tokens / live.overall.prompt_tokens if live.overall.prompt_tokens else 0.0
        return f"cache on: {share:.0%} of all prompt tokens came from the server's cache"
    used = was_cached(samples)
    if used:
        return f"cache off was asked for, but {_count(used, 'request')} used one; their speeds are left out"
    return "cache off: every request began differently and asked for no cache, and no prompt token was cached"


def _trouble(live: Live) -> Iterable[str]:
    run, overall = live.run, live.overall
    if not run.complete:
        yield f"{len(run.samples)} of {run.planned} requests were made"
    if overall.failed:
        kinds = ", ".join(f"{count} {kind}" for kind, count in faults(run.samples).items())
        example = next(one.error for one in run.samples if one.failed)
        yield f"{_count(overall.failed, 'request')} failed ({kinds}): {example}"
    odd = flags(run.samples)
    if overall.empty:
        yield f"{_count(overall.empty, 'answer')} came back empty"
    if odd.pop(SHORT, 0):
        yield (
            f"{_count(overall.short, 'answer')} ended before a quarter of the length asked for; --force-length goes on "
            "past the end of the text"
        )
    if odd.pop(NO_TIMINGS, 0):
        yield "the server does not tell its own times: no prefill, decode or acceptance; is it llama-server?"
    if overall.unusable:
        kinds = ", ".join(f"{count} {kind}" for kind, count in odd.items())
        yield f"{_count(overall.unusable, 'request')} left out of the speeds for figures that cannot be ({kinds})"


def _load(live: Live) -> Iterable[str]:
    options, slots = live.options, live.engine.slots
    if options.rate is None:
        if slots is not None and options.concurrency > slots:
            yield f"{options.concurrency} requests at a time on {slots} slots: some waited in the server's queue"
        return
    lags = [one.latency_s for one in live.run.answered if one.latency_s is not None]
    ended = [one.done_s for one in live.run.answered if one.done_s is not None]
    begun = [one.intended_s for one in live.run.samples]
    if len(lags) > 1 and max(begun) > min(begun):
        served = (len(ended) - 1) / (max(ended) - min(ended)) if max(ended) > min(ended) else 0.0
        words = f"offered {options.rate:g} requests a second, {served:.3g} a second were answered"
        if served < options.rate * (1 - _LAG):
            words += ": the server cannot keep up, so latencies grow with the length of the measurement"
        yield words


def _learnt(overall: Figures) -> str | None:
    """n-gram drafts know in the second run what was said in the first; it shows in how much they draft, above all."""
    known = [one for one in overall.from_drafts_by_run if one is not None]
    if len(known) < 2:
        return None
    later = sum(known[1:]) / len(known[1:])
    if later - known[0] < _LEARNT:
        return None
    return (
        f"{known[0]:.1%} of the tokens came from drafts in the first run and {later:.1%} later: the drafter has learnt "
        "the prompts, so these speeds are too good for new text; --runs 1 on a fresh server shows that"
    )


def _busy(live: Live) -> Iterable[str]:
    states = live.machine.states
    for gpu in states[0].gpus if states else ():
        if gpu.utilisation is not None and gpu.utilisation > _BUSY_GPU:
            yield f"GPU {gpu.index} was busy already: {gpu.utilisation:.0%}; somebody else's work is in these figures"
    limits = live.machine.as_json()["during"]["clock_limits"]
    if limits:
        yield f"the GPU's clocks were limited meanwhile: {', '.join(limits)}"
    load, cores = (states[0].cpu_load_1m if states else None), os.cpu_count()
    if load is not None and cores and load > cores:
        yield (
            f"this machine was busy already: load {load:.1f} on {cores} cores; where the server is here and uses the "
            "CPU, its speeds are those of a busy machine"
        )


def _count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def as_json(live: Live) -> dict[str, Any]:
    """report.json. No text of prompts or answers."""
    run = live.run
    return {
        "schema": SCHEMA,
        "specdash": __version__,
        "started_at": datetime.fromtimestamp(run.started_at, UTC).isoformat(timespec="seconds"),
        "duration_s": round(run.duration_s, 3),
        "complete": run.complete,
        "interrupted": live.interrupted,
        "engine": {**asdict(live.engine), "words": live.engine_words, "settings": dict(live.settings)},
        "options": asdict(live.options),
        "machine": live.machine.as_json(),
        "workload": {
            "source": live.source,
            "classes": dict(Counter(one.kind for one in live.prompts)),
            "prompts": [one.id for one in live.prompts],
        },
        "planned": run.planned,
        "warm_up": sample_json(run.warm_up, run.warm_up.sent_s) if run.warm_up is not None else None,
        "figures": {name: one.as_json() for name, one in live.groups.items()} if run.answered else {},
        "by_prompt": _by_prompt(run.samples),
        "throughput_tokens_per_s": live.throughput,
        "draft_s": run.draft_s,
        "faults": faults(run.samples),
        "flags": flags(run.samples),
        "notes": notes(live),
    }


def _by_prompt(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    groups: dict[str, list[Sample]] = {}
    for one in samples:
        groups.setdefault(one.prompt, []).append(one)
    found = []
    for name, asked in sorted(groups.items()):
        answered, good = [one for one in asked if not one.failed], usable(asked)
        found.append(
            {
                "id": name,
                "kind": asked[0].kind,
                "requests": len(asked),
                "failed": len(asked) - len(answered),
                "decode_tokens_per_s": ratio(told for one in good if (told := decode_parts(one)) is not None),
                "ttft_s": percentiles([one.ttft_s for one in answered if one.ttft_s is not None], (0.5,))[0],
                "acceptance": ratio(told for one in answered if (told := acceptance_parts(one)) is not None),
                "tokens": sum(one.predicted_tokens or 0 for one in answered),
                "accepted": sum(one.accepted or 0 for one in answered),
                "drafted": sum(one.drafted or 0 for one in answered),
            }
        )
    return found


def save(live: Live, results: Results, markdown: str) -> None:
    """Reports and plots into the folder; what cannot be written is its trouble."""
    results.write_json(REPORT_JSON, as_json(live))
    results.write(REPORT_MD, markdown)
    if live.run.answered:
        for name, svg in plots(live).items():
            results.write(name, svg)


def plots(live: Live) -> dict[str, str]:
    """The charts by their file names."""
    groups = live.groups.items()
    samples = live.run.answered

    def of(kind: str) -> list[Sample]:
        return [one for one in samples if kind in (ALL, one.kind)]

    def row(name: str, figure: Any, ticks: Iterable[float | None]) -> Row:
        known = tuple(one for one in ticks if one is not None)
        return (
            Row(name, None, ticks=known) if figure is None else Row(name, figure.value, figure.low, figure.high, known)
        )

    decode = tuple(row(name, one.decode, (s.decode_rate for s in of(name))) for name, one in groups)
    ttft = tuple(row(name, one.ttft, (s.ttft_s for s in of(name))) for name, one in groups)
    accepted = tuple(
        row(name, one.acceptance, ((s.accepted or 0) / s.drafted for s in of(name) if s.drafted))
        for name, one in groups
    )
    charts = {
        "decode.svg": Rows("Decode speed of each class, and of single requests", "tokens/s", decode),
        "ttft.svg": Rows("Time to the first token, from when the request was due", "seconds", ttft),
    }
    if any(one.value is not None for one in accepted):
        charts["acceptance.svg"] = Rows("Accepted draft tokens", "%", accepted)
    return {name: draw_rows(chart) for name, chart in charts.items()}

"""From options and the settings in force to all that a run needs, before anything is touched: points, prompts, limits
and the downtime."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from specdash.bench.load.samples import MeasureOptions, WorkloadPrompt
from specdash.bench.load.workloads import bundled, read_prompts
from specdash.core.changes import ApplyOutcome
from specdash.core.errors import InputError, UsageError
from specdash.core.paths import applies_file
from specdash.system.stats import median
from specdash.tune.model.problem import Budget, Task, points_of, workload_of
from specdash.tune.run import knobs
from specdash.tune.run.measuring import Limits
from specdash.tune.run.status import Knob, RunPlan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.backend.settings import BackendSettings
    from specdash.tune.model.problem import Point, WorkloadShares


# What is asked in every boot of a run: bundled prompts, a file's, or an agent's session.

T = TypeVar("T")
MOST_PROMPTS = 24


class BootPrompts(Struct, frozen=True):
    """What is asked in every boot, and where it comes from."""

    prompts: tuple[WorkloadPrompt, ...]
    workload: WorkloadShares
    words: str
    notes: tuple[str, ...] = ()


def asked_of(options: TuneOptions, room: int | None) -> BootPrompts:
    """What the options say; `room` is how many tokens a slot's context holds. Raises `UsageError` and `InputError`."""
    if options.prompts is not None and options.transcript is not None:
        raise UsageError("--prompts and --transcript each say what is asked; give one of them")
    if options.transcript is not None:
        return _from_transcript(options.transcript, options.tokens, room)
    shares, notes = None, []
    if options.prompts is None:
        chosen = bundled(each=options.each)
        words = f"bundled prompts, all classes alike, answers of up to {options.tokens} tokens"
    else:
        found, words = read_prompts(options.prompts), options.prompts
        own = {kind: [prompt for prompt in found if prompt.kind == kind] for kind in (prompt.kind for prompt in found)}
        shares = {kind: float(len(prompts)) for kind, prompts in own.items()}
        chosen = tuple(prompt for prompts in own.values() for prompt in _spread(prompts, options.each))
        if len(chosen) < len(found):
            notes.append(f"{len(chosen)} of {len(found)} prompts, {options.each} of a class")
    return BootPrompts(chosen, workload_of((prompt.kind for prompt in chosen), shares), words, tuple(notes))


def _spread(items: Sequence[T], most: int) -> list[T]:
    """At most so many, evenly spread."""
    return list(items) if len(items) <= most else [items[number * len(items) // most] for number in range(most)]


def _from_transcript(path: str, tokens: int, room: int | None) -> BootPrompts:
    from specdash.bench.replay.transcript import read_transcript

    file = Path(path).expanduser()
    try:
        with file.open("rb") as stream:
            session = read_transcript(stream, path, skip_broken=True)
    except OSError as error:
        raise InputError(f"--transcript {path}: {error.strerror or error}") from None
    calls = [call for call in session.calls if room is None or call.chars / CHARACTERS_A_TOKEN + tokens < room]
    if not calls:
        raise InputError(f"--transcript {path}: no call fits into a slot's context of {room} tokens")
    prompts = tuple(
        WorkloadPrompt(f"call-{call.number}", "agentic", tuple(call.messages()), session.tools_of(call))
        for call in _spread(calls, MOST_PROMPTS)
    )
    left = len(session.calls) - len(calls)
    notes = (f"{left} calls that do not fit into a slot's context are left out",) if left else ()
    words = f"{file.name}, {len(prompts)} of {len(session.calls)} calls"
    return BootPrompts(prompts, workload_of(["agentic"]), words, notes)


CHARACTERS_A_TOKEN = 3
"""Of a prompt, on the safe side: most have more."""
_APPLIES = 20


def down_seconds(env: Mapping[str, str] = os.environ) -> float | None:
    """How long the service is away in a restart, as in earlier applies; None before the first."""
    from specdash.backend.journal import read_records

    records = read_records(applies_file(env))[-_APPLIES:]
    return median(record.downtime_s for record in records if record.outcome is ApplyOutcome.APPLIED)


class TuneOptions(Struct, frozen=True):
    """As the command line has them."""

    beside: bool = False
    env_file: str | None = None
    engine: str | None = None
    force: bool = False
    restarts: int = 12
    minutes: float | None = None
    least_gain: float = 0.02
    allow_types: str | None = None
    prompts: str | None = None
    transcript: str | None = None
    each: int = 6
    tokens: int = 256
    seed: int = 1
    ttft: float = 0.05
    free_mib: int = 256
    busy_ok: bool = False


class PreparedRun(Struct, frozen=True):
    """A run that can begin."""

    task: Task
    plan: RunPlan
    prompts: tuple[WorkloadPrompt, ...]
    measure: MeasureOptions
    limits: Limits


def prepare(
    options: TuneOptions, values: Mapping[str, str], service: str, url: str = "", env: Mapping[str, str] = os.environ
) -> PreparedRun:
    """`values` are the settings in force, `url` is where they are served now, if they are.

    Raises `SpecdashError` for what cannot be tuned, with the way out.
    """
    from specdash.backend.auto import look

    settings = knobs.settings_in_force(values, env)
    files = settings.model, settings.draft_model
    model, draft = (look(file) if file is not None else None for file in files)
    start = knobs.point_of(settings)
    chains = knobs.allowed_chains(options.allow_types, start, knobs.choices(settings, model, draft))
    points = points_of(chains, start, draft.number("block_size") if draft is not None else None)
    asked = asked_of(options, _room(settings))
    task = Task(points, start, asked.workload, Budget(options.restarts, options.minutes), options.least_gain)
    limits = Limits(ttft=options.ttft, free_mib=options.free_mib)
    away_s = 0.0 if options.beside else down_seconds(env)
    plan = RunPlan(
        service=service,
        url=url,
        start=start,
        knobs=tuple(_knobs(points, values)),
        points=len(points),
        budget=task.budget,
        least_gain=options.least_gain,
        limits=limits.words,
        workload=asked.workload,
        workload_words=asked.words,
        prompts=len(asked.prompts),
        downtime_s=None if away_s is None else (options.restarts + 1) * away_s,
        notes=asked.notes,
    )
    measure = MeasureOptions(runs=1, max_tokens=options.tokens, seed=options.seed)
    return PreparedRun(task, plan, asked.prompts, measure, limits)


def _room(settings: BackendSettings) -> int | None:
    """Tokens of a slot's context, where the settings say."""
    context, slots = int(settings.value("ctx-size") or 0), int(settings.value("parallel") or 1)
    return context // max(1, slots) if context > 0 else None


def _knobs(points: Sequence[Point], values: Mapping[str, str]) -> list[Knob]:
    """What is turned, with all values of each."""
    found: dict[str, list[str]] = {}
    for point in points:
        for name, text in knobs.spelled(point).items():
            texts = found.setdefault(name, [])
            if text not in texts:
                texts.append(text)
    return [Knob(key, ", ".join(texts), values.get(key)) for key, texts in found.items()]

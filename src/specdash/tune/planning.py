"""From options and the settings in force to all that a run needs, before anything is touched.

Points, prompts, limits, a forecast of time and downtime, and the fingerprint by which a run that was cut short knows
whether it may go on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from specdash import __version__
from specdash.bench.schedule import Options as MeasureOptions
from specdash.core.errors import InputError, UsageError
from specdash.tune import knobs
from specdash.tune.asked import BUNDLED, asked_of
from specdash.tune.fitting import fitting
from specdash.tune.forecast import before, busy_share, total_s
from specdash.tune.gear import REPEATS
from specdash.tune.limits import Limits
from specdash.tune.objective import Objective
from specdash.tune.pace import down_seconds, known_pace, load_seconds, others_load, start_seconds
from specdash.tune.problem import Budget, Task
from specdash.tune.run_setup import fingerprint
from specdash.tune.space import points_of
from specdash.tune.status import Knob, RunPlan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.backend.settings import BackendSettings
    from specdash.bench.samples import Place, Prompt
    from specdash.collect.gpu_looks import GpuLook, GpuLooks
    from specdash.llama.gguf import GgufFacts
    from specdash.tune.asked import Asked
    from specdash.tune.forecast import Pace
    from specdash.tune.problem import Point
    from specdash.tune.run_setup import Fingerprint
    from specdash.tune.status import Forecast

_CHECK_BOOTS = 3
"""Boots that comparing the texts takes, mostly."""


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """As the command line has them; JSON takes them as they are."""

    beside: bool = False
    env_file: str | None = None
    engine: str | None = None
    force: bool = False
    restarts: int = 12
    minutes: float | None = None
    least_gain: float = 0.02
    allow_types: str | None = None
    objective: str = str(Objective.DECODE)
    workload: str = BUNDLED
    prompts: str | None = None
    transcript: str | None = None
    each: int = 6
    tokens: int = 256
    seed: int = 1
    ttft: float = 0.05
    free_mib: int = 256
    allow_warnings: bool = False
    while_serving: bool = False
    busy_ok: bool = False
    check_texts: bool = True


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that can begin."""

    options: TuneOptions
    task: Task
    plan: RunPlan
    prompts: tuple[Prompt, ...]
    measure: MeasureOptions
    objective: Objective
    limits: Limits
    fingerprint: Fingerprint
    synthetic: bool
    """Acceptance is drawn, so that texts mean nothing."""


@dataclass(frozen=True, slots=True)
class _Cost:
    """What a run takes, in seconds; None where that is not known before the first boot."""

    forecast: Forecast | None
    eta_s: float | None
    downtime_s: float
    notes: tuple[str, ...]


def prepare(
    options: TuneOptions,
    values: Mapping[str, str],
    service: str,
    place: Place | None,
    gpus: GpuLooks | None = None,
    env: Mapping[str, str] = os.environ,
) -> Prepared:
    """`values` are the settings in force, `place` where they are served now, if they are.

    Raises `SpecdashError` for what cannot be tuned, with the way out.
    """
    cards = gpus.look() if gpus is not None else None
    objective = _objective(options, cards)
    settings = knobs.settings_in_force(values, env)
    start, points = _space(options, settings)
    measure = MeasureOptions(runs=1, max_tokens=options.tokens, seed=options.seed)
    room = _room(settings)
    asked = asked_of(options, place, room, env)
    prompts, left_out = fitting(asked.prompts, measure, place, room)
    asked = replace(asked, prompts=prompts, notes=(*asked.notes, *left_out))
    workload = objective.workload(asked.workload)
    task = Task(points, start, workload, Budget(options.restarts, options.minutes), options.least_gain)
    limits = Limits(ttft=options.ttft, free_mib=options.free_mib, warnings=not options.allow_warnings)
    files = {"model": settings.model, "draft model": settings.draft_model}
    about = fingerprint(
        values,
        engine=_engine_words(settings, options.engine, env),
        gpus=cards.words if cards is not None else (),
        prompts=asked.prompts,
        files=files,
        more={"service": service, "specdash": __version__, "points": len(points), "options": options.objective},
    )
    synthetic = any(name.startswith("spec-synth-") for name in settings.parameters)
    cost = _cost(options, asked, files, about, place, env, synthetic=synthetic)
    plan = RunPlan(
        service=service,
        url=place.url if place is not None else "",
        start=start,
        knobs=tuple(_knobs(points, values)),
        points=len(points),
        budget=task.budget,
        least_gain=options.least_gain,
        objective=objective.words,
        limits=limits.words,
        workload=workload,
        workload_words=asked.words,
        prompts=len(asked.prompts),
        eta_s=cost.eta_s,
        forecast=cost.forecast,
        downtime_s=cost.downtime_s,
        notes=(*asked.notes, *cost.notes),
    )
    return Prepared(options, task, plan, asked.prompts, measure, objective, limits, about, synthetic)


def _objective(options: TuneOptions, cards: GpuLook | None) -> Objective:
    objective = Objective(options.objective)
    if objective is Objective.PER_WATT and (cards is None or cards.energy_joules is None):
        raise UsageError(
            "--objective per-watt: no GPU here whose driver tells its energy (NVML); use decode or latency-p95"
        )
    return objective


def _space(options: TuneOptions, settings: BackendSettings) -> tuple[Point, tuple[Point, ...]]:
    """The settings in force as a point, and all points to choose from."""
    model, draft = _facts(settings)
    start = knobs.point_of(settings)
    chains = knobs.allowed_chains(options.allow_types, start, knobs.choices(settings, model, draft))
    return start, points_of(chains, start, draft.number("block_size") if draft is not None else None)


def _cost(
    options: TuneOptions,
    asked: Asked,
    files: Mapping[str, str | None],
    about: Fingerprint,
    place: Place | None,
    env: Mapping[str, str],
    *,
    synthetic: bool,
) -> _Cost:
    away_s = load_seconds(files.values()) if options.beside else down_seconds(files.values(), env)
    start_s = away_s if options.beside else start_seconds(files.values(), env)
    pace = known_pace(about, start_s, place, env, tokens=options.tokens)
    forecast, notes = _forecast(options, asked.prompts, pace, synthetic)
    if options.minutes is not None and (away_s if forecast is None else forecast.boot_s) > 60 * options.minutes:
        raise UsageError(f"--minutes {options.minutes:g}: one boot and its measurement take longer; allow more")
    boots = options.restarts + (_CHECK_BOOTS if options.check_texts else 0)
    return _Cost(
        forecast=forecast,
        eta_s=None if forecast is None else _within(total_s(forecast, options.restarts), options.minutes),
        downtime_s=0.0 if options.beside else (boots + 1) * away_s,
        notes=notes,
    )


def _within(seconds: float, minutes: float | None) -> float:
    return seconds if minutes is None else min(seconds, 60 * minutes)


def _facts(settings: BackendSettings) -> tuple[GgufFacts | None, GgufFacts | None]:
    from specdash.backend.model_files import look

    model = look(settings.model) if settings.model is not None else None
    return model, look(settings.draft_model) if settings.draft_model is not None else None


def _room(settings: BackendSettings) -> int | None:
    """Tokens of a slot's context, where the settings say."""
    context, slots = int(settings.value("ctx-size") or 0), int(settings.value("parallel") or 1)
    return context // max(1, slots) if context > 0 else None


def _knobs(points: Sequence[Point], values: Mapping[str, str]) -> list[Knob]:
    """What is turned, with all values of each."""
    found: dict[str, list[str]] = {}
    for point in points:
        for name, text in knobs.spelled(point).items():
            told = found.setdefault(name, [])
            if text not in told:
                told.append(text)
    return [Knob(key, ", ".join(told), values.get(key)) for key, told in found.items()]


def _forecast(
    options: TuneOptions, prompts: Sequence[Prompt], pace: Pace | None, synthetic: bool
) -> tuple[Forecast | None, tuple[str, ...]]:
    """How long it takes, and what is to be said of that."""
    if pace is None:
        return None, ("how long it takes is known after the first boot: the engine served nothing yet",)
    tokens = sum(min(one.max_tokens or options.tokens, options.tokens) for one in prompts)
    characters = sum(len(str(message.get("content") or "")) for one in prompts for message in one.messages)
    load = None if options.busy_ok or options.while_serving else others_load()
    checks = options.check_texts and not synthetic
    found = before(pace, len(prompts), tokens, characters / 4, load=load, repeats=REPEATS, checks=checks)
    if options.beside:
        found = replace(found, restore_s=0.0)
    if options.while_serving:
        return found, ("it takes longer than that by as much as users leave no room",)
    if load is not None and busy_share(load):
        said = f"other programs use this machine (load {load:.1f}) and are waited for: it may take much longer, or less"
        return found, (said,)
    return found, ()


def _engine_words(settings: BackendSettings, engine: str | None, env: Mapping[str, str]) -> str:
    from specdash.backend.engines import find_engine

    wanted = settings if engine is None else settings.model_copy(update={"engine": engine})
    return find_engine(wanted, env).words


def options_of(told: Mapping[str, Any]) -> TuneOptions:
    """Those of an earlier run. Raises `InputError` where another version wrote them."""
    try:
        return TuneOptions(**told)
    except TypeError:
        raise InputError("the run was begun by another version of specdash; begin anew") from None

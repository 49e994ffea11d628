"""From options and the settings in force to all that a run needs, before anything is touched.

Points, prompts, limits, the downtime, and the fingerprint by which a run that was cut short knows whether it may go on.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from specdash import __version__
from specdash.bench.compare.machine import digest, file_words
from specdash.bench.load.samples import Job, MeasureOptions, body_of, length
from specdash.bench.load.workloads import bundled, read_prompts
from specdash.bench.verify_run import VerifyServer
from specdash.core.changes import ApplyOutcome
from specdash.core.errors import InputError, SpecdashError, UsageError
from specdash.core.paths import applies_file
from specdash.core.structs import json_of
from specdash.system.stats import median
from specdash.tune.model.problem import Budget, Task, points_of, workload_of
from specdash.tune.run import knobs
from specdash.tune.run.measuring import Limits
from specdash.tune.run.status import Knob, RunPlan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specdash.backend.settings import BackendSettings
    from specdash.bench.load.samples import EngineAddress, WorkloadPrompt
    from specdash.collect.gpu import GpuLooks
    from specdash.core.changes import ApplyRecord
    from specdash.tune.model.problem import Point, WorkloadShares
    from specdash.tune.run.status import Fingerprint


# What is asked in every boot of a run: bundled prompts, a file's, or an agent's session.

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
    if options.prompts is not None:
        found = read_prompts(options.prompts)
        chosen = _thinned(found, options.each)
        shares = {
            kind: float(sum(prompt.kind == kind for prompt in found)) for kind in {prompt.kind for prompt in found}
        }
        notes = (
            (f"{len(chosen)} of {len(found)} prompts, {options.each} of a class",) if len(chosen) < len(found) else ()
        )
        return BootPrompts(chosen, workload_of([prompt.kind for prompt in chosen], shares), options.prompts, notes)
    if options.transcript is not None:
        return _from_transcript(options.transcript, options.tokens, room)
    chosen = bundled(each=options.each)
    return BootPrompts(chosen, workload_of([prompt.kind for prompt in chosen]), "bundled prompts, all classes alike")


def _thinned(prompts: Sequence[WorkloadPrompt], each: int) -> tuple[WorkloadPrompt, ...]:
    """At most `each` of a class, evenly spread."""
    found: list[WorkloadPrompt] = []
    for kind in dict.fromkeys(prompt.kind for prompt in prompts):
        own = [prompt for prompt in prompts if prompt.kind == kind]
        found += own if len(own) <= each else [own[number * len(own) // each] for number in range(each)]
    return tuple(found)


def _from_transcript(path: str, tokens: int, room: int | None) -> BootPrompts:
    from specdash.bench.load.samples import WorkloadPrompt
    from specdash.bench.replay.transcript import read_transcript

    file = Path(path).expanduser()
    try:
        with file.open("rb") as stream:
            session = read_transcript(stream, path, skip_broken=True)
    except OSError as error:
        raise InputError(f"--transcript {path}: {error.strerror or error}") from None
    fitting = [call for call in session.calls if room is None or call.chars / 3 + tokens < room]
    if not fitting:
        raise InputError(f"--transcript {path}: no call fits into a slot's context of {room} tokens")
    count = min(MOST_PROMPTS, len(fitting))
    chosen = [fitting[number * len(fitting) // count] for number in range(count)]
    prompts = tuple(
        WorkloadPrompt(f"call-{call.number}", "agentic", tuple(call.messages()), session.tools_of(call))
        for call in chosen
    )
    left = len(session.calls) - len(fitting)
    notes = (f"{left} calls that do not fit into a slot's context are left out",) if left else ()
    return BootPrompts(prompts, workload_of(["agentic"]), f"{file.name}, {count} of {len(session.calls)} calls", notes)


# Which prompts fit into a slot, answer and all: known before anything is restarted.
#
# A server that runs counts the tokens itself, with its chat template and tokenizer; else they are estimated from the
# characters, on the safe side.

CHARACTERS_A_TOKEN = 3
"""Of a prompt that no one can count: most have more."""
_MOST_NAMED = 3


class _Length(Struct, frozen=True):
    prompt: WorkloadPrompt
    tokens: int
    answer: int

    @property
    def words(self) -> str:
        return f"{self.prompt.id} ({self.tokens} tokens and {self.answer} of answer)"


def fitting(
    prompts: Sequence[WorkloadPrompt], options: MeasureOptions, place: EngineAddress | None, room: int | None
) -> tuple[tuple[WorkloadPrompt, ...], tuple[str, ...]]:
    """The prompts that fit, and a note on the others. `place` is where the settings in force are served,
    if they are; `room` the tokens of a slot by the settings, if they tell.

    Raises `UsageError` where no prompt of a class fits.
    """
    lengths, context = _counted(prompts, options, place)
    if lengths is None:
        lengths, context = _reckoned(prompts, options), room
    if context is None:
        return tuple(prompts), ()
    long = [item for item in lengths if item.tokens + item.answer > context]
    kept = tuple(item.prompt for item in lengths if item not in long)
    lost = {item.prompt.kind for item in long} - {prompt.kind for prompt in kept}
    if lost:
        shortest = min((item for item in long if item.prompt.kind in lost), key=lambda item: item.tokens + item.answer)
        raise UsageError(
            f"no prompt of class {' or '.join(sorted(lost))} fits into a slot of {context} tokens, the shortest is "
            f"{shortest.words}; ask for shorter answers with --tokens, for other prompts with --prompts, or give slots "
            "more context: a larger LLAMA_CTX_SIZE, or a smaller LLAMA_PARALLEL"
        )
    if not long:
        return kept, ()
    named = ", ".join(item.words for item in long[:_MOST_NAMED]) + (", …" if len(long) > _MOST_NAMED else "")
    return kept, (f"{len(long)} prompts are left out, as they do not fit into a slot of {context} tokens: {named}",)


def _counted(
    prompts: Sequence[WorkloadPrompt], options: MeasureOptions, place: EngineAddress | None
) -> tuple[list[_Length] | None, int | None]:
    if place is None:
        return None, None
    try:
        with VerifyServer(place.url, place.key) as server:
            found = []
            for prompt in prompts:
                body = body_of(Job(0, prompt, 0), options, place)
                tokens = len(server.tokenised(server.templated(body["messages"], prompt.tools)))
                found.append(_Length(prompt, tokens, length(prompt, options)))
            return found, server.slot_context
    except SpecdashError:
        # A server that does not count cannot be helped; its settings may tell enough.
        return None, None


def _reckoned(prompts: Sequence[WorkloadPrompt], options: MeasureOptions) -> list[_Length]:
    return [_Length(prompt, _characters(prompt) // CHARACTERS_A_TOKEN, length(prompt, options)) for prompt in prompts]


def _characters(prompt: WorkloadPrompt) -> int:
    contents = [message.get("content") for message in prompt.messages]
    texts = [
        part.get("text")
        for content in contents
        if isinstance(content, list)
        for part in content
        if isinstance(part, dict)
    ]
    return sum(len(content) for content in (*contents, *texts) if isinstance(content, str))


_APPLIES = 20
_BYTES_A_SECOND = 1e9
_START_S = 2.0


def down_seconds(files: Iterable[str | None], env: Mapping[str, str] = os.environ) -> float:
    """How long the service is away in a restart: as in earlier applies, else by the size of what is loaded."""
    known = median(record.downtime_s for record in _applied(env))
    return load_seconds(files) if known is None else known


def _applied(env: Mapping[str, str]) -> list[ApplyRecord]:
    from specdash.backend.journal import read_records

    records = read_records(applies_file(env))[-_APPLIES:]
    return [record for record in records if record.outcome is ApplyOutcome.APPLIED and record.downtime_s is not None]


def load_seconds(files: Iterable[str | None]) -> float:
    """By the size of what is loaded."""
    size = 0
    for path in files:
        if path is not None:
            with contextlib.suppress(OSError):
                size += Path(path).expanduser().stat().st_size
    return _START_S + size / _BYTES_A_SECOND


_CHECK_BOOTS = 3
"""Boots that comparing the texts takes, mostly."""


class TuneOptions(Struct, frozen=True):
    """As the command line has them; JSON takes them as they are."""

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
    allow_warnings: bool = False
    busy_ok: bool = False
    check_texts: bool = True


class PreparedRun(Struct, frozen=True):
    """A run that can begin."""

    options: TuneOptions
    task: Task
    plan: RunPlan
    prompts: tuple[WorkloadPrompt, ...]
    measure: MeasureOptions
    limits: Limits
    fingerprint: Fingerprint
    synthetic: bool
    """Acceptance is drawn, so that texts mean nothing."""


def prepare(
    options: TuneOptions,
    values: Mapping[str, str],
    service: str,
    place: EngineAddress | None,
    gpus: GpuLooks | None = None,
    env: Mapping[str, str] = os.environ,
) -> PreparedRun:
    """`values` are the settings in force, `place` where they are served now, if they are.

    Raises `SpecdashError` for what cannot be tuned, with the way out.
    """
    cards = gpus.look() if gpus is not None else None
    settings = knobs.settings_in_force(values, env)
    start, points = _space(options, settings)
    measure = MeasureOptions(runs=1, max_tokens=options.tokens, seed=options.seed)
    room = _room(settings)
    asked = asked_of(options, room)
    prompts, left_out = fitting(asked.prompts, measure, place, room)
    asked = replace(asked, prompts=prompts, notes=(*asked.notes, *left_out))
    task = Task(points, start, asked.workload, Budget(options.restarts, options.minutes), options.least_gain)
    limits = Limits(ttft=options.ttft, free_mib=options.free_mib, warnings=not options.allow_warnings)
    files = {"model": settings.model, "draft model": settings.draft_model}
    about = fingerprint(
        values,
        engine=_engine_words(settings, options.engine, env),
        gpus=cards.words if cards is not None else (),
        prompts=asked.prompts,
        files=files,
        more={"service": service, "specdash": __version__, "points": len(points)},
    )
    synthetic = any(name.startswith("spec-synth-") for name in settings.parameters)
    plan = RunPlan(
        service=service,
        url=place.url if place is not None else "",
        start=start,
        knobs=tuple(_knobs(points, values)),
        points=len(points),
        budget=task.budget,
        least_gain=options.least_gain,
        limits=limits.words,
        workload=asked.workload,
        workload_words=asked.words,
        prompts=len(asked.prompts),
        downtime_s=_downtime_s(options, files, env),
        notes=asked.notes,
    )
    return PreparedRun(options, task, plan, asked.prompts, measure, limits, about, synthetic)


def _space(options: TuneOptions, settings: BackendSettings) -> tuple[Point, tuple[Point, ...]]:
    """The settings in force as a point, and all points to choose from."""
    from specdash.backend.auto import look

    files = settings.model, settings.draft_model
    model, draft = (look(file) if file is not None else None for file in files)
    start = knobs.point_of(settings)
    chains = knobs.allowed_chains(options.allow_types, start, knobs.choices(settings, model, draft))
    return start, points_of(chains, start, draft.number("block_size") if draft is not None else None)


def _downtime_s(options: TuneOptions, files: Mapping[str, str | None], env: Mapping[str, str]) -> float:
    """For how long clients wait, in all. Raises `UsageError` where no boot fits into the minutes."""
    away_s = load_seconds(files.values()) if options.beside else down_seconds(files.values(), env)
    if options.minutes is not None and away_s > 60 * options.minutes:
        raise UsageError(f"--minutes {options.minutes:g}: one boot and its measurement take longer; allow more")
    boots = options.restarts + (_CHECK_BOOTS if options.check_texts else 0)
    return 0.0 if options.beside else (boots + 1) * away_s


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


def fingerprint(
    values: Mapping[str, str],
    *,
    engine: str,
    gpus: Sequence[str],
    prompts: Sequence[WorkloadPrompt],
    files: Mapping[str, str | None],
    more: Mapping[str, object],
) -> Fingerprint:
    """What results depend on: every setting (as digests), model files, engine, GPUs with their power limits, prompts,
    and `more`."""
    asked = json.dumps([json_of(prompt) for prompt in prompts], sort_keys=True, default=str)
    return {
        **{f"setting {key}": digest(value.encode()) for key, value in values.items()},
        **{name: file_words(path) for name, path in files.items() if path is not None},
        "engine": engine,
        "GPUs": "; ".join(gpus),
        "prompts": digest(asked.encode()),
        "cores": str(os.cpu_count() or 0),
        **{name: str(value) for name, value in more.items()},
    }


def _engine_words(settings: BackendSettings, engine: str | None, env: Mapping[str, str]) -> str:
    from specdash.backend.engines import find_engine

    wanted = settings if engine is None else replace(settings, engine=engine)
    return find_engine(wanted, env).words


def options_of(options: Mapping[str, Any]) -> TuneOptions:
    """Those of an earlier run. Raises `InputError` where another version wrote them."""
    try:
        return TuneOptions(**options)
    except TypeError:
        raise InputError("the run was begun by another version of specdash; start a new run") from None

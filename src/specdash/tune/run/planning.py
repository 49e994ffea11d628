"""From options and the settings in force to all that a run needs, before anything is touched.

Points, prompts, limits, a forecast of time and downtime, and the fingerprint by which a run that was cut short knows
whether it may go on.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections import defaultdict
from dataclasses import asdict, replace
from math import inf, log
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash import __version__
from specdash.bench.compare.machine import digest, file_words
from specdash.bench.load.contact import counters_told
from specdash.bench.load.drive import WARM_UP_TOKENS
from specdash.bench.load.samples import Job, MeasureOptions, body_of, length
from specdash.bench.load.workloads import CLASSES, bundled, read_prompts
from specdash.bench.verify_run import VerifyServer
from specdash.core.changes import ApplyOutcome
from specdash.core.errors import InputError, SpecdashError, UsageError
from specdash.core.paths import applies_file, history_file
from specdash.core.proxy_events import RequestEvent, from_json
from specdash.core.readings import Source
from specdash.insight.request import RequestPurpose, Samples
from specdash.system.data import dataclass
from specdash.system.stats import median, nearest_rank
from specdash.system.text import percent
from specdash.tune.model.problem import Budget, Objective, Task, points_of, workload_of
from specdash.tune.run import knobs
from specdash.tune.run.loop import REPEATS
from specdash.tune.run.measuring import REQUEST_S, Limits, MachinePace, before, busy_share, total_s
from specdash.tune.run.status import Knob, RunPlan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specdash.backend.settings import BackendSettings
    from specdash.bench.load.samples import EngineAddress, WorkloadPrompt
    from specdash.collect.gpu import GpuLook, GpuLooks
    from specdash.core.changes import ApplyRecord
    from specdash.core.target import Target
    from specdash.insight.request import ServedRequest
    from specdash.tune.model.problem import Point, WorkloadShares
    from specdash.tune.run.status import Fingerprint, Forecast


# What is asked in every boot of a run: bundled prompts, a file's, an agent's session, or the like of live traffic.

LIVE, BUNDLED = "live", "bundled"
MOST_PROMPTS = 24
LIVE_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class BootPrompts:
    """What is asked in every boot, and where it comes from."""

    prompts: tuple[WorkloadPrompt, ...]
    workload: WorkloadShares
    words: str
    notes: tuple[str, ...] = ()


def asked_of(
    options: TuneOptions, place: EngineAddress | None, room: int | None, env: Mapping[str, str]
) -> BootPrompts:
    """What the options say; `room` is how many tokens a slot's context holds. Raises `UsageError` and `InputError`."""
    named = [name for name in (options.prompts, options.transcript) if name is not None]
    if len(named) + (options.workload == LIVE) > 1:
        raise UsageError("--workload live, --prompts and --transcript each say what is asked; give one of them")
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
    if options.workload == LIVE:
        return _from_traffic(options, place, room, env)
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


def _from_traffic(
    options: TuneOptions, place: EngineAddress | None, room: int | None, env: Mapping[str, str]
) -> BootPrompts:
    from specdash.collect.discover import target_for_url
    from specdash.collect.run_records import live_proxies

    if place is None:
        raise UsageError("--workload live: the service does not run, so that there is no live traffic")
    now = time.time()
    target = target_for_url(place.url, env)
    samples = recorded_samples(history_file(env), target, now - LIVE_S, now)
    source = "the record's last 24 h"
    told = [live_proxy.events for live_proxy in live_proxies(env) if live_proxy.events is not None]
    for events in told if len(samples) < MOST_PROMPTS else ():
        found = events_samples(Path(events), now - LIVE_S)
        if len(found) > len(samples):
            samples, source = found, "the proxy's last 24 h"
    shape = shape_of(samples, source)
    prompts = matched(shape, options.each, room, options.tokens)
    return BootPrompts(prompts, workload_of([prompt.kind for prompt in prompts], shape.shares), shape.words)


# The shape of the live traffic, and bundled prompts that match it. Counts and lengths only; no text of any request.
#
# The proxy tells whether tools were offered, which makes a request agentic. Between code and prose nobody can tell
# from outside, so chat counts as coding, pattern and prose alike, and where no proxy tells anything, all four count
# alike.

LEAST_REQUESTS = 20
SHORTEST, LONGEST = 32, 512
"""Tokens of an answer: shorter ones tell little, longer ones tell nothing new."""
LONGEST_CONTEXT = 8192
"""Tokens that prompts are filled up to at most: nothing is cached, so each is read anew in every boot."""
_AGENTIC, _CHAT = ("agentic",), ("coding", "pattern", "prose")
_CHARACTERS = 4.2
"""Of filling text, to a token."""
_MOST_EVENTS = 32 << 20


@dataclass(frozen=True, slots=True)
class TrafficShape:
    """What requests were like. `shares` are of generated tokens; lengths are sorted, by class."""

    requests: int
    shares: Mapping[str, float]
    prompts: Mapping[str, tuple[int, ...]]
    answers: Mapping[str, tuple[int, ...]]
    source: str

    @property
    def words(self) -> str:
        """For people."""
        parts = ", ".join(f"{kind} {percent(share)}" for kind, share in self.shares.items() if share)
        lengths = sorted(length for lengths in self.prompts.values() for length in lengths)
        context = f", prompts of {nearest_rank(lengths, 0.5)} tokens at the median" if lengths else ""
        return f"{self.requests} requests of {self.source}: {parts}{context}"


def shape_of(samples: Iterable[ServedRequest], source: str) -> TrafficShape:
    """The shape of requests. Raises `InputError` for too few to tell anything."""
    tokens: dict[str, float] = defaultdict(float)
    prompts: dict[str, list[int]] = defaultdict(list)
    answers: dict[str, list[int]] = defaultdict(list)
    count = 0
    for sample in samples:
        if sample.decode_tokens is None or sample.prompt_tokens is None:
            continue
        count += 1
        kinds = _kinds(sample.purpose)
        for kind in kinds:
            tokens[kind] += sample.decode_tokens / len(kinds)
            prompts[kind].append(sample.prompt_tokens)
            answers[kind].append(sample.decode_tokens)
    total = sum(tokens.values())
    if count < LEAST_REQUESTS or total <= 0:
        raise InputError(
            f"{source}: {count} finished requests are too few to tell the shape of the traffic ({LEAST_REQUESTS} are "
            "the least); leave --workload live out, or name prompts with --prompts or --transcript"
        )
    return TrafficShape(
        count,
        {kind: tokens[kind] / total for kind in CLASSES if tokens[kind]},
        {kind: tuple(sorted(found)) for kind, found in prompts.items()},
        {kind: tuple(sorted(found)) for kind, found in answers.items()},
        source,
    )


def recorded_samples(path: Path, target: Target, since: float, until: float) -> tuple[ServedRequest, ...]:
    """Requests of the record (history.db); of the proxy's events where it has any, as they tell what work was."""
    from specdash.history.store import Store, target_name
    from specdash.insight.state import TargetState

    if not path.is_file():
        return ()
    state = TargetState(target, rules=(), wall_offset=lambda: 0.0)
    with Store(path) as store:
        name = target_name(target)
        if name not in store.targets():
            return ()
        for wall, reading in store.readings(name, since, until):
            if reading.source in (Source.LOG, Source.PROXY_EVENTS):
                state.take_unjudged(reading)
                state.experiments.samples.date(wall, wall)
    return _best(state.experiments.samples)


def events_samples(path: Path, since: float) -> tuple[ServedRequest, ...]:
    """Requests of a proxy's events file, its last part where it is large."""
    samples = Samples()
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _MOST_EVENTS))
            lines = file.read(_MOST_EVENTS).splitlines()
    except OSError:
        return ()
    for line in lines:
        event = from_json(line)
        if isinstance(event, RequestEvent) and event.at >= since:
            samples.add_event(event)
    return _best(samples)


def matched(shape: TrafficShape, each: int, room: int | None, longest: int = LONGEST) -> tuple[WorkloadPrompt, ...]:
    """Bundled prompts of the shape's classes with its lengths: `each` of a class, answers and contexts spread over the
    quantiles of what was seen. `room`: tokens of a slot's context."""
    found = []
    for kind in shape.shares:
        for number, prompt in enumerate(bundled((kind,), each)):
            part = (number + 0.5) / each
            answer = min(max(nearest_rank(shape.answers[kind], part), SHORTEST), longest)
            context = min(nearest_rank(shape.prompts[kind], part), LONGEST_CONTEXT)
            if room is not None:
                context = min(context, room - answer - 256)
            found.append(replace(filled(prompt, context), max_tokens=answer))
    return tuple(found)


def filled(prompt: WorkloadPrompt, tokens: int) -> WorkloadPrompt:
    """The prompt with notes before its first question, until it has about so many tokens."""
    held = sum(len(str(message.get("content") or "")) for message in prompt.messages)
    missing = round(tokens * _CHARACTERS) - held
    if missing < 400:
        return prompt
    notes = _notes(missing, prompt.id)
    messages = list(prompt.messages)
    for place, message in enumerate(messages):
        content = message.get("content")
        if message.get("role") == "user" and isinstance(content, str):
            messages[place] = {**message, "content": f"Notes from before, for later:\n{notes}\n\n{content}"}
            return replace(prompt, messages=tuple(messages))
    return prompt


_WHO = (
    "The harbour office",
    "A visitor",
    "The night shift",
    "Our supplier",
    "The archive",
    "A neighbour",
    "The council",
)
_DID = ("moved", "counted", "repaired", "returned", "ordered", "photographed", "described", "sold", "found", "painted")
_WHAT = (
    "crates",
    "windows",
    "old maps",
    "bicycles",
    "lamps",
    "tickets",
    "stones",
    "letters",
    "pumps",
    "carpets",
    "keys",
)


def _notes(characters: int, name: str) -> str:
    """Text that nothing repeats, the same for the same name."""
    chance = random.Random(f"notes/{name}")  # noqa: S311 - filling, no secret
    lines: list[str] = []
    length = 0
    while length < characters:
        line = (
            f"{chance.choice(_WHO)} {chance.choice(_DID)} {chance.randrange(2, 900)} {chance.choice(_WHAT)} on day "
            f"{chance.randrange(1, 366)}, {chance.choice(('late', 'early', 'alone', 'twice', 'again'))}."
        )
        lines.append(line)
        length += len(line) + 1
    return "\n".join(lines)


def _kinds(work: RequestPurpose | None) -> tuple[str, ...]:
    if work is None:
        return CLASSES
    return _CHAT if work is RequestPurpose.CHAT else _AGENTIC


def _best(samples: Samples) -> tuple[ServedRequest, ...]:
    return tuple(samples.told.values()) if len(samples.told) >= LEAST_REQUESTS else tuple(samples.logged)


# Which prompts fit into a slot, answer and all: known before anything is restarted.
#
# A server that runs counts the tokens itself, with its chat template and tokenizer; else they are reckoned from the
# characters, on the safe side.

CHARACTERS_A_TOKEN = 3
"""Of a prompt that nobody can count: most have more."""
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class _Length:
    prompt: WorkloadPrompt
    tokens: int
    answer: int

    @property
    def words(self) -> str:
        return f"{self.prompt.id} ({self.tokens} tokens and {self.answer} of answer)"


def fitting(
    prompts: Sequence[WorkloadPrompt], options: MeasureOptions, place: EngineAddress | None, room: int | None
) -> tuple[tuple[WorkloadPrompt, ...], tuple[str, ...]]:
    """The prompts that fit, and what is to be said of the others. `place` is where the settings in force are served,
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


# What is known of a machine's pace before a run: from earlier runs of the same model, else from the server's counters
# and from earlier applies.

_SAME = ("model", "draft model", "engine", "GPUs", "cores", "setting LLAMA_THREADS", "setting LLAMA_GPU_LAYERS")
"""What must be as it was for an earlier run to tell the pace of another."""
_RUNS = 5
_ANSWER_S = 5.0
_APPLIES = 20
_BYTES_A_SECOND = 1e9
_START_S = 2.0


def known_pace(
    fingerprint: Fingerprint,
    start_s: float,
    place: EngineAddress | None,
    env: Mapping[str, str] = os.environ,
    *,
    tokens: int | None = None,
) -> MachinePace | None:
    """None where nobody knows how fast the engine is. `start_s` is what a start takes, for want of runs,
    `tokens` the length of an answer."""
    found = earlier_pace(fingerprint, env, tokens)
    told = counters_told(place.client(_ANSWER_S)) if place is not None else None
    if told is None or not told.predicted_seconds or not told.predicted_tokens:
        return found
    read = told.prompt_tokens / told.prompt_seconds if told.prompt_seconds and told.prompt_tokens else None
    if found is not None:
        return replace(found, prefill=read)
    return MachinePace(start_s, told.predicted_tokens / told.predicted_seconds, read)


def earlier_pace(
    fingerprint: Fingerprint, env: Mapping[str, str] = os.environ, tokens: int | None = None
) -> MachinePace | None:
    """As an earlier run of the same model on the same machine measured it: of the newest ones, that with answers of a
    length nearest to `tokens`, as long ones decode slower."""
    from specdash.tune.run.status import run_directories

    found: list[tuple[float, MachinePace]] = []
    for directory in reversed(run_directories(env)[-_RUNS:]):
        told = _pace_of(directory, fingerprint)
        if told is not None:
            length, pace = told
            found.append((abs(log(length / tokens)) if tokens else 0.0, pace))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _pace_of(directory: Path, fingerprint: Fingerprint) -> tuple[float, MachinePace] | None:
    """Tokens of an answer, and the pace; None for a run of something else."""
    from specdash.tune.run.status import read_run, read_setup

    with contextlib.suppress(InputError):
        setup = read_setup(directory)
        if any(setup.fingerprint.get(name) != fingerprint.get(name) for name in _SAME):
            return None
        run = read_run(directory)
        if run is None or setup.options.get("objective") != Objective.DECODE or setup.options.get("while_serving"):
            return None
        paces = []
        for boot in run.boots:
            seconds = sum(prompt.seconds for prompt in boot.result.prompts)
            tokens = sum(prompt.tokens for prompt in boot.result.prompts)
            if boot.seconds is not None and boot.waited_s is not None and 0 < seconds < boot.seconds:
                count, first_s = len(boot.result.prompts), boot.result.ttft_s or 0.0
                asking = (REQUEST_S + first_s) * count + WARM_UP_TOKENS * seconds / tokens
                start_s = max(0.0, boot.seconds - seconds - asking)
                paces.append((start_s, tokens / seconds, first_s, tokens / count))
        if paces:
            start_s, decode, first_s, length = (median(column) or 0.0 for column in zip(*paces, strict=True))
            return length, MachinePace(start_s, decode, first_s=first_s)
    return None


def start_seconds(files: Iterable[str | None], env: Mapping[str, str] = os.environ) -> float:
    """A start with all that an apply does around it: as in earlier applies, else by the size of what is loaded."""
    known = median(record.ended_at - record.at for record in _applied(env))
    return load_seconds(files) if known is None else known


def down_seconds(files: Iterable[str | None], env: Mapping[str, str] = os.environ) -> float:
    """How long the service is away in a restart; likewise."""
    known = median(record.downtime_s for record in _applied(env))
    return load_seconds(files) if known is None else known


def _applied(env: Mapping[str, str]) -> list[ApplyRecord]:
    from specdash.control.apply.journal import read_records

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


def others_load() -> float | None:
    """How many processes want a core, on average over the last minutes; None where the system does not tell."""
    try:
        last, before, _ = os.getloadavg()
    except (OSError, AttributeError):
        return None
    return (last + before) / 2


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
class PreparedRun:
    """A run that can begin."""

    options: TuneOptions
    task: Task
    plan: RunPlan
    prompts: tuple[WorkloadPrompt, ...]
    measure: MeasureOptions
    objective: Objective
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
        notes=asked.notes,
    )
    plan = _with_cost(plan, options, asked, files, about, place, env, synthetic=synthetic)
    return PreparedRun(options, task, plan, asked.prompts, measure, objective, limits, about, synthetic)


def _objective(options: TuneOptions, cards: GpuLook | None) -> Objective:
    objective = Objective(options.objective)
    if objective is Objective.PER_WATT and (cards is None or cards.energy_joules is None):
        # What NVML says of a driver error ends with when it is asked again, which is not here.
        absent = cards.absent.partition(";")[0] if cards is not None else ""
        raise UsageError(
            "--objective per-watt: needs GPUs whose driver tells their energy (NVML): "
            f"{absent or 'the one here does not'}; use decode or latency-p95"
        )
    return objective


def _space(options: TuneOptions, settings: BackendSettings) -> tuple[Point, tuple[Point, ...]]:
    """The settings in force as a point, and all points to choose from."""
    from specdash.backend.auto import look

    files = settings.model, settings.draft_model
    model, draft = (look(file) if file is not None else None for file in files)
    start = knobs.point_of(settings)
    chains = knobs.allowed_chains(options.allow_types, start, knobs.choices(settings, model, draft))
    return start, points_of(chains, start, draft.number("block_size") if draft is not None else None)


def _with_cost(
    plan: RunPlan,
    options: TuneOptions,
    asked: BootPrompts,
    files: Mapping[str, str | None],
    about: Fingerprint,
    place: EngineAddress | None,
    env: Mapping[str, str],
    *,
    synthetic: bool,
) -> RunPlan:
    """The plan with what it takes, in seconds; None where that is not known before the first boot."""
    away_s = load_seconds(files.values()) if options.beside else down_seconds(files.values(), env)
    start_s = away_s if options.beside else start_seconds(files.values(), env)
    pace = known_pace(about, start_s, place, env, tokens=options.tokens)
    forecast, notes = _forecast(options, asked.prompts, pace, synthetic)
    if options.minutes is not None and (away_s if forecast is None else forecast.boot_s) > 60 * options.minutes:
        raise UsageError(f"--minutes {options.minutes:g}: one boot and its measurement take longer; allow more")
    boots = options.restarts + (_CHECK_BOOTS if options.check_texts else 0)
    return replace(
        plan,
        forecast=forecast,
        eta_s=None if forecast is None else min(total_s(forecast, options.restarts), 60 * (options.minutes or inf)),
        downtime_s=0.0 if options.beside else (boots + 1) * away_s,
        notes=(*plan.notes, *notes),
    )


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
    options: TuneOptions, prompts: Sequence[WorkloadPrompt], pace: MachinePace | None, synthetic: bool
) -> tuple[Forecast | None, tuple[str, ...]]:
    """How long it takes, and what is to be said of that."""
    if pace is None:
        return None, ("how long it takes is known after the first boot: the engine served nothing yet",)
    tokens = sum(min(prompt.max_tokens or options.tokens, options.tokens) for prompt in prompts)
    characters = sum(len(str(message.get("content") or "")) for prompt in prompts for message in prompt.messages)
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
    asked = json.dumps([asdict(prompt) for prompt in prompts], sort_keys=True, default=str)
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

    wanted = settings if engine is None else settings.model_copy(update={"engine": engine})
    return find_engine(wanted, env).words


def options_of(told: Mapping[str, Any]) -> TuneOptions:
    """Those of an earlier run. Raises `InputError` where another version wrote them."""
    try:
        return TuneOptions(**told)
    except TypeError:
        raise InputError("the run was begun by another version of specdash; begin anew") from None

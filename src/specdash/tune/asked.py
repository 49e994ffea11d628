"""What is asked in every boot of a run: bundled prompts, a file's, an agent's session, or the like of live traffic."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.bench.workloads import bundled, read_prompts
from specdash.core.errors import InputError, UsageError
from specdash.core.paths import history_file
from specdash.tune.objective import workload_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.bench.samples import Place, Prompt
    from specdash.tune.planning import TuneOptions
    from specdash.tune.problem import Workload

LIVE, BUNDLED = "live", "bundled"
MOST_PROMPTS = 24
LIVE_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked in every boot, and where it comes from."""

    prompts: tuple[Prompt, ...]
    workload: Workload
    words: str
    notes: tuple[str, ...] = ()


def asked_of(options: TuneOptions, place: Place | None, room: int | None, env: Mapping[str, str]) -> Asked:
    """What the options say; `room` is how many tokens a slot's context holds. Raises `UsageError` and `InputError`."""
    named = [one for one in (options.prompts, options.transcript) if one is not None]
    if len(named) + (options.workload == LIVE) > 1:
        raise UsageError("--workload live, --prompts and --transcript each say what is asked; give one of them")
    if options.prompts is not None:
        found = read_prompts(options.prompts)
        chosen = _thinned(found, options.each)
        shares = {kind: float(sum(one.kind == kind for one in found)) for kind in {one.kind for one in found}}
        notes = (
            (f"{len(chosen)} of {len(found)} prompts, {options.each} of a class",) if len(chosen) < len(found) else ()
        )
        return Asked(chosen, workload_of([one.kind for one in chosen], shares), options.prompts, notes)
    if options.transcript is not None:
        return _from_transcript(options.transcript, options.tokens, room)
    if options.workload == LIVE:
        return _from_traffic(options, place, room, env)
    chosen = bundled(each=options.each)
    return Asked(chosen, workload_of([one.kind for one in chosen]), "bundled prompts, all classes alike")


def _thinned(prompts: Sequence[Prompt], each: int) -> tuple[Prompt, ...]:
    """At most `each` of a class, evenly spread."""
    found: list[Prompt] = []
    for kind in dict.fromkeys(one.kind for one in prompts):
        own = [one for one in prompts if one.kind == kind]
        found += own if len(own) <= each else [own[number * len(own) // each] for number in range(each)]
    return tuple(found)


def _from_transcript(path: str, tokens: int, room: int | None) -> Asked:
    from specdash.bench.samples import Prompt
    from specdash.bench.transcript import read_transcript

    file = Path(path).expanduser()
    try:
        with file.open("rb") as stream:
            session = read_transcript(stream, path, skip_broken=True)
    except OSError as error:
        raise InputError(f"--transcript {path}: {error.strerror or error}") from None
    fitting = [one for one in session.calls if room is None or one.chars / 3 + tokens < room]
    if not fitting:
        raise InputError(f"--transcript {path}: no call fits into a slot's context of {room} tokens")
    count = min(MOST_PROMPTS, len(fitting))
    chosen = [fitting[number * len(fitting) // count] for number in range(count)]
    prompts = tuple(
        Prompt(f"call-{one.number}", "agentic", tuple(one.messages()), session.tools_of(one)) for one in chosen
    )
    left = len(session.calls) - len(fitting)
    notes = (f"{left} calls that do not fit into a slot's context are left out",) if left else ()
    return Asked(prompts, workload_of(["agentic"]), f"{file.name}, {count} of {len(session.calls)} calls", notes)


def _from_traffic(options: TuneOptions, place: Place | None, room: int | None, env: Mapping[str, str]) -> Asked:
    from specdash.collect.discover import target_for_url
    from specdash.control.apply_engine import live_proxies
    from specdash.tune.traffic import events_samples, matched, recorded_samples, shape_of

    if place is None:
        raise UsageError("--workload live: the service does not run, so that there is no live traffic")
    now = time.time()
    target = target_for_url(place.url, env)
    samples = recorded_samples(history_file(env), target, now - LIVE_S, now)
    source = "the record's last 24 h"
    told = [one.events for one in live_proxies(env) if one.events is not None]
    for events in told if len(samples) < MOST_PROMPTS else ():
        found = events_samples(Path(events), now - LIVE_S)
        if len(found) > len(samples):
            samples, source = found, "the proxy's last 24 h"
    shape = shape_of(samples, source)
    prompts = matched(shape, options.each, room, options.tokens)
    return Asked(prompts, workload_of([one.kind for one in prompts], shape.shares), shape.words)

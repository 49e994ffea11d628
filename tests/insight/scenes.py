"""Servers as tests see them: readings at given times, requests, baselines, applies, and rules made of a script."""

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyRecord, Change, Role
from specdash.core.readings import (
    Counters,
    FailureKind,
    Health,
    HealthStatus,
    ModelOutline,
    ProcessTree,
    Props,
    Reading,
    Slot,
    Slots,
    Source,
)
from specdash.core.records import Alert, AlertSeverity, Baseline, Symptom
from specdash.core.speculation import MemoryKind
from specdash.core.target import Target
from specdash.insight.picture import Picture
from specdash.insight.request import ServedRequest
from specdash.insight.rules.catalogue import Limits, Rule, shipped
from specdash.insight.rules.scene import RuleScene
from specdash.insight.state import TargetState
from specdash.llama.log.parser import LogParser

DATA = Path(__file__).parents[1] / "data"
NOW = 5000.0
WALL = 1_790_000_000.0
"""Unix time of `NOW`, and of monotonic time 0 of a `Watch`."""
OK, LOADING = Health(HealthStatus.OK), Health(HealthStatus.LOADING)
IDLE = Slots((Slot(0, is_processing=False), Slot(1, is_processing=False)))
MAMBA = ModelOutline("mamba", MemoryKind.RECURRENT)
QWEN = ModelOutline("qwen35", MemoryKind.HYBRID, gives_states=True)
LLAMA = ModelOutline("llama", MemoryKind.ATTENTION)
MODEL = "m.gguf"
CHANGE = Change(Role.BACKEND, "LLAMA_DRAFT_MAX", "4", "12")


def server(url: str = "http://127.0.0.1:8080", **fields: Any) -> TargetState:
    """A state that has seen nothing yet, whose clocks show `WALL` at `NOW`."""
    return TargetState(Target(url, **fields), wall_offset=lambda: WALL - NOW)


def tell(state: TargetState, at: float, **readings: Any) -> TargetState:
    """Let it see a value of each source at that time, or a failure: its kind, with details or without."""
    for name, value in readings.items():
        source = Source(name.replace("_", " "))
        match value:
            case FailureKind():
                state.apply(Reading.unknown(source, at, value, "scripted"))
            case (FailureKind() as kind, str(detail)):
                state.apply(Reading.unknown(source, at, kind, detail))
            case _:
                state.apply(Reading.known(source, at, value))
    return state


def read_log(state: TargetState, log: str | bytes, at: float = NOW - 1) -> TargetState:
    """Let it read a log, by name or as it is, as if that had been written just now."""
    parser = LogParser()
    tell(state, at, log=parser.feed(log if isinstance(log, bytes) else (DATA / "logs" / f"{log}.log").read_bytes()))
    return tell(state, at, log=parser.close())


# What a server is like


def process(pid: int = 10, *, stopped: bool = False, started: float = WALL - 1000.0, **more: Any) -> ProcessTree:
    """The server's process."""
    fields = {"name": "llama-server", "cpu_cores": 0.5, **more}
    return ProcessTree(pid=pid, started_wall=started, stopped=(pid,) if stopped else (), **fields)


def working(decoded: int, task: int = 7, processed: int = 100) -> Slots:
    """One slot at work, one idle."""
    busy = Slot(0, is_processing=True, task=task, n_decoded=decoded, n_prompt_tokens_processed=processed)
    return Slots((busy, Slot(1, is_processing=False)))


def counters(tokens: float, *, running: float = 0.0, calls: float | None = None) -> Counters:
    """Totals of a server that has generated so many tokens."""
    return Counters(
        prompt_tokens=tokens,
        predicted_tokens=tokens,
        decode_calls=tokens if calls is None else calls,
        requests_processing=running,
        requests_deferred=0.0,
    )


def speculating(
    types: str = "", *, model: ModelOutline | None = None, draft: ModelOutline | None = None, **parameters: str
) -> TargetState:
    """A server that speculates with these types, started with these parameters (`draft_n_max`: `spec-draft-n-max`)."""
    given = tuple((f"spec-{name.replace('_', '-')}", value) for name, value in parameters.items())
    made = server(parameters=(("spec-type", types), *given) if types else ())
    if model is not None or draft is not None:
        tell(made, NOW - 600, props=Props(model_path="/m.gguf", model=model, draft=draft))
    return tell(made, NOW - 600, slots=Slots((Slot(0, False, 4096, True),)))


def counted(state: TargetState, positions: tuple[int, ...], *, steps: int, drafted: int, plain: int = 0) -> TargetState:
    """Let it see counters of the last minutes: `positions` are accepted draft tokens a position, `plain` decode calls
    without a draft."""
    accepted = sum(positions)
    total = Counters(
        predicted_tokens=float(accepted + steps + plain),
        predicted_seconds=(steps + plain) * 0.05,
        decode_calls=float(steps + plain),
        draft_tokens=float(drafted),
        accepted_tokens=float(accepted),
        verification_steps=float(steps),
        accepted_per_position=positions,
        requests_processing=0.0,
    )
    nothing: dict[str, Any] = {name: 0.0 for name in total.__struct_fields__ if isinstance(getattr(total, name), float)}
    return tell(tell(state, NOW - 200, metrics=Counters(**nothing, accepted_per_position=())), NOW - 2, metrics=total)


# Requests, baselines, applies


def baseline(context: int = 448, concurrency: int = 1, rate: float = 50.0, **fields: Any) -> Baseline:
    """A baseline whose middle is 500 tokens by default, known to 1 %."""
    made = Baseline(
        WALL - 86400, MODEL, "b1-abc", context, concurrency, rate, rate * 0.99, rate * 1.01, 5, decode_tokens=104
    )
    return replace(made, **fields)


def request(
    ended: float = WALL - 10,
    *,
    rate: float = 100.0,
    tokens: int = 201,
    accepted: int = 100,
    drafted: int = 150,
    **fields: Any,
) -> ServedRequest:
    """A request of 400 prompt tokens that decoded by itself."""
    seconds = (tokens - 1) / rate
    more: dict[str, Any] = {"prompt_total_tokens": 400, "prompt_cached": 0, "began": ended - seconds - 0.01, **fields}
    return ServedRequest(
        ended=ended,
        decode_tokens=tokens,
        draft_generated=drafted,
        draft_accepted=accepted,
        decode_ms=seconds * 1000.0,
        **more,
    )


def row_of(count: int, *, every_s: float = 5.0, **fields: Any) -> list[ServedRequest]:
    """Requests one after the other, the newest 10 s ago."""
    return [request(WALL - 10 - every_s * place, **fields) for place in range(count)][::-1]


def measured(
    samples: list[ServedRequest], baselines: tuple[Baseline, ...] = (), *, speculative: bool | None = True
) -> TargetState:
    """A state that has seen these requests, on a server that speculates."""
    made = server()
    props = Props(model_path=f"/models/{MODEL}", build_info="b1-abc")
    slots = Slots((Slot(0, False, 8192, speculative),))
    return add(tell(made, NOW - 1, props=props, slots=slots, baselines=baselines), samples)


def add(made: TargetState, samples: list[ServedRequest]) -> TargetState:
    """More requests of the log."""
    made.experiments.samples.logged.extend(samples)
    made.experiments.samples.version += 1
    return made


def record(number: int = 1, at: float = WALL, **fields: Any) -> ApplyRecord:
    """An apply of 10 s, whose restart began after 4 s."""
    more: dict[str, Any] = {
        "kind": ApplyKind.APPLY,
        "outcome": ApplyOutcome.APPLIED,
        "changes": (CHANGE,),
        "step_seconds": {"lock": 0.5, "hold": 0.5, "drain": 2.5, "write": 0.5, "restart": 1.0, "health": 4.0},
        **fields,
    }
    return ApplyRecord(number, at, more.pop("ended_at", at + 10.0), **more)


def requests(
    rng: random.Random,
    start: float,
    count: int,
    *,
    speed: float = 50.0,
    rate: float = 0.6,
    noise: float = 0.2,
) -> list[ServedRequest]:
    """Requests one after the other from `start`: lognormal speeds, and acceptance that varies from one to the next."""
    found = []
    for began in (start + 2.5 * place for place in range(count)):
        drafted = max(5, int(rng.lognormvariate(5, 0.8)))
        share = rng.betavariate(rate * 10, (1 - rate) * 10)
        accepted = min(drafted, max(0, round(rng.gauss(drafted * share, (drafted * share * (1 - share)) ** 0.5))))
        rates = speed * rng.lognormvariate(0, noise), 20 * speed * rng.lognormvariate(0, noise)
        found.append(
            ServedRequest(
                began=began,
                ended=began + 2.0,
                source=Source.PROXY_EVENTS,
                prompt_total_tokens=500,
                prompt_cached=100,
                decode_tokens=drafted,
                draft_generated=drafted,
                draft_accepted=accepted,
                proxy_rates=rates[::-1],
                proxy_ttft_s=10 / speed * rng.lognormvariate(0, noise),
            )
        )
    return found


# Servers under watch, and rules


class Watch:
    """A server watched through readings that the test makes."""

    def __init__(self, rules: Iterable[Rule] | None = None) -> None:
        self.offset = WALL
        self.state = TargetState(
            Target("http://127.0.0.1:8080"),
            rules=tuple(rules) if rules is not None else None,
            wall_offset=lambda: self.offset,
        )
        self.at = 0.0

    def look(self, seconds: float = 1.0, **readings: Any) -> None:
        """Every source once a second for so long, HEALTH last: `health`, `metrics`, `slots`, `process` …"""
        for _ in range(round(seconds)):
            self.at += 1.0
            for name in sorted(readings, key="health".__eq__):
                tell(self.state, self.at, **{name: readings[name]})

    def retarget(self, **changes: Any) -> None:
        """The same server with something else known of it."""
        self.state.retarget(replace(self.state.target, **changes))

    @property
    def picture(self) -> Picture:
        """What the screen shows now."""
        return self.state.picture(self.at, self.offset + self.at, 300.0)

    def alert(self, rule: str) -> Alert | None:
        """The rule's active alert."""
        active = self.state.alerts.picture().active
        return next((alert for alert in active if alert.rule == rule), None)

    def found(self, rule: str) -> Alert:
        """The rule's active alert, which there is."""
        alert = self.alert(rule)
        assert alert is not None, self.raised()
        return alert

    def raised(self) -> set[str]:
        """Rules with an active alert."""
        return {alert.rule for alert in self.state.alerts.picture().active}

    @property
    def unjudged(self) -> dict[str, str]:
        """Why rules are not judged now."""
        return dict(self.state.alerts.picture().unjudged)


def live(seconds: float = 20.0) -> Watch:
    """A server that has been well for a while."""
    watch = Watch()
    watch.look(seconds, health=OK, metrics=counters(100), slots=IDLE, process=process())
    assert watch.raised() == set()
    return watch


def rule(judge: Callable[[RuleScene, Limits], Iterable[Symptom]], rule_id: str = "scripted", **more: Any) -> Rule:
    """A rule for tests."""
    fields: dict[str, Any] = {"severity": AlertSeverity.WARNING, "hold_back": False, **more}
    return Rule(rule_id, "availability", "Scripted", meaning="", checks=(), judge=judge, **fields)


def only(*names: str) -> tuple[Rule, ...]:
    """These rules of those shipped, or those of these families."""
    return tuple(item for item in shipped() if item.id in names or item.family in names)

"""Requests, baselines and a state for the tests of the speed-up."""

from typing import Any

from msgspec.structs import replace

from specdash.core.readings import Props, Reading, Slot, Slots, Source
from specdash.core.records import Baseline
from specdash.core.target import Target
from specdash.insight.request import ServedRequest
from specdash.insight.state import TargetState

WALL = 1_790_000_000.0
NOW = 5000.0
MODEL = "m.gguf"


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
    told: dict[str, Any] = {"prompt_total_tokens": 400, "prompt_cached": 0, "began": ended - seconds - 0.01, **fields}
    return ServedRequest(
        ended=ended,
        decode_tokens=tokens,
        draft_generated=drafted,
        draft_accepted=accepted,
        decode_ms=seconds * 1000.0,
        **told,
    )


def row_of(count: int, *, every_s: float = 5.0, **fields: Any) -> list[ServedRequest]:
    """Requests one after the other, the newest 10 s ago."""
    return [request(WALL - 10 - every_s * place, **fields) for place in range(count)][::-1]


def state(
    samples: list[ServedRequest], baselines: tuple[Baseline, ...] = (), *, speculative: bool | None = True
) -> TargetState:
    """A state that has seen these requests, on a server that speculates."""
    made = TargetState(Target("http://127.0.0.1:8080"))
    made.apply(Reading.known(Source.PROPS, NOW - 1, Props(model_path=f"/models/{MODEL}", build_info="b1-abc")))
    made.apply(Reading.known(Source.SLOTS, NOW - 1, Slots((Slot(0, False, 8192, speculative),))))
    made.apply(Reading.known(Source.BASELINES, NOW - 1, baselines))
    add(made, samples)
    return made


def add(made: TargetState, samples: list[ServedRequest]) -> None:
    """More requests of the log."""
    made.experiments.samples.logged.extend(samples)
    made.experiments.samples.version += 1

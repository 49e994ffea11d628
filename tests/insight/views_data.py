"""A state that has read a recorded log, or counters, for the tests of the views of speculation."""

from pathlib import Path

from msgspec.structs import replace

from specdash.core.readings import Counters, ModelOutline, Props, Reading, Slot, Slots, Source
from specdash.core.speculation import MemoryKind
from specdash.core.target import Target
from specdash.insight.state import TargetState
from specdash.llama.log.parser import LogParser

LOGS = Path(__file__).parents[1] / "data" / "logs"
WALL = 1_790_000_000.0
NOW = 5000.0
MAMBA = ModelOutline("mamba", MemoryKind.RECURRENT)
QWEN = ModelOutline("qwen35", MemoryKind.HYBRID, gives_states=True)
LLAMA = ModelOutline("llama", MemoryKind.ATTENTION)


def state_of(
    types: str = "", *, model: ModelOutline | None = None, draft: ModelOutline | None = None, **parameters: str
) -> TargetState:
    """A server that speculates with these types, started with these parameters (`draft_n_max`: `spec-draft-n-max`)."""
    given = tuple((f"spec-{name.replace('_', '-')}", value) for name, value in parameters.items())
    made = TargetState(Target("http://127.0.0.1:8080", parameters=(("spec-type", types), *given) if types else ()))
    made.apply(Reading.known(Source.SLOTS, NOW - 600, Slots((Slot(0, False, 4096, True),))))
    if model is not None or draft is not None:
        props = Props(model_path="/m.gguf", model=model, draft=draft)
        made.apply(Reading.known(Source.PROPS, NOW - 600, props))
    return made


def read_log(state: TargetState, name: str, at: float = NOW - 1) -> None:
    """Let it read a recorded log, as if it had been written just now."""
    parser = LogParser()
    state.apply(Reading.known(Source.LOG, at, parser.feed((LOGS / f"{name}.log").read_bytes())))
    state.apply(Reading.known(Source.LOG, at, parser.close()))


def count(
    state: TargetState, at: float, positions: tuple[int, ...], *, steps: int, drafted: int, plain: int = 0
) -> None:
    """Let it see counters: `positions` are accepted draft tokens a position, `plain` decode calls without a draft."""
    accepted = sum(positions)
    state.apply(
        Reading.known(
            Source.METRICS,
            at,
            Counters(
                predicted_tokens=float(accepted + steps + plain),
                predicted_seconds=(steps + plain) * 0.05,
                decode_calls=float(steps + plain),
                draft_tokens=float(drafted),
                accepted_tokens=float(accepted),
                verification_steps=float(steps),
                accepted_per_position=positions,
                requests_processing=0.0,
            ),
        )
    )


def counted(state: TargetState, positions: tuple[int, ...], *, steps: int, drafted: int, plain: int = 0) -> TargetState:
    """The same over the last minutes, from nothing on."""
    count(state, NOW - 200, (), steps=0, drafted=0)
    count(state, NOW - 2, positions, steps=steps, drafted=drafted, plain=plain)
    return state


def idle_since(state: TargetState, seconds: float) -> None:
    """Let it see the last counters again, so that the window has nothing."""
    last = state.counters.last
    assert last is not None
    for at in (NOW + seconds - 400, NOW + seconds):
        state.apply(Reading.known(Source.METRICS, at, replace(last.counters)))

"""No figure is more than a server can do, however its totals, its slots and its requests fall between the looks."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from specdash.core.proxy_events import DECODE, PREFILL
from specdash.core.readings import Counters, Health, HealthStatus, Reading, Slot, Slots, Source
from specdash.core.target import Target
from specdash.insight.charts import Metric
from specdash.insight.state import TargetState

CALLS_PER_S = 25.0
LENGTH_S = 40
TOTALS = (
    "prompt_tokens", "prompt_seconds", "predicted_tokens", "predicted_seconds", "decode_calls", "draft_tokens",
    "accepted_tokens", "verification_steps",
)  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """A request: when it began, in which slot, how many draft tokens each of its steps accepted, and its prompt."""

    begins: float
    slot: int
    accepted: tuple[int, ...]
    prompt: int

    @property
    def first(self) -> float:
        """When its first token came: a prompt of one token waits for its checkpoint."""
        return self.begins + 0.3

    @property
    def ends(self) -> float:
        return self.first + len(self.accepted) / CALLS_PER_S


@dataclass(frozen=True)
class Server:
    """A server whose totals can be read at any moment; it was restarted at some."""

    answers: tuple[Answer, ...]
    restarts: tuple[float, ...]
    longest: int

    def running(self, at: float) -> list[Answer]:
        born = self._born(at)
        return [answer for answer in self.answers if answer.begins >= born and answer.begins <= at < answer.ends]

    def _born(self, at: float) -> float:
        return max((restart for restart in self.restarts if restart <= at), default=0.0)

    def total(self, name: str, at: float) -> float:
        found, born = 0.0, self._born(at)
        for answer in self.answers:
            if answer.begins < born or answer.first > at:
                continue
            calls = min(len(answer.accepted), int((at - answer.first) * CALLS_PER_S))
            ended = answer.ends <= at
            found += {
                "decode_calls": 1 + calls,
                "prompt_tokens": answer.prompt,
                "prompt_seconds": 0.3,
                "predicted_tokens": ended * (1 + sum(answer.accepted) + len(answer.accepted)),
                "predicted_seconds": ended * (answer.ends - answer.first),
                "draft_tokens": ended * self.longest * len(answer.accepted),
                "accepted_tokens": ended * sum(answer.accepted),
                "verification_steps": ended * len(answer.accepted),
            }[name]
        return float(f"{found:.6g}")

    def scrape(self, at: float, skews: Sequence[float]) -> Counters:
        """The totals, each read a little before or after `at`."""
        totals = {name: self.total(name, at + skew) for name, skew in zip(TOTALS, skews, strict=False)}
        return Counters(
            **totals,  # type: ignore[arg-type]
            requests_processing=len(self.running(at + skews[-1])),
            busy_slots_per_decode=1.0,
            accepted_per_position=self.positions(at + skews[0]) or None,
        )

    def positions(self, at: float) -> tuple[int, ...]:
        born = self._born(at)
        steps = [
            step for answer in self.answers if answer.begins >= born and answer.ends <= at for step in answer.accepted
        ]
        return tuple(sum(step > place for step in steps) for place in range(max(steps, default=0)))

    def slots(self, at: float) -> Slots:
        by_slot = {answer.slot: answer for answer in self.running(at)}
        return Slots(tuple(self._slot(slot, by_slot.get(slot), at) for slot in range(3)))

    def _slot(self, slot: int, answer: Answer | None, at: float) -> Slot:
        if answer is None:
            return Slot(slot, is_processing=False, speculative=True)
        calls = max(0, min(len(answer.accepted), int((at - answer.first) * CALLS_PER_S)))
        decoded = (1 if at >= answer.first else 0) + calls + sum(answer.accepted[:calls])
        task = self.answers.index(answer)
        return Slot(slot, True, task=task, speculative=True, n_decoded=decoded, n_prompt_tokens_processed=answer.prompt)


@st.composite
def servers(draw: st.DrawFn) -> Server:
    longest = draw(st.integers(1, 6))
    steps = st.lists(st.integers(0, longest), min_size=1, max_size=draw(st.sampled_from([4, 30, 400])))
    answers, free = [], [0.0, 0.0, 0.0]
    for gap, accepted, prompt in draw(
        st.lists(st.tuples(st.floats(0, 4), steps, st.sampled_from([1, 3, 60, 900])), min_size=1, max_size=25)
    ):
        slot = min(range(3), key=lambda index: free[index])
        answer = Answer(free[slot] + gap, slot, tuple(accepted), prompt)
        answers.append(answer)
        free[slot] = answer.ends
    return Server(tuple(answers), tuple(draw(st.lists(st.floats(1, LENGTH_S), max_size=2))), longest)


@given(servers(), st.randoms(use_true_random=False), st.sampled_from([0.0, 0.05, 0.5]), st.booleans())
def test_no_figure_is_more_than_the_server_can_do(server: Server, chance: object, skew: float, known: bool) -> None:
    uniform = chance.uniform  # type: ignore[attr-defined]
    parameters = (("spec-type", "draft-simple"), ("spec-draft-n-max", str(server.longest))) if known else ()
    state = TargetState(Target("http://127.0.0.1:8080", parameters=parameters))
    gains: list[float] = []
    for second in range(LENGTH_S):
        slots_at, at = second + uniform(0, 0.9), second + 0.95
        state.apply(Reading.known(Source.HEALTH, float(second), Health(HealthStatus.OK)))
        state.apply(Reading.known(Source.SLOTS, slots_at, server.slots(slots_at)))
        counters = server.scrape(at, [uniform(-skew, 0) for _ in (*TOTALS, "")])
        state.apply(Reading.known(Source.METRICS, at, counters))
        backend = state.picture(at, at, 10.0).backend
        gain, length = backend.speculation.tokens_per_decode.value, backend.speculation.acceptance.window.value
        gains += [gain] if gain is not None else []
        assert length is None or 0 <= length <= 1
        assert backend.decode.value is None or backend.decode.value <= 3 * DECODE.most
        assert backend.prefill.value is None or 32 / LENGTH_S <= backend.prefill.value <= PREFILL.most
    drawn = state.columns(Metric.TOKENS_PER_DECODE, LENGTH_S, LENGTH_S, LENGTH_S)
    assert max([*gains, *(value for value in drawn if value is not None)], default=0.0) <= 1 + server.longest


def test_a_server_at_work_is_measured() -> None:
    """The checks do not simply leave everything out."""
    steps = (2, 1, 0, 3) * 60
    busy = Server(tuple(Answer(10.0 * turn, 0, steps, 300) for turn in range(4)), (), 4)
    state = TargetState(Target("http://127.0.0.1:8080"))
    seen = []
    for second in range(LENGTH_S):
        for source, at, value in (
            (Source.HEALTH, second, Health(HealthStatus.OK)),
            (Source.SLOTS, second + 0.4, busy.slots(second + 0.4)),
            (Source.METRICS, second + 0.9, busy.scrape(second + 0.9, [0.0] * 9)),
        ):
            state.apply(Reading.known(source, at, value))
        seen.append(state.picture(second + 0.9, 0.0).backend.speculation.tokens_per_decode.value)
    known = [value for value in seen[10:] if value is not None]
    assert len(known) >= 25
    assert 2.2 < min(known) <= max(known) < 2.8

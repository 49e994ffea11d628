"""The checkpoints view on a real server that replays: what it says equals what the server itself counted."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from specdash.core.readings import Counters
from specdash.core.speculation import MemoryKind, Rollback
from specdash.insight.picture import CheckpointsPicture
from specdash.llama.server_answers import parse_metrics
from support import tiny_models
from support.asking import read
from support.faults import BreakableServer, Watched, watched
from support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.llama_server]

REQUESTS, TOKENS, LONGEST = 4, 60, 6
PROMPT = " ".join(tiny_models.SENTENCE[:20])


@dataclass(frozen=True)
class Truth:
    """What the server counted of `REQUESTS` answers."""

    calls: int
    """Decode calls, without those for prompts."""
    steps: int
    accepted: int
    counters: Counters

    @property
    def beyond(self) -> int:
        """Tokens beside the first of each answer, which is its prompt's."""
        return REQUESTS * (TOKENS - 1)


def counters(server: BreakableServer) -> Counters:
    return parse_metrics(read(f"{server.url}/metrics"))


def calls(server: BreakableServer) -> int:
    return round(counters(server).decode_calls or 0)


def truth_of(server: BreakableServer) -> Truth:
    """Let it answer, after it was seen how many decode calls a prompt takes."""
    server.complete(PROMPT, 1, ignore_eos=True)
    before = calls(server)
    server.complete(PROMPT, 1, ignore_eos=True)
    for_prompt = calls(server) - before
    before = calls(server)
    for _ in range(REQUESTS):
        server.complete(PROMPT, TOKENS, ignore_eos=True)
    last = counters(server)
    return Truth(
        round(last.decode_calls or 0) - before - REQUESTS * for_prompt,
        round(last.verification_steps or 0),
        round(last.accepted_tokens or 0),
        last,
    )


def seen(watching: Watched, truth: Truth) -> CheckpointsPicture:
    """The view, once log and counters have everything."""

    def told() -> CheckpointsPicture:
        return watching.picture().views.checkpoints

    until(lambda: watching.picture().backend.requests_finished == REQUESTS + 2)
    until(lambda: told().lifetime.steps == truth.steps)
    until(lambda: told().memory is not None)
    until(lambda: watching.picture().backend.speculation.draft_tokens_total == truth.counters.draft_tokens)
    return told()


def server_of(
    tmp_path: Path, *flags: str, wrong_every: int = 8, recurrent: bool = True, **environ: str
) -> BreakableServer:
    write = tiny_models.write_mamba if recurrent else tiny_models.write_llama
    model = write(tmp_path / "model.gguf", layers=2)
    draft = tiny_models.write_llama(tmp_path / "draft.gguf", wrong_every=wrong_every)
    drafting = ("--spec-type", "draft-simple", "-md", str(draft), "--spec-draft-n-max", str(LONGEST))
    return BreakableServer(tmp_path, *drafting, *flags, model=model, **environ)


@pytest.mark.parametrize("verbosity", ["3", "5"])
def test_replays_and_the_honest_gain_are_what_the_server_counted(verbosity: str, tmp_path: Path) -> None:
    with server_of(tmp_path, "-lv", verbosity, LLAMA_TRACE="1") as server, watched(server.target) as watching:
        watching.until_live()
        truth = truth_of(server)
        found = seen(watching, truth)
        assert (found.memory, found.rollback) == (MemoryKind.RECURRENT, Rollback.CHECKPOINT)
        assert found.basis == "trace"
        # Every decode call brings one token beside those accepted.
        assert truth.calls == truth.beyond - truth.accepted
        life = found.lifetime
        without_draft = truth.calls - life.steps - life.replays
        assert 0 <= without_draft <= REQUESTS
        assert life.replays > 0.3 * life.steps
        assert life.effective_length is not None
        assert life.mean_accepted_length is not None
        assert life.effective_length == pytest.approx((truth.beyond - without_draft) / (truth.calls - without_draft))
        assert life.mean_accepted_length == pytest.approx(1 + truth.accepted / truth.steps)
        assert life.effective_length < life.mean_accepted_length
        assert life.lost_share is not None
        assert 0.0 < life.lost_share < 1.0
        assert life.lost_s is not None
        assert life.lost_s < (truth.counters.predicted_seconds or 0.0)
        if verbosity == "5":
            assert found.speculative.restored == life.replays


def test_without_a_trace_the_counters_say_nearly_the_same(tmp_path: Path) -> None:
    with server_of(tmp_path) as server, watched(server.target) as watching:
        watching.until_live()
        truth = truth_of(server)
        life = seen(watching, truth).lifetime
        assert life.basis == "counters"
        # They count the first token of an answer, which its prompt's decode brought.
        assert life.effective_length == pytest.approx(truth.beyond / truth.calls, rel=0.1)
        assert life.replays == min(truth.steps, truth.calls + REQUESTS + 2 - truth.steps)


def test_a_draft_that_is_always_right_replays_nothing(tmp_path: Path) -> None:
    with server_of(tmp_path, wrong_every=0, LLAMA_TRACE="1") as server, watched(server.target) as watching:
        watching.until_live()
        truth = truth_of(server)
        life = seen(watching, truth).lifetime
        assert (life.replays, life.replayed_tokens, life.lost_s, life.lost_share) == (0, 0, 0.0, 0.0)
        assert life.effective_length == life.mean_accepted_length == pytest.approx(1 + truth.accepted / truth.steps)


def test_a_model_with_a_cache_of_every_token_replays_nothing_either(tmp_path: Path) -> None:
    with server_of(tmp_path, recurrent=False, LLAMA_TRACE="1") as server, watched(server.target) as watching:
        watching.until_live()
        truth = truth_of(server)
        found = seen(watching, truth)
        assert (found.memory, found.rollback) == (MemoryKind.ATTENTION, Rollback.CUT)
        assert (found.lifetime.replays, found.lifetime.lost_share) == (0, 0.0)
        drafter = watching.picture().views.drafter
        assert (drafter.type, drafter.effective_length) == ("draft-simple", LONGEST)
        assert drafter.acceptance == pytest.approx(truth.accepted / (truth.counters.draft_tokens or 1))

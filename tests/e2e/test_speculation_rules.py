"""The rules of speculation on real servers: drafters that are never right, never draft, are not there, or get worse."""

import time
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from specdash.core.records import AlertSeverity
from specdash.insight.rules.catalogue import shipped
from support import tiny_models
from support.faults import BreakableServer, watched
from support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.llama_server]

OWN = tuple(rule for rule in shipped() if rule.family in ("memory", "speculation"))
WORDS = tiny_models.SENTENCE
SENTENCE = " ".join(WORDS)
DRAFT_SIMPLE = ("-np", "1", "--spec-type", "draft-simple")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tiny_models.write_llama(tmp_path / "target.gguf")


def drafting(directory: Path, wrong_every: int, longest: int = 4) -> tuple[str, ...]:
    draft = tiny_models.write_llama(directory / "draft.gguf", wrong_every=wrong_every)
    return (*DRAFT_SIMPLE, "-md", str(draft), "--spec-draft-n-max", str(longest))


def test_a_drafter_that_is_never_right(tmp_path: Path, target: Path) -> None:
    flags = drafting(tmp_path, wrong_every=1)
    with (
        BreakableServer(tmp_path, *flags, model=target) as server,
        watched(server.target, OWN) as seen,
        server.working(1, 100, SENTENCE),
    ):
        alert = seen.until_alert("zero_acceptance")
        assert alert.severity is AlertSeverity.WARNING
        assert alert.fix == (("LLAMA_SPEC_TYPE", "none"),)


def test_a_drafter_that_is_right_now_and_then(tmp_path: Path, target: Path) -> None:
    flags = drafting(tmp_path, wrong_every=2)
    with (
        BreakableServer(tmp_path, *flags, model=target, LLAMA_TRACE="1") as server,
        watched(server.target, OWN) as seen,
        server.working(1, 100, SENTENCE),
    ):
        until(lambda: dict(seen.picture().log.live).get("drafted", 0) > 4000)
        raised = seen.rules_raised()
        assert not raised & {"zero_acceptance", "acceptance_collapse", "speculation_off"}


def test_n_grams_that_are_too_long_to_repeat(tmp_path: Path, target: Path) -> None:
    flags = ("-np", "1", "--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "1000")
    with (
        BreakableServer(tmp_path, *flags, model=target) as server,
        watched(server.target, OWN) as seen,
        server.working(1, 400, SENTENCE),
    ):
        alert = seen.until_alert("zero_acceptance")
        assert alert.severity is AlertSeverity.NOTICE


def test_a_draft_model_that_stops_before_its_first_token(tmp_path: Path, target: Path) -> None:
    flags = (*drafting(tmp_path, wrong_every=0), "--spec-draft-n-min", "16")
    with (
        BreakableServer(tmp_path, *flags, model=target) as server,
        watched(server.target, OWN) as seen,
        server.working(1, 400, SENTENCE),
    ):
        assert seen.until_alert("zero_acceptance").severity is AlertSeverity.WARNING


def test_speculation_that_was_asked_for_and_is_not_there(tmp_path: Path, target: Path) -> None:
    with BreakableServer(tmp_path, *DRAFT_SIMPLE, model=target) as server, watched(server.target, OWN) as seen:
        assert "draft-simple needs a draft model" in seen.until_alert("speculation_off").summary
        told = replace(server.target, log=None, parameters=(("spec-type", "draft-simple"),))
        with watched(told, OWN) as seen:
            assert "draft-simple needs a draft model" in seen.until_alert("speculation_off").summary
        unasked = replace(server.target, parameters=(("spec-type", "none"),))
        with watched(unasked, OWN) as seen, server.working(1, 100, WORDS[0]):
            until(lambda: (seen.picture().backend.requests_finished or 0) > 20)
            assert seen.rules_raised() == set()


def test_a_draft_model_without_a_type(tmp_path: Path, target: Path) -> None:
    draft = tiny_models.write_llama(tmp_path / "draft.gguf")
    with BreakableServer(tmp_path, "-np", "1", "-md", str(draft), model=target) as server:
        told = replace(server.target, parameters=(("spec-draft-model", str(draft)),))
        with watched(told, OWN) as seen:
            assert seen.until_alert("speculation_off").fix == (("LLAMA_SPEC_TYPE", "draft-simple"),)


def half_right(directory: Path) -> tuple[str, ...]:
    """A drafter that knows the first half of the sentence and is wrong about all of the other."""
    table = tiny_models.successors()
    half = len(WORDS) // 2
    first = tiny_models.FIRST_WORD
    table[first + half : first + len(WORDS)] = first + (np.arange(half, len(WORDS)) + 9) % len(WORDS)
    draft = tiny_models.write_llama(directory / "draft.gguf", table=table)
    return (*DRAFT_SIMPLE, "-md", str(draft), "--spec-draft-n-max", "4")


def test_acceptance_that_collapses(tmp_path: Path, target: Path) -> None:
    def recite(server: BreakableServer, times: int, word: int, pause_s: float = 0.0) -> None:
        body = {"prompt": [1, tiny_models.FIRST_WORD + word], "n_predict": 20, "temperature": 0, "ignore_eos": True}
        for _ in range(times):
            server.get("/completion", body)
            time.sleep(pause_s)

    flags = half_right(tmp_path)
    with BreakableServer(tmp_path, *flags, model=target) as server, watched(server.target, OWN) as seen:
        recite(server, 80, 0)
        until(lambda: seen.picture().backend.requests_finished == 80)
        assert seen.rules_raised() == set()
        # Seen to be rejected at several looks at the counters.
        recite(server, 14, len(WORDS) // 2, pause_s=0.6)
        assert "draft tokens were accepted" in seen.until_alert("acceptance_collapse").summary

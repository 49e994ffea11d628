"""The rules of memory on real servers that are short of context, room, checkpoints, caches and slots."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from specdash.core.records import AlertSeverity
from specdash.insight.rules.catalogue import shipped
from support import tiny_models
from support.faults import DRAFTING, PROMPT, BreakableServer, watched
from support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.llama_server]

OWN = tuple(rule for rule in shipped() if rule.family in ("memory", "speculation") or rule.id == "context_overflow")
SENTENCE = " ".join(tiny_models.SENTENCE)


def converse(server: BreakableServer, turns: int, prompt: str = PROMPT * 20, *, cached: bool = True) -> str:
    """A conversation that grows turn by turn; what was said at its end."""
    for turn in range(turns):
        answer = server.complete(prompt, 24, cache_prompt=cached, ignore_eos=True)
        prompt += f"{answer['content']}\n# {turn}\n"
    return prompt


def test_healthy_conversations_and_drafts_raise_nothing(tmp_path: Path) -> None:
    with BreakableServer(tmp_path, *DRAFTING, LLAMA_TRACE="1") as server, watched(server.target, OWN) as seen:
        seen.until_live()
        with server.working(2, 120):
            for talk in range(4):
                converse(server, 5, f"# talk {talk}\n{PROMPT * 15}")
                time.sleep(1)
        assert seen.rules_raised() == set()


def test_conversations_that_share_a_full_kv_cache(tmp_path: Path) -> None:
    with (
        BreakableServer(tmp_path, "-c", "256", "--kv-unified", *DRAFTING) as server,
        watched(server.target, OWN) as seen,
        server.working(2),
    ):
        alert = seen.until_alert("context_overflow", subject="KV cache")
        assert alert.fix == (("LLAMA_CTX_SIZE", "512"),)
        until(lambda: any(alert.severity is AlertSeverity.CRITICAL for alert in seen.picture().alerts.active))


def test_a_context_that_is_shifted(tmp_path: Path) -> None:
    with (
        BreakableServer(tmp_path, "-c", "256", "-np", "1", "--context-shift") as server,
        watched(server.target, OWN) as seen,
    ):
        seen.until_live()
        server.complete(PROMPT, 600, ignore_eos=True)
        alert = seen.until_alert("context_overflow", subject="")
        assert alert.severity is AlertSeverity.NOTICE
        assert dict(alert.evidence)["slots"] == dict(alert.evidence)["tasks"] == "1"
        assert alert.fix == (("LLAMA_CTX_SIZE", "512"),)
        with server.working(1, 600):
            until(lambda: seen.until_alert("context_overflow", subject="").severity is AlertSeverity.WARNING)


def test_a_slot_with_little_context_left(tmp_path: Path) -> None:
    target = tiny_models.write_llama(tmp_path / "target.gguf")
    slow = tiny_models.write_llama(tmp_path / "draft.gguf", wrong_every=1)
    flags = ("-np", "1", "-c", "16384", "--spec-type", "draft-simple", "-md", str(slow), "--spec-draft-n-max", "8")
    nearly_all = " ".join([SENTENCE] * 50)
    with BreakableServer(tmp_path, *flags, model=target) as server, watched(server.target, OWN) as seen:
        seen.until_live()
        with server.working(1, 300, SENTENCE):
            time.sleep(3)
            assert "context_overflow" not in seen.rules_raised()
        with server.working(1, 3000, nearly_all):
            # It reads and decodes thousands of tokens first, which takes most of 30 s where others work beside it.
            alert = seen.until_alert("context_overflow", 120)
            assert alert.subject == "slot 0"
            assert alert.fix == (("LLAMA_CTX_SIZE", "32768"),)


def test_drafts_that_a_recurrent_model_pays_twice(tmp_path: Path) -> None:
    target = tiny_models.write_mamba(tmp_path / "mamba.gguf")
    draft = tiny_models.write_llama(tmp_path / "draft.gguf", wrong_every=4)
    flags = ("-np", "1", "--spec-type", "draft-simple", "-md", str(draft), "--spec-draft-n-max", "8")
    with (
        BreakableServer(tmp_path, *flags, model=target, LLAMA_TRACE="1") as server,
        watched(server.target, OWN) as seen,
        server.working(1, 300, SENTENCE),
    ):
        alert = seen.until_alert("speculation_hurting")
        assert alert.severity is AlertSeverity.WARNING
        assert alert.fix == (("LLAMA_SPEC_TYPE", "none"),)


def diverge(server: BreakableServer, turns: int) -> None:
    """The last words of a long prompt change every time, as when somebody edits a message."""
    for turn in range(turns):
        ending = " ".join(tiny_models.SENTENCE[turn : turn + 4])
        server.complete(f"{SENTENCE} {SENTENCE} {SENTENCE} {SENTENCE} {SENTENCE} {ending}", 8, cache_prompt=True)


def test_a_recurrent_model_without_checkpoints_reads_conversations_from_their_start(tmp_path: Path) -> None:
    target = tiny_models.write_mamba(tmp_path / "mamba.gguf")
    flags = ("-np", "1", "--ctx-checkpoints", "0", "--cache-ram", "0")
    with BreakableServer(tmp_path, *flags, model=target) as server, watched(server.target, OWN) as seen:
        seen.until_live()
        diverge(server, 6)
        alert = seen.until_alert("prompt_cache_lost")
        assert "no checkpoint was left to go back to" in alert.summary
        assert alert.fix == (("LLAMA_ARG_CTX_CHECKPOINTS", None),)


def test_a_prompt_cache_that_is_not_used(tmp_path: Path) -> None:
    with BreakableServer(tmp_path) as server, watched(server.target, OWN) as seen:
        seen.until_live()
        converse(server, 5)
        until(lambda: seen.picture().backend.requests_finished == 5)
        time.sleep(1)
        assert seen.rules_raised() == set()
        converse(server, 8, cached=False)
        assert "tokens were read again" in seen.until_alert("prompt_cache_lost").summary


def start_short_of_memory(directory: Path, failed: Callable[[str], bool]) -> BreakableServer:
    """A server with so little address space that it fails in a certain way, and ends."""
    model = tiny_models.write_llama(directory / "target.gguf")
    server = BreakableServer(directory, "-np", "1", "-c", "200000", "--fit", "off", model=model)
    command = server.command
    for mebibytes in range(100, 800, 20):
        server.log.unlink(missing_ok=True)
        server.command = ["prlimit", f"--as={mebibytes << 20}", *command]
        server.start(wait=False)
        server.process.wait(30)
        if failed(server.log.read_text(errors="replace")):
            server.command = command
            return server
        assert server.process.returncode, "it started, and never failed in that way"
    pytest.fail("it never failed in that way")


def test_a_compute_buffer_that_does_not_fit(tmp_path: Path) -> None:
    server = start_short_of_memory(tmp_path, lambda log: "failed to allocate compute" in log)
    with watched(server.target, OWN) as seen:
        alert = seen.until_alert("out_of_memory")
        assert alert.severity is AlertSeverity.CRITICAL
        assert alert.fix == (("LLAMA_ARG_UBATCH", "256"),)
    with server, watched(server.target, OWN) as seen:
        seen.until_live()
        time.sleep(3)
        assert not any(alert.fix for alert in seen.picture().alerts.active)


def test_a_cache_for_which_there_is_no_memory(tmp_path: Path) -> None:
    server = start_short_of_memory(tmp_path, lambda log: "failed to allocate buffer for kv cache" in log)
    with watched(server.target, OWN) as seen:
        alert = seen.until_alert("out_of_memory")
        assert alert.severity is AlertSeverity.CRITICAL
        assert alert.fix == ()

"""Ctrl-C at random times, on a real service: nothing is begun after it, the settings from before run, and what was said
and the exit code agree with what was done."""

import random
import signal
import time
from collections.abc import Iterator

import pytest

from specdash.core.changes import ApplyKind
from specdash.core.errors import ExitCode
from specdash.core.paths import apply_journal_file, trial_file
from support.deployment import Rig, running_deployment
from support.waiting import until

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(300)]
LONGEST_S = 6.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TRIES = {"tune": 2, "ab": 1}
COMMANDS = {
    "tune": ("tune", "--yes", "--busy-ok", "--each", "2", "--tokens", "24", "--restarts", "6"),
    "ab": ("bench", "ab", "none", "current", "--service", "--yes", "--rounds", "4", "--each", "1", "--max-tokens", "8"),
}


@pytest.fixture(scope="module")
def deployed() -> Iterator[Rig]:
    with running_deployment("daemon") as item:
        yield item


@pytest.fixture
def rig(deployed: Rig) -> Iterator[Rig]:
    deployed.reset()
    yield deployed
    deployed.reset()


@pytest.mark.parametrize("command", COMMANDS)
def test_trials_end_at_a_signal_whenever_it_comes(rig: Rig, command: str) -> None:
    drawn = random.Random(command)
    for number in range(TRIES[command]):
        wait_s = drawn.uniform(0.0, LONGEST_S)
        process = rig.start_command(*COMMANDS[command])
        until(lambda process=process: trial_file(rig.env).exists() or process.poll() is not None, 60)  # type: ignore[misc]
        time.sleep(wait_s)
        assert process.poll() is None, process.communicate()
        asked_at = time.time()
        process.send_signal(SIGNALS[(number + list(COMMANDS).index(command)) % len(SIGNALS)])
        _, said = process.communicate(timeout=90)
        where = f"{command} after {wait_s:.3f} s:\n{said}"
        assert process.returncode == ExitCode.INTERRUPTED, where
        begun = [record.kind for record in rig.records() if record.at > asked_at]
        assert begun in ([], [ApplyKind.ROLLBACK]), where
        assert not trial_file(rig.env).exists(), where
        rig.assert_settled(version=rig.good_backend)


def test_an_apply_says_what_it_does_whenever_the_signal_comes(rig: Rig) -> None:
    drawn = random.Random("apply")
    took_s = 2.0
    for number in range(3):
        rig.reset()
        process = rig.start_command("apply", "--yes", "LLAMA_DRAFT_MAX=3")
        until(apply_journal_file(rig.env).exists, 60)
        began = time.monotonic()
        # Around its end, above all: there the two answers meet.
        time.sleep(drawn.uniform(0.0, took_s) if number % 2 else took_s * drawn.uniform(0.9, 1.1))
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=90)
        code = process.returncode
        if code == ExitCode.OK:
            took_s = min(took_s, time.monotonic() - began)
            assert "rolling back" not in said
            assert rig.values()["LLAMA_DRAFT_MAX"] == "3"
            rig.assert_settled()
        else:
            assert code in (ExitCode.ROLLED_BACK, ExitCode.INTERRUPTED), said
            # After its last word, it may still be on its way out.
            assert "rolling back" in said or out.startswith("applied"), said
            rig.assert_settled(version=None if out.startswith("applied") else rig.good_backend)

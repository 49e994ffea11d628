"""What signals do to a command: the first ends it, the others disturb nothing of what puts things back."""

from __future__ import annotations

import os
import signal

import pytest

from specdash.cli.signals import stopped_by_signals, undisturbed

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("number", STOPPING)
def test_a_terminal_that_goes_away_and_a_kill_end_a_run_as_ctrl_c_does(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), stopped_by_signals():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("second", STOPPING)
@pytest.mark.parametrize("first", STOPPING)
def test_whoever_is_impatient_does_not_disturb_what_puts_things_back(
    first: signal.Signals, second: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    put_back = []

    @stopped_by_signals()
    def run() -> None:
        try:
            os.kill(os.getpid(), first)
        finally:
            os.kill(os.getpid(), second)
            os.kill(os.getpid(), second)
            put_back.append(True)

    with pytest.raises(KeyboardInterrupt):
        run()
    assert put_back
    assert capfd.readouterr().err.count(f"specdash: {second.name}: already stopping") == 2


@pytest.mark.parametrize("number", STOPPING)
def test_a_run_that_has_ended_by_itself_puts_things_back_undisturbed(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    with stopped_by_signals() as over:
        over()
        os.kill(os.getpid(), number)
    assert f"specdash: {number.name}: already stopping" in capfd.readouterr().err


def test_an_apply_within_a_run_answers_in_its_own_words(capfd: pytest.CaptureFixture[str]) -> None:
    @stopped_by_signals()
    def run() -> None:
        with undisturbed():
            os.kill(os.getpid(), signal.SIGINT)
        assert "the recovery goes on to its end" in capfd.readouterr().err
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_what_was_ignored_still_is(number: signal.Signals) -> None:
    """SIGHUP is under nohup, and SIGINT in what a script runs in the background."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with stopped_by_signals():
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)

"""What signals do to a command: the first ends it, the others disturb nothing of what puts things back."""

import signal
import threading
from typing import Any

import pytest

from specdash.backend.steps import CancelledApplyError, Steps
from specdash.cli.signals import cancelled_by_signals, stopped_by_signals, undisturbed

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("number", STOPPING)
def test_a_terminal_that_goes_away_and_a_kill_end_a_run_as_ctrl_c_does(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), stopped_by_signals():
        signal.raise_signal(number)
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
            signal.raise_signal(first)
        finally:
            signal.raise_signal(second)
            signal.raise_signal(second)
            put_back.append(True)

    with pytest.raises(KeyboardInterrupt):
        run()
    assert put_back
    assert capfd.readouterr().err.count(f"specdash: {second.name}: already stopping") == 2


@pytest.mark.parametrize("number", STOPPING)
def test_a_run_that_has_ended_by_itself_puts_things_back_undisturbed_and_does_not_claim_to_stop(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    with stopped_by_signals() as run:
        run.over()
        signal.raise_signal(number)
    assert f"specdash: {number.name}: it has ended already" in capfd.readouterr().err


@pytest.mark.parametrize("number", STOPPING)
def test_a_stop_that_came_while_something_was_put_back_is_known_to_the_run(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    with stopped_by_signals() as run:
        with undisturbed() as asked:
            assert not asked.is_set()
            signal.raise_signal(number)
        assert "the recovery goes on to its end" in capfd.readouterr().err
        assert asked.is_set()
        assert run.asked.is_set()
        signal.raise_signal(number)
        assert "already stopping" in capfd.readouterr().err


class Transaction:
    """As much of an apply as signals know of, with its real decision."""

    def __init__(self) -> None:
        self.steps = Steps(lambda _: None)

    @property
    def undoing(self) -> bool:
        return self.steps.undoing

    def cancel(self) -> bool:
        return self.steps.cancel()


def interrupted(capfd: pytest.CaptureFixture[str]) -> str:
    signal.raise_signal(signal.SIGINT)
    return capfd.readouterr().err.strip().removeprefix("specdash: SIGINT: ")


def test_an_apply_says_that_it_rolls_back_only_where_it_does(capfd: pytest.CaptureFixture[str]) -> None:
    apply: Any = Transaction()
    with cancelled_by_signals(apply):
        assert interrupted(capfd) == "rolling back"
        assert interrupted(capfd) == "already rolling back, this does not stop it"
        with pytest.raises(CancelledApplyError):
            apply.steps.keep()
    kept: Any = Transaction()
    with cancelled_by_signals(kept):
        kept.steps.keep()
        for _ in range(2):
            assert interrupted(capfd).startswith("too late to roll back, the change is applied; `specdash rollb")
        kept.steps.wait(0)


def test_within_a_run_it_is_never_too_late_to_stop(capfd: pytest.CaptureFixture[str]) -> None:
    apply: Any = Transaction()
    with stopped_by_signals() as run:
        with cancelled_by_signals(apply):
            apply.steps.keep()
            assert interrupted(capfd) == "stopping: the previous settings are restored"
        assert run.asked.is_set()


@pytest.mark.parametrize("keeps_first", [True, False])
def test_the_end_of_an_apply_and_a_cancel_from_another_thread_never_both_win(keeps_first: bool) -> None:
    for _ in range(200):
        steps = Steps(lambda _: None)
        granted: list[bool] = []
        thread = threading.Thread(target=lambda: granted.append(steps.cancel()))  # noqa: B023 - joined below
        kept = True
        if not keeps_first:
            thread.start()
        try:
            steps.keep()
        except CancelledApplyError:
            kept = False
        if keeps_first:
            thread.start()
        thread.join()
        assert granted == [not kept]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_what_was_ignored_still_is(number: signal.Signals) -> None:
    """SIGHUP is under nohup, and SIGINT in what a script runs in the background."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with stopped_by_signals():
            signal.raise_signal(number)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)

"""Availability alerts on the real llama-server, broken as it breaks at night; each is over once all is well again."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from specdash.core.records import AlertSeverity
from specdash.insight.rules.catalogue import Rule, shipped, with_user_limits
from support.faults import DRAFTING, BreakableServer, Watched, watched
from support.waiting import until

pytestmark = [pytest.mark.llama_server, pytest.mark.slow]

QUICK = """
[slot_hung]
limits.no_token_s = 3
[loading_too_long]
limits.seconds = 2
[endpoint_unusable]
raise_after_s = 0
"""
"""The rules as they are, in less time."""


def quick() -> tuple[Rule, ...]:
    return with_user_limits(shipped(), QUICK)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BreakableServer]:
    with BreakableServer(tmp_path, *DRAFTING) as running:
        yield running


@pytest.fixture
def seen(server: BreakableServer) -> Iterator[Watched]:
    """The server watched, live and at peace."""
    with watched(server.target, quick()) as state:
        state.until_live()
        assert state.rules_raised() == set()
        yield state


def test_a_killed_server_is_down_until_it_is_back_which_is_a_restart(server: BreakableServer, seen: Watched) -> None:
    pid = server.process.pid
    server.kill()
    alert = seen.until_alert("backend_down")
    assert alert.severity is AlertSeverity.CRITICAL
    until(lambda: f"process {pid} has ended" in _summary(seen, "backend_down"))
    assert seen.picture().alerts.cause.startswith("Server is down: ")
    server.start()
    seen.until_over("backend_down")
    assert "crash_loop" not in seen.rules_raised()


def test_a_stopped_server_hangs_until_it_goes_on(server: BreakableServer, seen: Watched) -> None:
    with server.stopped():
        alert = seen.until_alert("server_hung")
        assert f"process {server.process.pid} was stopped" in alert.summary
        assert "backend_down" not in seen.rules_raised()
    seen.until_over("server_hung")
    assert seen.rules_raised() == {"server_hung"}


def test_inference_that_is_stuck_hangs_its_slot_while_the_server_answers(
    server: BreakableServer, seen: Watched
) -> None:
    with server.working(tokens=100_000):
        until(lambda: any(slot.decoded for slot in seen.picture().backend.slots or ()))
        with server.stuck():
            alert = seen.until_alert("slot_hung")
            assert alert.subject.startswith("slot ")
            assert "server_hung" not in seen.rules_raised()
        seen.until_over("slot_hung")


def test_a_port_that_was_stolen_is_told_and_explains_the_rest(server: BreakableServer, seen: Watched) -> None:
    with server.port_stolen():
        seen.until_alert("port_taken")
        assert seen.picture().alerts.cause_key == ("port_taken", "")
    seen.until_alert("backend_down")


def test_a_server_that_takes_long_to_load_is_told(tmp_path: Path) -> None:
    server = BreakableServer(tmp_path)
    with server.stuck_loading(), watched(server.target, quick()) as seen:
        assert "has been loading for" in seen.until_alert("loading_too_long").summary
        assert seen.rules_raised() == {"loading_too_long"}
    server.kill()


@pytest.mark.parametrize(("flags", "subject"), [(("--no-slots",), "/slots"), (("--api-key", "canary"), "API key")])
def test_what_flags_take_away_is_an_alert(tmp_path: Path, flags: tuple[str, ...], subject: str) -> None:
    with BreakableServer(tmp_path, *flags) as server:
        with watched(server.target, quick()) as seen:
            alert = seen.until_alert("endpoint_unusable")
            assert alert.subject == subject
            assert "canary" not in alert.to_json()
            assert seen.rules_raised() == {"endpoint_unusable"}
        if subject == "API key":
            with watched(replace(server.target, api_key="canary"), quick()) as seen:
                seen.until_live()
                assert seen.rules_raised() == set()


def test_a_server_without_metrics_is_told(tmp_path: Path) -> None:
    server = BreakableServer(tmp_path)
    server.command.remove("--metrics")
    with server, watched(server.target, quick()) as seen:
        alert = seen.until_alert("endpoint_unusable")
        assert alert.fix == (("LLAMA_ARG_ENDPOINT_METRICS", "1"),)
        assert seen.rules_raised() == {"endpoint_unusable"}


def test_a_server_asleep_is_no_fault(tmp_path: Path) -> None:
    with BreakableServer(tmp_path, "--sleep-idle-seconds", "1") as server, watched(server.target, quick()) as seen:
        server.complete()
        seen.until_live()
        until(lambda: "entering sleeping state" in server.log.read_text(errors="replace"))
        server.complete()
        until(lambda: server.log.read_text(errors="replace").count("entering sleeping state") >= 2)
        assert seen.rules_raised() == set()


def _summary(seen: Watched, rule: str) -> str:
    alert = seen.alert(rule)
    return alert.summary if alert is not None else ""

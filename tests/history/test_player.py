"""A replay in a thread of its own."""

import sqlite3
from collections.abc import Iterator

import pytest

from history.test_replay import WALL, Live, outage
from specdash.history.player import SPEEDS, Player
from support.waiting import until


@pytest.fixture(scope="module")
def live() -> Live:
    return outage()


@pytest.fixture
def player(live: Live) -> Iterator[Player]:
    live.record.is_closed = False
    player = Player(live.replay())
    yield player
    player.close()
    player.join(10)
    assert live.record.is_closed


def test_it_goes_where_it_is_told_and_back(player: Player) -> None:
    player.seek(WALL + 100)
    assert player.position == WALL + 100
    until(lambda: not player.seeking)
    assert player.session.position == WALL + 100
    player.step(-20.0)
    player.step(-20.0)
    player.step(5.0)
    until(lambda: not player.seeking)
    assert player.session.position == WALL + 65


def test_the_ends_are_the_records(player: Player) -> None:
    player.step(1e6)
    until(lambda: not player.seeking)
    assert player.position == player.session.last
    assert player.at_end
    player.step(-1e6)
    until(lambda: not player.seeking)
    assert player.position == player.session.first


def test_it_plays_at_its_speed_until_it_is_stopped(player: Player) -> None:
    player.seek(WALL + 100)
    for _ in range(20):
        player.faster(1)
    assert player.speed == SPEEDS[-1]
    player.toggle()
    until(lambda: player.session.position >= WALL + 130)
    player.toggle()
    assert not player.playing
    seen = player.version
    until(lambda: player.session.is_deep)
    assert player.version > seen
    player.faster(-1)
    assert player.speed == SPEEDS[-2]


def test_it_stops_at_the_end(player: Player) -> None:
    player.seek(WALL + 250)
    player.speed = SPEEDS[-1]
    player.toggle()
    until(lambda: not player.playing)
    assert player.position == player.session.last


def test_it_stops_where_it_was_told_to(live: Live) -> None:
    player = Player(live.replay(), until=WALL + 220)
    player.seek(WALL + 200)
    player.speed = SPEEDS[-1]
    player.toggle()
    until(lambda: not player.playing)
    assert player.position == WALL + 220
    player.close()
    player.join(10)


def test_events_are_gone_to_from_where_the_last_one_is(player: Player) -> None:
    at = sorted({event.at for event in player.session.events if event.at < player.session.last})
    found = [player.to_event(-1) for _ in at]
    assert [event.at for event in found if event is not None] == at[::-1]
    assert player.to_event(-1) is None
    until(lambda: not player.seeking)
    assert player.position == at[0]


def test_while_nothing_is_wanted_it_goes_deeper_and_shows_the_same_moment(player: Player) -> None:
    player.seek(WALL + 250)
    until(lambda: player.session.is_deep)
    assert player.position == WALL + 250
    assert "backend_down" in [alert.rule for alert in player.session.picture().alerts.past]


def test_a_record_that_cannot_be_read_is_told_and_tried_again(player: Player, live: Live) -> None:
    sound = live.record.readings

    def broken(*_: object) -> object:
        raise sqlite3.OperationalError("disk I/O error")

    live.record.readings = broken  # type: ignore[method-assign, assignment]
    player.seek(WALL + 10)
    until(lambda: bool(player.problem))
    assert player.problem == "disk I/O error"
    assert not player.playing
    live.record.readings = sound  # type: ignore[method-assign]
    player.seek(WALL + 20)
    until(lambda: not player.seeking)
    assert (player.problem, player.session.position) == ("", WALL + 20)

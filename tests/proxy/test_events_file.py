"""The events file: whole lines, rotation, and a disk that does not take them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from specdash.proxy.telemetry import EventsFile, events_path


def test_lines_are_appended_to_a_private_file_whose_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "events.jsonl"
    file = EventsFile(path, 1000)
    file.write('{"n":1}')
    assert path.read_text() == '{"n":1}\n'
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    file.write('{"n":2}')
    EventsFile(path, 1000).write('{"n":3}')
    assert path.read_text().splitlines() == ['{"n":1}', '{"n":2}', '{"n":3}']


def test_a_full_file_moves_aside_and_three_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    file = EventsFile(path, 40)
    for number in range(30):
        file.write(f'{{"number":{number:04}}}')
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["events.jsonl", "events.jsonl.1", "events.jsonl.2", "events.jsonl.3"]
    kept = [(tmp_path / name).read_text() for name in reversed(names)]
    lines = "".join(kept).splitlines()
    assert lines == [f'{{"number":{number:04}}}' for number in range(30 - len(lines), 30)]
    assert all(len(text) <= 40 and text.endswith("\n") for text in kept)


def test_a_disk_that_fails_loses_events_says_so_once_and_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "place").write_text("a file, where a folder should be")
    path = tmp_path / "place" / "events.jsonl"
    file = EventsFile(path, 1000)
    for _ in range(4):
        file.write("lost")
    assert file.lost == 4
    assert len(caplog.records) == 1
    (tmp_path / "place").unlink()
    file.write("kept")
    assert path.read_text() == "kept\n"


@pytest.mark.parametrize(
    ("setting", "expected"),
    [(None, Path("/state/specdash/proxy-events.jsonl")), ("off", None), ("/x/y.jsonl", Path("/x/y.jsonl"))],
)
def test_where_events_go(setting: str | None, expected: Path | None) -> None:
    assert events_path(setting, {"XDG_STATE_HOME": "/state"}) == expected


def test_a_file_that_is_moved_away_is_begun_anew_and_one_that_is_none_is_never_moved(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    file = EventsFile(path, 1000)
    file.write("old")
    path.rename(tmp_path / "moved")
    file.write("new")
    assert (path.read_text(), (tmp_path / "moved").read_text()) == ("new\n", "old\n")
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    device = EventsFile(link, 10)
    for _ in range(5):
        device.write("x" * 50)
    assert link.is_symlink()
    assert device.lost == 0

"""What drafting cost, from a real server's log."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdash.bench.load import drive
from specdash.bench.load.drive import DraftTime

LOG = (Path(__file__).parents[1] / "data" / "logs" / "draft_simple_same_lv4.log").read_bytes()
FIRST, SECOND, _ = [at for at in range(len(LOG)) if LOG.startswith(b"statistics     draft-simple", at)]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "_DRAFT_TIME_PATIENCE_S", 0.0)


def written(directory: Path, data: bytes) -> Path:
    file = directory / "server.log"
    file.write_bytes(data)
    return file


def test_what_the_totals_grew_by_is_what_it_cost(tmp_path: Path) -> None:
    upto = LOG.index(b"\n", FIRST) + 1
    file = written(tmp_path, LOG[:upto])
    watch = DraftTime(str(file))
    with file.open("ab") as opened:
        opened.write(LOG[upto : LOG.index(b"\n", SECOND) + 1])
    assert watch.seconds(176) == pytest.approx(((0.035 + 466.605 + 0.039) - (0.021 + 241.856 + 0.023)) / 1000)


def test_a_warm_up_is_left_out(tmp_path: Path) -> None:
    file = written(tmp_path, b"")
    watch = DraftTime(str(file))
    file.write_bytes(LOG[: LOG.index(b"\n", FIRST) + 1])
    watch.begin_again(176)
    file.write_bytes(LOG[: LOG.index(b"\n", SECOND) + 1])
    assert watch.seconds(176) == pytest.approx((466.679 - 241.9) / 1000)


def test_a_log_that_counts_other_requests_too_tells_nothing(tmp_path: Path) -> None:
    file = written(tmp_path, b"")
    watch = DraftTime(str(file))
    file.write_bytes(LOG)
    assert watch.seconds(176) is None
    assert "360 drafted tokens where 176 were measured" in watch.why


def test_a_log_without_the_lines_says_what_would_bring_them(tmp_path: Path) -> None:
    watch = DraftTime(str(written(tmp_path, b"nothing\n")))
    assert watch.seconds(10) is None
    assert "--log-verbosity 4" in watch.why


def test_without_drafts_nothing_was_spent(tmp_path: Path) -> None:
    assert DraftTime(str(written(tmp_path, b""))).seconds(0) == 0.0


def test_a_log_that_cannot_be_read_is_no_failure(tmp_path: Path) -> None:
    watch = DraftTime(str(tmp_path / "none"))
    assert watch.seconds(5) is None
    assert "No such file" in watch.why

"""Folders of results."""

import io
import json
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from specdash.bench.load.samples import BenchSample
from specdash.bench.report import Results, StepProgress, bench_dir, sample_json
from specdash.core.errors import InputError, NotWrittenError
from support.clock import Clock


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file may grow beyond 64 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_results_of_one_second_do_not_share_a_folder(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    folders = [Results.new("live a/b", env=env).directory for _ in range(3)]
    assert len(set(folders)) == 3
    assert all(folder.parent == bench_dir(env) and "live-a-b" in folder.name for folder in folders)


def test_a_folder_that_is_named_must_be_new_or_empty(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert Results.new("x", str(empty)).directory == empty
    (empty / "a").touch()
    with pytest.raises(InputError, match="is not empty"):
        Results.new("x", str(empty))
    with pytest.raises(InputError, match="is a file"):
        Results.new("x", str(empty / "a"))


def test_a_folder_that_cannot_be_made_is_said() -> None:
    with pytest.raises(NotWrittenError, match="/proc/"):
        Results.new("x", "/proc/nowhere/results")


def test_samples_are_on_the_disk_as_soon_as_they_are_added(tmp_path: Path) -> None:
    with Results.new("x", str(tmp_path / "out")) as results:
        results.add({"a": 1})
        assert (tmp_path / "out" / "samples.jsonl").read_text(encoding="utf-8") == '{"a":1}\n'
        results.add({"a": 2})
    assert len((tmp_path / "out" / "samples.jsonl").read_text(encoding="utf-8").splitlines()) == 2


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_is_trouble_and_no_end_and_the_old_report_stays(tmp_path: Path) -> None:
    with Results.new("x", str(tmp_path / "out")) as results:
        results.write("report.md", "old\n")
        results.write("report.md", "new " * 100)
        for number in range(20):
            results.add({"number": number, "padding": "x" * 40})
        assert results.trouble is not None
        assert "report.md was not written" in str(results.trouble)
    assert (tmp_path / "out" / "report.md").read_text(encoding="utf-8") == "old\n"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.md", "samples.jsonl"]


def test_an_empty_folder_is_discarded_and_one_with_results_is_not(tmp_path: Path) -> None:
    results = Results.new("x", str(tmp_path / "a"))
    results.discard()
    assert not (tmp_path / "a").exists()
    kept = Results.new("x", str(tmp_path / "b"))
    kept.write("report.md", "x")
    kept.discard()
    assert (tmp_path / "b" / "report.md").exists()


def test_times_of_a_sample_are_told_since_the_start() -> None:
    told = sample_json(BenchSample("p", "k", 0, 100.5, 100.75, done_s=102.0), 100.0, boot=3)
    assert (told["boot"], told["intended_s"], told["sent_s"], told["first_s"], told["done_s"]) == (
        3,
        0.5,
        0.75,
        None,
        2.0,
    )
    assert json.loads(json.dumps(told))["prompt"] == "p"


# Progress of long measurements.


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_one_line_is_kept_up_to_date_and_cleared() -> None:
    screen, clock = Terminal(), Clock(0.0)
    progress = StepProgress(10, stream=screen, clock=clock)
    clock.now = 20.0
    progress.show(5, "prose-2")
    progress.end()
    assert screen.getvalue() == "\r\x1b[K   50 %  prose-2  20 s left\r\x1b[K"


def test_in_a_file_a_line_a_minute_is_enough() -> None:
    file, clock = io.StringIO(), Clock(0.0)
    progress = StepProgress(100, stream=file, clock=clock)
    for number in range(1, 100):
        clock.now = number * 1.5
        progress.show(number, "x")
    assert file.getvalue().splitlines() == ["specdash:  40 %  x  1 min 30 s left", "specdash:  80 %  x  30 s left"]


def test_before_there_is_a_pace_nothing_is_promised() -> None:
    progress = StepProgress(100, stream=io.StringIO(), clock=Clock(0.0))
    assert progress.left_s(0) is None
    assert progress.left_s(1) is None


def test_quiet_shows_no_progress_but_says_what_must_be_said() -> None:
    screen = Terminal()
    progress = StepProgress(2, quiet=True, stream=screen)
    progress.show(1, "x")
    progress.say("trouble")
    assert screen.getvalue() == "specdash: trouble\n"

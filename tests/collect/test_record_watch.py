"""The parameters of a server whose engine was swapped, from the record that the new one leaves."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import psutil

from specdash.collect.record_watch import RecordWatch
from specdash.core.paths import run_records_dir
from specdash.core.run_record import RunRecord
from specdash.core.start_check import Drafting, StartCheck
from specdash.core.target import Target

if TYPE_CHECKING:
    from pathlib import Path

URL = "http://127.0.0.1:8123"


def leave(directory: Path, name: str, longest: str, url: str = URL) -> Path:
    """A record of this very process."""
    directory.mkdir(parents=True, exist_ok=True)
    started = psutil.Process().create_time()
    record = RunRecord(os.getpid(), started, url, "xllamacpp 1", parameters=(("spec-draft-n-max", longest),))
    path = directory / name
    path.write_text(record.to_json(), encoding="utf-8")
    return path


def test_a_new_record_is_told_once_and_other_servers_never(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    directory = run_records_dir(env)
    told: list[Target] = []
    watch = RecordWatch(Target(URL), told.append, env)
    watch.step()
    first = leave(directory, "1.json", "4")
    leave(directory, "9.json", "64", "http://127.0.0.1:9999")
    watch.step()
    watch.step()
    first.unlink()
    watch.step()
    leave(directory, "2.json", "12")
    watch.step()
    watch.step()
    assert [target.parameters for target in told] == [(("spec-draft-n-max", "4"),), (("spec-draft-n-max", "12"),)]


def test_between_two_engines_the_old_parameters_stand(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    told: list[Target] = []
    watch = RecordWatch(Target(URL), told.append, env)
    path = leave(run_records_dir(env), "1.json", "4")
    watch.step()
    path.unlink()
    watch.step()
    assert len(told) == 1


def test_a_verdict_that_is_written_into_the_record_later_is_told(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    told: list[Target] = []
    watch = RecordWatch(Target(URL), told.append, env)
    path = leave(run_records_dir(env), "1.json", "4")
    record = RunRecord.from_json(path.read_text(encoding="utf-8"))
    assert record is not None
    for pending in (True, False):
        check = StartCheck(Drafting.FAILED, 1.0, "because", "do that", pending=pending)
        # Into the same file: the directory, whose time tells of new files, does not change.
        path.write_text(replace(record, start_check=check).to_json(), encoding="utf-8")
        watch.step()
    assert [target.start_check.pending for target in told if target.start_check is not None] == [True, False]

"""Folders of results: samples as they come, reports in whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from specdash.control import safe_file
from specdash.core.errors import InputError, NotWrittenError
from specdash.core.paths import state_dir

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.bench.samples import Sample

SAMPLES = "samples.jsonl"
REPORT_JSON = "report.json"
REPORT_MD = "report.md"
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_NAMES = 1000


def bench_dir(env: Mapping[str, str] = os.environ) -> Path:
    """Where results go that are not told to go elsewhere."""
    return state_dir(env) / "bench"


class Results:
    """One folder, its files 0600. Use as a context manager.

    What cannot be written while something is measured is remembered in `trouble` and does not end the measurement.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.trouble: NotWrittenError | None = None
        self._samples: int | None = None

    @classmethod
    def new(cls, name: str, out: str | None = None, env: Mapping[str, str] = os.environ) -> Self:
        """The folder `out`, which must be new or empty, else one named after the time below `bench_dir`. Raises
        `InputError`, or `NotWrittenError`."""
        if out is not None:
            directory = Path(out).expanduser()
            if directory.exists() and not directory.is_dir():
                raise InputError(f"--out {out}: is a file; name a folder")
            return cls._made(directory, empty=True)
        base = bench_dir(env) / f"{time.strftime('%Y%m%d-%H%M%S')}-{_UNFIT.sub('-', name)}"
        for number in range(_MOST_NAMES):
            directory = base if not number else base.with_name(f"{base.name}-{number + 1}")
            if not directory.exists():
                return cls._made(directory, empty=False)
        raise NotWrittenError(f"{base.parent} has {_MOST_NAMES} results of this second; name a folder with --out")

    @classmethod
    def _made(cls, directory: Path, *, empty: bool) -> Self:
        try:
            safe_file.make_directories(directory)
            if empty and any(directory.iterdir()):
                raise InputError(f"--out {directory}: is not empty; name a new folder, or empty it")
        except OSError as error:
            raise safe_file.not_written(directory, error) from None
        return cls(directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Samples are on the disk after this."""
        if self._samples is not None:
            with contextlib.suppress(OSError):
                os.fsync(self._samples)
            os.close(self._samples)
            self._samples = None

    def discard(self) -> None:
        """Leave no empty folder behind; one with anything in it stays."""
        self.close()
        with contextlib.suppress(OSError):
            self.directory.rmdir()

    def add(self, value: Mapping[str, Any]) -> None:
        """One line of samples.jsonl, at once, so that nothing is lost by a kill."""
        path = self.directory / SAMPLES
        line = json.dumps(value, separators=(",", ":")).encode() + b"\n"
        try:
            if self._samples is None:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._samples = os.open(path, flags, 0o600)
            view = memoryview(line)
            while view:
                view = view[os.write(self._samples, view) :]
        except OSError as error:
            self.trouble = self.trouble or safe_file.not_written(path, error)

    def write(self, name: str, text: str) -> None:
        """A whole file, the old version or the new one whatever happens."""
        path = self.directory / name
        try:
            safe_file.replace(path, text.encode())
        except OSError as error:
            self.trouble = self.trouble or safe_file.not_written(path, error)

    def write_json(self, name: str, value: Any) -> None:
        """The value as JSON."""
        self.write(name, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def sample_json(sample: Sample, origin_s: float, **more: Any) -> dict[str, Any]:
    """A sample as JSON, its times in seconds since `origin_s` of the monotonic clock. It holds no text of anybody."""
    told = asdict(sample)
    for name in ("intended_s", "sent_s", "first_s", "done_s"):
        value = told[name]
        told[name] = None if value is None else round(value - origin_s, 6)
    return {**more, **told}

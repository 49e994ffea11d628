"""The one form of what a measurement found: an object for programs, lines for the terminal, a page, and charts."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

from msgspec import Struct

from specdash.core.errors import InputError, NotWrittenError
from specdash.core.paths import state_dir
from specdash.core.structs import json_of
from specdash.system import files
from specdash.system.text import UNKNOWN, duration, file_timestamp, markdown_table, percent, significant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from specdash.bench.load.samples import BenchSample


# Folders of results: samples as they come, reports in whole or not at all.

SAMPLES = "samples.jsonl"
REPORT_JSON = "report.json"
REPORT_MD = "report.md"
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_NAMES = 1000


def bench_dir(env: Mapping[str, str] = os.environ) -> Path:
    """Where results go by default."""
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
        base = bench_dir(env) / f"{file_timestamp(time.time())}-{_UNFIT.sub('-', name)}"
        for number in range(_MOST_NAMES):
            directory = base if not number else base.with_name(f"{base.name}-{number + 1}")
            if not directory.exists():
                return cls._made(directory, empty=False)
        raise NotWrittenError(f"{base.parent} has {_MOST_NAMES} results of this second; name a folder with --out")

    @classmethod
    def _made(cls, directory: Path, *, empty: bool) -> Self:
        with files.writing(directory, NotWrittenError):
            files.make_directories(directory)
            if empty and any(directory.iterdir()):
                raise InputError(f"--out {directory}: is not empty; name a new folder, or empty it")
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
            files.write_all(self._samples, line)
        except OSError as error:
            self.trouble = self.trouble or NotWrittenError(files.not_written(path, error))

    def write(self, name: str, text: str) -> None:
        """A whole file, the old version or the new one no matter what happens."""
        path = self.directory / name
        try:
            files.replace(path, text.encode())
        except OSError as error:
            self.trouble = self.trouble or NotWrittenError(files.not_written(path, error))

    def write_json(self, name: str, value: Any) -> None:
        self.write(name, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def sample_json(sample: BenchSample, origin_s: float, **more: Any) -> dict[str, Any]:
    """A sample as JSON, its times in seconds since `origin_s` of the monotonic clock. It holds no text of anybody."""
    row = json_of(sample)
    for name in ("intended_s", "sent_s", "first_s", "done_s"):
        value = row[name]
        row[name] = None if value is None else round(value - origin_s, 6)
    return {**more, **row}


class BenchReport(Struct, frozen=True):
    """`document` is report.json, `lines` are what a terminal shows, `page` is report.md."""

    document: dict[str, Any]
    lines: list[str]
    page: str

    def save(self, results: Results) -> None:
        """All of it into the folder; what cannot be written is its trouble."""
        results.write_json(REPORT_JSON, self.document)
        results.write(REPORT_MD, self.page)

    def show(self, results: Results, *, as_json: bool) -> None:
        """Print the lines, or the document with the folder that it is in."""
        if as_json:
            document = {**self.document, "folder": str(results.directory)}
            print(json.dumps(document, indent=1, ensure_ascii=False))
        else:
            print("\n".join(self.lines))


def bullets(lines: Iterable[str]) -> list[str]:
    """The lines as a list, in Markdown and on the terminal alike."""
    return [f"- {line}" for line in lines]


def section(title: str, body: str | Iterable[str]) -> str:
    """A part of a page: a text, or lines for a list."""
    text = body if isinstance(body, str) else "\n".join(bullets(body))
    return f"## {title}\n" + (f"\n{text}" if text else "")


def page(title: str, *parts: str) -> str:
    """A page in Markdown; parts that are empty are left out."""
    return "\n\n".join([f"# {title}", *filter(None, parts)]) + "\n"


def measured_on(facts: Mapping[str, Any]) -> str:
    """The part of a page that says on what results depend beside the configuration (`compare.fingerprint`)."""
    rows = ([key, str(value)] for key, value in dict(facts.get("fingerprint", {})).items())
    return section("Measured on", markdown_table([["", ""], *rows]))


def bounds(low: float | None, high: float | None) -> str:
    """An interval of a speed: `790.1 to 830.2`."""
    return UNKNOWN if low is None or high is None else f"{significant(low, 4)} to {significant(high, 4)}"


# How far a long measurement is, on stderr: one line kept up to date on a terminal, else a line now and then.

_BETWEEN_LINES_S = 60.0
_MOST_WORDS = 60
_FIRST_SHARE = 0.02
"""Less is too little to tell how long the rest takes."""


class RunningLine:
    """One line that a terminal shows in place until it ends; nothing of it is written to anything else."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self._open = False
        self.live = self.stream.isatty()

    def show(self, line: str) -> None:
        """Put the line in the place of the last."""
        if self.live:
            print(f"\r\x1b[K{line}", end="", file=self.stream, flush=True)
            self._open = True

    def say(self, words: str) -> None:
        self.end()
        print(f"specdash: {words}", file=self.stream, flush=True)

    def end(self) -> None:
        if self._open:
            print("\r\x1b[K", end="", file=self.stream, flush=True)
            self._open = False


@dataclasses.dataclass(slots=True)
class StepProgress:
    """Shows `done` of `total` steps of about the same length, and how long the rest will take.

    Where steps differ, count what they have in common (requests, tokens), or give `left_s` to `show`. Nothing of a
    progress is shown when `quiet`, only messages.
    """

    total: float
    quiet: bool = False
    stream: TextIO = dataclasses.field(default_factory=lambda: sys.stderr)
    clock: Callable[[], float] = time.monotonic
    _began: float = dataclasses.field(init=False)
    _said: float = dataclasses.field(init=False)
    _line: RunningLine = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self._began = self._said = self.clock()
        self._line = RunningLine(self.stream)

    def left_s(self, done: float) -> float | None:
        """Seconds until all is done, at the pace so far; None while that is a guess."""
        if self.total <= 0 or done < _FIRST_SHARE * self.total or done <= 0:
            return None
        return (self.clock() - self._began) / done * max(0.0, self.total - done)

    def show(self, done: float, words: str = "", left_s: float | None = None) -> None:
        """So far; `words` say what is going on."""
        if self.quiet:
            return
        left = left_s if left_s is not None else self.left_s(done)
        share = min(1.0, done / self.total) if self.total > 0 else 0.0
        line = f"  {percent(share):>5}  {words[:_MOST_WORDS]}" + (
            f"  {duration(left)} left" if left is not None else ""
        )
        self._line.show(line)
        if not self._line.live and self.clock() - self._said >= _BETWEEN_LINES_S:
            self._said = self.clock()
            print(f"specdash:{line[1:]}", file=self.stream, flush=True)

    def say(self, words: str) -> None:
        self._line.say(words)

    def end(self) -> None:
        self._line.end()

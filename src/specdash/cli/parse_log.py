"""`specdash parse-log`: everything that a llama-server log shows."""

from __future__ import annotations

import gc
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import IO, TYPE_CHECKING

from specdash.core.errors import ExitCode, InputError
from specdash.core.log_places import PLACES, program_and_name

if TYPE_CHECKING:
    import argparse

    from specdash.insight.log.log_summary import LogSummary

_PIECE_BYTES = 1024 * 1024
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd")
"""How files of gzip, bzip2, xz and zstd begin."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help=f"the log of a llama-server: {PLACES}")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object (docs/parse-log.md)")


def run(args: argparse.Namespace) -> int:
    """Read the file and print the report.

    Raises:
        InputError: the file cannot be read.
    """
    # Facts and requests hold no cycles, and are so many that looking for cycles would take a tenth of the time.
    gc.disable()
    try:
        _report(args)
    finally:
        gc.enable()
    return ExitCode.OK


def _report(args: argparse.Namespace) -> None:
    # Here, so that `--help` and bad arguments do not pay for the grammar.
    from specdash.export.log_report import json_lines, text_lines

    summary = _read(args.file)
    lines = json_lines(summary, args.file) if args.json else text_lines(summary, args.file)
    if isinstance(sys.stdout, TextIOWrapper):
        # The log's text may hold what a terminal of another encoding cannot show.
        sys.stdout.reconfigure(errors="replace")
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


def _read(name: str) -> LogSummary:
    if program_and_name(name) is not None:
        from tempfile import TemporaryFile

        from specdash.collect.log_source import print_whole

        with TemporaryFile() as file:
            print_whole(name, file)
            file.seek(0)
            return _summarise(file)
    try:
        if name == "-":
            return _summarise(sys.stdin.buffer)
        if Path(name).is_dir():
            raise InputError(f"log file {name!r} is a directory; name the file in it")
        with Path(name).open("rb") as file:
            return _summarise(file)
    except OSError as error:
        raise InputError(f"log file {name!r} cannot be read: {error.strerror}; check the path") from error


def _summarise(file: IO[bytes]) -> LogSummary:
    from specdash.insight.log.log_summary import LogSummary
    from specdash.llama.log.parser import LogParser

    parser, summary = LogParser(), LogSummary()
    while data := file.read(_PIECE_BYTES):
        if not summary.lines and data.startswith(_COMPRESSED):
            raise InputError(
                "the log is compressed: `zcat FILE | specdash parse-log -` reads it, as do bzcat and zstdcat"
            )
        summary.add(parser.feed(data))
    summary.add(parser.close())
    summary.close()
    return summary

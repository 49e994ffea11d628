"""The file of finished applies: read whatever can be read, append one line that is on the disk when we return."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from specdash.core.applies import ApplyRecord
from specdash.core.errors import InputError, NotWrittenError

if TYPE_CHECKING:
    from pathlib import Path


def read_records(path: Path) -> tuple[ApplyRecord, ...]:
    """All records, oldest first; lines that are none are passed over. Raises `InputError` for an unreadable file."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; the list of applies cannot be read") from None
    found = (ApplyRecord.from_json(line.decode("utf-8", "replace")) for line in lines if line.strip())
    return tuple(one for one in found if one is not None)


def next_number(records: tuple[ApplyRecord, ...]) -> int:
    """The number of the apply that comes next."""
    return max((one.number for one in records), default=0) + 1


def append_record(path: Path, record: ApplyRecord) -> None:
    """Add one line, mode 0600, synced. Raises `NotWrittenError`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            # A line that was cut short by a full disk must not swallow this one.
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            line = (b"\n" if torn else b"") + record.to_json().encode() + b"\n"
            if file.write(line) != len(line):
                raise NotWrittenError(f"{path}: the disk is full; apply {record.number} is not in the list of applies")
            os.fsync(descriptor)
    except OSError as error:
        why = error.strerror or str(error)
        raise NotWrittenError(f"{path}: {why}; apply {record.number} is not in the list of applies") from None

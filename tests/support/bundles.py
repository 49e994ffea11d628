"""Looking into an incident bundle, down to the last compressed page of its database."""

import io
import json
import sqlite3
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specdash.core.sources import encode
from specdash.history.store import Store


def members(archive: Path | bytes) -> dict[str, bytes]:
    """The files of a bundle, without the directory that they are all in."""
    data = archive if isinstance(archive, bytes) else archive.read_bytes()
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
        found = {}
        for info in tar.getmembers():
            file = tar.extractfile(info)
            assert file is not None, info.name
            found[info.name.partition("/")[2]] = file.read()
    return found


def manifest(archive: Path | bytes) -> Any:
    """Its manifest."""
    return json.loads(members(archive)["manifest.json"])


def texts(found: dict[str, bytes], scratch: Path) -> Iterator[tuple[str, bytes]]:
    """Everything that can be read in a bundle: the members, and what is packed inside the database."""
    yield from found.items()
    if "history.db" in found:
        path = scratch / "looked-at.db"
        path.write_bytes(found["history.db"])
        yield from ((f"history.db {name}", data) for name, data in _database(path))


def _database(path: Path) -> Iterator[tuple[str, bytes]]:
    with sqlite3.connect(path) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for row in connection.execute(f"SELECT * FROM {table}"):  # noqa: S608 - a name from the database itself
                for cell in row:
                    data = cell if isinstance(cell, bytes) else str(cell).encode()
                    yield table, data
                    yield f"{table}, unpacked", _unpacked(data)
    connection.close()
    with Store(path) as store:
        for target in store.targets():
            span = store.span(target)
            if span is not None:
                for at, reading in store.readings(target, span[0] - 1, span[1] + 1):
                    yield f"reading at {at}", json.dumps(encode(reading), ensure_ascii=False).encode()


def _unpacked(data: bytes) -> bytes:
    try:
        return zlib.decompress(data)
    except zlib.error:
        return b""

"""Looking into an incident bundle."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any


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

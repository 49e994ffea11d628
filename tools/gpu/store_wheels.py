"""Rewrites the wheels of a folder without compression, so that one xz archive of them all is a third smaller.

usage: store_wheels.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from zipfile import ZIP_STORED, ZipFile

for wheel in sorted(Path(sys.argv[1]).glob("*.whl")):
    stored = wheel.with_suffix(".stored")
    with ZipFile(wheel) as packed, ZipFile(stored, "w", ZIP_STORED) as plain:
        for entry in packed.infolist():
            plain.writestr(entry, packed.read(entry), compress_type=ZIP_STORED)
    stored.replace(wheel)

"""What users read names only what users know."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXTS = sorted(
    path
    for folder in ("src", "docs")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".md", ".toml", ".svg", ".json", ".txt"}
)
UNKNOWN_SOURCES = re.compile(
    r"\bseed 0\d\d\b|\bseeds?['’]|\bas the seeds\b|\bseeds80\b|--preset seeds?\b", re.IGNORECASE
)
"""Names of material that went into the making. Seeds of random numbers are another matter."""


@pytest.mark.parametrize("folder", ["src", "docs", "README.md"])
def test_no_text_names_material_that_users_do_not_have(folder: str) -> None:
    texts = [path for path in TEXTS if path.is_relative_to(ROOT / folder)] or [ROOT / folder]
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in texts
        for match in UNKNOWN_SOURCES.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []

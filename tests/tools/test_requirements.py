"""The locked requirements have everything that the project declares: the tests run with more than a user installs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"^[A-Za-z0-9._-]+", re.MULTILINE)


def names(text: str) -> set[str]:
    """Names of packages at the beginning of lines, as an index spells them."""
    return {re.sub(r"[-_.]+", "-", name).lower() for name in NAME.findall(text)}


@pytest.mark.parametrize(
    ("file", "extras"), [("run.txt", ["backend", "proxy"]), ("dev.txt", ["backend", "proxy", "dev"])]
)
def test_every_declared_dependency_is_locked(file: str, extras: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [*project["dependencies"], *(row for extra in extras for row in project["optional-dependencies"][extra])]
    locked = names((ROOT / "requirements" / file).read_text(encoding="utf-8"))
    assert names("\n".join(declared)) - locked == set()

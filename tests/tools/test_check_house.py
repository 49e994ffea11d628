"""The checks of the house find what they are for."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

import check_house  # noqa: E402

LIMITS: dict[str, Any] = {"modules_per_folder": 2, "names": {"one": 0}, "lines": {"llama": 4}}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"llama/a.py": "class A: ...\n", "llama/b.py": "class B: ...\n"}, ()),
        ({"llama/a.py": "class A: ...\n", "llama/b.py": "class A: ...\n"}, ("class A is in", "llama/a.py:1 and")),
        ({f"llama/{name}.py": "" for name in "abc"}, ("src/specdash/llama has 3 modules, 2 at most",)),
        ({"llama/a.py": "x = [one for one in ()]\n"}, ("one: 1 variables of this name",)),
        ({"llama/a.py": "def f(one): ...\n"}, ("one: 1 variables of this name",)),
        ({"llama/a.py": "\n" * 5}, ("llama: 5 lines, and the budget is 4",)),
        ({"new/a.py": "x = 1\n"}, ("new: 1 lines, and the budget is 0",)),
    ],
)
def test_breaches(files: dict[str, str], words: tuple[str, ...], tmp_path: Path) -> None:
    for name, text in files.items():
        path = tmp_path / "src" / "specdash" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    problems = "\n".join(check_house.breaches(tmp_path, LIMITS))
    assert bool(problems) is bool(words)
    assert all(word in problems for word in words)


def test_budgets_are_renewed_to_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "src" / "specdash" / "llama").mkdir(parents=True)
    (tmp_path / "src" / "specdash" / "llama" / "a.py").write_text("x = 1\n")
    text = (
        "[tool.house]\nmodules_per_folder = 2\n\n[tool.house.names]\none = 7\n\n[tool.house.lines]\ngone = 9\n\n[x]\n"
    )
    limits = tomllib.loads(check_house.renewed(text, tmp_path, LIMITS))["tool"]["house"]
    assert limits == {"modules_per_folder": 2, "names": {"one": 0}, "lines": {"llama": 1}}

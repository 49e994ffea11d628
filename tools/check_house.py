"""What keeps the house in order, for `make lint`: unique names, folders that can be surveyed, budgets that shrink.

`[tool.house]` of pyproject.toml has the limits. A budget is what there was when it was written: less is welcome, and
`python tools/check_house.py --renew` writes it down; more needs a reason, in the commit that raises it.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parents[1]
SOURCE = Path("src/specdash")


def modules(root: Path) -> dict[Path, ast.Module]:
    """The syntax of every module of the package, by its path from `root`."""
    paths = sorted((root / SOURCE).rglob("*.py"))
    return {path.relative_to(root): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def repeated_classes(trees: Mapping[Path, ast.Module]) -> Iterator[str]:
    """A class name that is used twice: nobody knows which is meant."""
    homes = defaultdict(list)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(f"{path}:{node.lineno}")
    for name, places in homes.items():
        if len(places) > 1:
            yield f"class {name} is in {' and '.join(places)}: each class has a name of its own"


def crowded_folders(trees: Mapping[Path, ast.Module], most: int) -> Iterator[str]:
    """A folder with more modules than can be surveyed."""
    for folder, count in Counter(path.parent for path in trees if path.name != "__init__.py").items():
        if count > most:
            yield f"{folder} has {count} modules, {most} at most: sort them into rooms, or merge what is read together"


def bound_names(trees: Mapping[Path, ast.Module]) -> Counter[str]:
    """How often each name is given to a variable or parameter."""
    names: Counter[str] = Counter()
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names[node.id] += 1
            elif isinstance(node, ast.arg):
                names[node.arg] += 1
    return names


def lines(trees: Mapping[Path, ast.Module], root: Path) -> dict[str, int]:
    """Lines of each package."""
    count: Counter[str] = Counter()
    for path in trees:
        parts = path.relative_to(SOURCE).parts
        count[parts[0] if len(parts) > 1 else "specdash"] += len((root / path).read_text(encoding="utf-8").splitlines())
    return dict(sorted(count.items()))


def over_budget(now: Mapping[str, int], budget: Mapping[str, int], what: str) -> Iterator[str]:
    """More than there was of something that shall only become less."""
    for name, count in now.items():
        if count > budget.get(name, 0):
            yield (
                f"{name}: {count} {what}, and the budget is {budget.get(name, 0)}: take out as much elsewhere, "
                "or raise it in [tool.house] of pyproject.toml and say why in the commit"
            )


def breaches(root: Path, limits: Mapping[str, Any]) -> list[str]:
    """Everything that is against the rules of the house."""
    trees = modules(root)
    names = bound_names(trees)
    watched = {name: names[name] for name in limits["names"]}
    return [
        *repeated_classes(trees),
        *crowded_folders(trees, limits["modules_per_folder"]),
        *over_budget(watched, limits["names"], "variables of this name, which says nothing"),
        *over_budget(lines(trees, root), limits["lines"], "lines"),
    ]


def renewed(text: str, root: Path, limits: Mapping[str, Any]) -> str:
    """The text of pyproject.toml with budgets as small as what there is now."""
    trees = modules(root)
    names = bound_names(trees)
    tables = {"names": {name: names[name] for name in limits["names"]}, "lines": lines(trees, root)}
    for table, values in tables.items():
        body = "".join(f"{name} = {count}\n" for name, count in values.items())
        text = re.sub(rf"(\[tool\.house\.{table}\]\n)(?:\w+ = \d+\n)*", rf"\g<1>{body}", text)
    return text


def main() -> int:
    """Print what is against the rules; 1 where anything is."""
    file = ROOT / "pyproject.toml"
    text = file.read_text(encoding="utf-8")
    limits = tomllib.loads(text)["tool"]["house"]
    if "--renew" in sys.argv[1:]:
        file.write_text(renewed(text, ROOT, limits), encoding="utf-8")
        return 0
    problems = breaches(ROOT, limits)
    print("\n".join(problems) or "The house is in order.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

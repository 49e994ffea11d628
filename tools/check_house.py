"""Holds the lines of src and the own imports of a file below the limits in `[tool.house]` of pyproject.toml.

Both may only fall: `python tools/check_house.py --renew` writes down what there is now.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def own_imports(text: str) -> int:
    """How many modules of the package a file imports, for type checking too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "specdash":
            found.add(node.module or "")
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.partition(".")[0] == "specdash"}
    return len(found)


def measured(source: Path) -> dict[str, int]:
    """Lines of all files, and the ninth decile of their own imports."""
    texts = [file.read_text(encoding="utf-8") for file in sorted(source.rglob("*.py"))]
    imports = sorted(map(own_imports, texts))
    return {"lines": sum(len(text.splitlines()) for text in texts), "imports": imports[len(imports) * 9 // 10]}


def main() -> int:
    """Print what is above its limit; 1 where anything is."""
    file = ROOT / "pyproject.toml"
    text = file.read_text(encoding="utf-8")
    now, limits = measured(ROOT / "src"), tomllib.loads(text)["tool"]["house"]
    if "--renew" in sys.argv[1:]:
        for name, count in now.items():
            text = re.sub(rf"(?m)^{name} = \d+$", f"{name} = {count}", text)
        file.write_text(text, encoding="utf-8")
        return 0
    over = {name: count for name, count in now.items() if count > limits[name]}
    print("\n".join(f"{name}: {count}, at most {limits[name]}" for name, count in over.items()) or f"src: {now}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())

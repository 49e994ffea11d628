"""The program's own modules, parsed once for every test that reads them."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

import specdash

ROOT = Path(specdash.__file__).parent


@cache
def nodes() -> dict[str, tuple[ast.AST, ...]]:
    """All nodes of each module, the module first, by its path within the package."""
    gc.disable()  # it would look at a million nodes again and again
    try:
        files = {str(file.relative_to(ROOT)): file.read_bytes() for file in sorted(ROOT.rglob("*.py"))}
        return {name: tuple(ast.walk(ast.parse(text))) for name, text in files.items()}
    finally:
        gc.freeze()
        gc.enable()

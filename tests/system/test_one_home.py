"""Nobody formats shares, sizes, moments and tables, or takes medians, but `specdash.system`."""

from __future__ import annotations

import ast
from functools import cache
from typing import TYPE_CHECKING

import pytest

from support.sources import nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ALLOWED = {
    "a share": {"proxy/http/endpoints.py"},  # a field of JSON that clients know
    "a size": {
        "backend/auto.py",  # KiB a token, with digits of its own
        "bench/soak.py",  # a process over time: all in one unit
        "bench/replay/transcript.py",
        "bench/load/workloads.py",
        "insight/proxy/prefix_cache.py",  # as the setting to raise counts it
        "llama/gguf.py",
        "proxy/http/connection.py",  # a limit, as the setting has it
        "tune/run/measuring.py",  # a limit, as the option has it
    },
    "a moment": set[str](),
    "a Markdown table": set[str](),
    "statistics": set[str](),
}


def found_in(tree: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    for node in tree:
        match node:
            case ast.JoinedStr(values):
                for value, after in zip(values, [*values[1:], None], strict=True):
                    if not isinstance(value, ast.FormattedValue):
                        continue
                    text = after.value if isinstance(after, ast.Constant) else ""
                    if _spec(value).endswith("%") or (_is_of_hundred(value) and str(text).lstrip().startswith("%")):
                        yield "a share", node.lineno
                    if str(text).startswith((" KiB", " MiB", " GiB")):
                        yield "a size", node.lineno
                    if "%H" in _spec(value):
                        yield "a moment", node.lineno
            case ast.Attribute(attr="strftime"):
                yield "a moment", node.lineno
            case ast.Call(ast.Attribute(ast.Constant(" | "), "join")):
                yield "a Markdown table", node.lineno
            case ast.ImportFrom(module="statistics") | ast.Import([ast.alias("statistics")]):
                yield "statistics", node.lineno


def _spec(value: ast.FormattedValue) -> str:
    parts = value.format_spec.values if isinstance(value.format_spec, ast.JoinedStr) else []
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)


def _is_of_hundred(value: ast.FormattedValue) -> bool:
    match value.value:
        case ast.BinOp(_, ast.Mult(), ast.Constant(100)):
            return True
    return False


@cache
def forms() -> frozenset[tuple[str, str]]:
    """Each form that is written outside its home, and where."""
    return frozenset(
        (kind, f"{name}:{line}")
        for name, tree in nodes().items()
        if not name.startswith("system/")
        for kind, line in found_in(tree)
    )


@pytest.mark.parametrize("what", ALLOWED)
def test_each_form_has_one_home(what: str) -> None:
    found = {place for kind, place in forms() if kind == what}
    assert sorted(name for name in found if name.partition(":")[0] not in ALLOWED[what]) == []
    assert {name.partition(":")[0] for name in found} == ALLOWED[what], "an exception that is none any more"

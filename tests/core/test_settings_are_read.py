"""A setting that is declared is read somewhere: one that nothing reads is a promise that nobody keeps."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import specdash
from specdash.core import config, parameter_catalogue, proxy_parameters
from specdash.core.changes import Role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdash.core.parameters import Parameter

ROOT = Path(specdash.__file__).parent
DECLARED = ("core/proxy_parameters.py", "core/parameter_catalogue.py", "core/passed_on_parameters.py", "core/config.py")
HOLDERS = frozenset({"settings", "_settings"})
"""How settings are called, everywhere."""


@cache
def trees() -> tuple[tuple[str, ast.AST], ...]:
    """Every module of the program but those that declare settings, by its path."""
    files = {str(file.relative_to(ROOT)): file for file in ROOT.rglob("*.py")}
    return tuple((name, ast.parse(file.read_text())) for name, file in files.items() if name not in DECLARED)


def holders_in(tree: ast.AST) -> frozenset[str]:
    """Names of settings in a module, other names that it gives them included."""
    assigned = (one for one in ast.walk(tree) if isinstance(one, ast.Assign) and last_name(one.value) in HOLDERS)
    return HOLDERS | {target.id for one in assigned for target in one.targets if isinstance(target, ast.Name)}


def last_name(node: ast.AST) -> str:
    """`settings` of `proxy.settings`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def read_of_proxy_settings() -> Iterator[str]:
    """Attributes that are read of settings of the proxy, in the proxy itself."""
    for name, tree in trees():
        if not name.startswith("proxy/"):
            continue
        holders = holders_in(tree) | ({"self"} if name == "proxy/settings.py" else set())
        for one in ast.walk(tree):
            if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Load) and last_name(one.value) in holders:
                yield one.attr


def read_of_specdashs_settings() -> Iterator[str]:
    """Keys that are looked up in resolved settings, `settings[f"{role}_service"]` for each role."""
    for _, tree in trees():
        for one in ast.walk(tree):
            if isinstance(one, ast.Subscript) and last_name(one.value) in HOLDERS:
                if isinstance(one.slice, ast.Constant):
                    yield str(one.slice.value)
                elif isinstance(one.slice, ast.JoinedStr):
                    parts = one.slice.values
                    for role in Role:
                        yield "".join(str(part.value) if isinstance(part, ast.Constant) else role for part in parts)


@cache
def texts() -> frozenset[str]:
    """Every string constant outside the declarations."""
    return frozenset(
        one.value
        for _, tree in trees()
        for one in ast.walk(tree)
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    )


def is_rendered(one: Parameter) -> bool:
    """Whether the engine gets it, through the tables that write flags, attributes and variables."""
    return not one.ours and bool(one.flags or one.attribute or one.environment)


def unread_of_proxy(parameters: tuple[Parameter, ...]) -> list[str]:
    read = set(read_of_proxy_settings())
    return [one.key for one in parameters if one.name not in read]


def test_every_setting_of_the_proxy_is_read() -> None:
    assert unread_of_proxy(proxy_parameters.PARAMETERS) == []


def test_every_key_of_the_backend_reaches_the_engine_or_is_read_by_its_name() -> None:
    parameters = parameter_catalogue.PARAMETERS
    assert [one.key for one in parameters if not is_rendered(one) and not {one.key, one.name} & texts()] == []


def test_every_setting_of_specdash_is_read() -> None:
    assert {one.name for one in config.SETTINGS} - set(read_of_specdashs_settings()) == set()


def test_one_that_nothing_reads_is_found() -> None:
    unread = proxy_parameters._row("PROXY_SHOUT", proxy_parameters._S, "shout", False)
    assert unread_of_proxy((*proxy_parameters.PARAMETERS, unread)) == ["PROXY_SHOUT"]
    assert not {unread.key, unread.name} & texts()

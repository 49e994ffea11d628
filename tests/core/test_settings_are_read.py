"""A setting that is declared is read somewhere: one that nothing reads is a promise that nobody keeps."""

from __future__ import annotations

import ast
from functools import cache
from typing import TYPE_CHECKING

from specdash.core import config, parameter_catalogue, proxy_parameters
from specdash.core.changes import Role
from support.sources import nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from specdash.core.parameters import Parameter

DECLARED = ("core/proxy_parameters.py", "core/parameter_catalogue.py", "core/config.py")
HOLDERS = frozenset({"settings", "_settings"})
"""How settings are called, everywhere."""


def readers() -> Iterable[tuple[str, tuple[ast.AST, ...]]]:
    """The nodes of every module of the program but those that declare settings, by its path."""
    return ((name, tree) for name, tree in nodes().items() if name not in DECLARED)


def holders_in(tree: Iterable[ast.AST]) -> frozenset[str]:
    """Names of settings in a module, other names that it gives them included."""
    assigned = (item for item in tree if isinstance(item, ast.Assign) and last_name(item.value) in HOLDERS)
    return HOLDERS | {target.id for assign in assigned for target in assign.targets if isinstance(target, ast.Name)}


def last_name(node: ast.AST) -> str:
    """`settings` of `proxy.settings`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def read_of_proxy_settings() -> Iterator[str]:
    """Attributes that are read of settings of the proxy, in the proxy itself."""
    for name, tree in readers():
        if not name.startswith("proxy/"):
            continue
        holders = holders_in(tree) | ({"self"} if name == "proxy/settings.py" else set())
        for item in tree:
            if isinstance(item, ast.Attribute) and isinstance(item.ctx, ast.Load) and last_name(item.value) in holders:
                yield item.attr


def read_of_specdashs_settings() -> Iterator[str]:
    """Keys that are looked up in resolved settings, `settings[f"{role}_service"]` for each role."""
    for _, tree in readers():
        for item in tree:
            if isinstance(item, ast.Subscript) and last_name(item.value) in HOLDERS:
                if isinstance(item.slice, ast.Constant):
                    yield str(item.slice.value)
                elif isinstance(item.slice, ast.JoinedStr):
                    parts = item.slice.values
                    for role in Role:
                        yield "".join(str(part.value) if isinstance(part, ast.Constant) else role for part in parts)


@cache
def texts() -> frozenset[str]:
    """Every string constant outside the declarations."""
    return frozenset(
        item.value
        for _, tree in readers()
        for item in tree
        if isinstance(item, ast.Constant) and isinstance(item.value, str)
    )


def is_rendered(parameter: Parameter) -> bool:
    """Whether the engine gets it, through the tables that write flags, attributes and variables."""
    return not parameter.ours and bool(parameter.flags or parameter.attribute or parameter.environment)


def unread_of_proxy(parameters: tuple[Parameter, ...]) -> list[str]:
    read = set(read_of_proxy_settings())
    return [parameter.key for parameter in parameters if parameter.name not in read]


def test_every_setting_of_the_proxy_is_read() -> None:
    assert unread_of_proxy(proxy_parameters.PARAMETERS) == []


def test_every_key_of_the_backend_reaches_the_engine_or_is_read_by_its_name() -> None:
    parameters = parameter_catalogue.PARAMETERS
    assert [
        parameter.key
        for parameter in parameters
        if not is_rendered(parameter) and not {parameter.key, parameter.name} & texts()
    ] == []


def test_every_setting_of_specdash_is_read() -> None:
    assert {setting.name for setting in config.SETTINGS} - set(read_of_specdashs_settings()) == set()


def test_one_that_nothing_reads_is_found() -> None:
    unread = proxy_parameters._row("PROXY_SHOUT", proxy_parameters._S, "shout", False)
    assert unread_of_proxy((*proxy_parameters.PARAMETERS, unread)) == ["PROXY_SHOUT"]
    assert not {unread.key, unread.name} & texts()

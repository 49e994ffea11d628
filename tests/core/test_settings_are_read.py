"""A setting that is declared is read somewhere: one that nothing reads is a promise that nobody keeps."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from specdash.core import config, parameter_catalogue, proxy_parameters
from specdash.core.changes import Role
from support.sources import ROOT

if TYPE_CHECKING:
    from specdash.core.parameters import Parameter

DECLARED = ("core/proxy_parameters.py", "core/parameter_catalogue.py", "core/config.py")
ALIAS = re.compile(r"(\w+) = (?:[\w.]+\.)?_?settings$", re.MULTILINE)
"""Another name that a module gives to settings, which are called so everywhere."""


@cache
def texts() -> dict[str, str]:
    """Every module of the program but those that declare settings, by its path."""
    files = {str(file.relative_to(ROOT)): file for file in ROOT.rglob("*.py")}
    return {name: file.read_text("utf-8") for name, file in files.items() if name not in DECLARED}


@cache
def read_of_proxy_settings() -> set[str]:
    """Attributes that are read of settings of the proxy, in the proxy itself."""
    found: set[str] = set()
    for name, text in texts().items():
        if name.startswith("proxy/"):
            own = ["self"] if name == "proxy/settings.py" else []
            holders = "|".join(["_?settings", *ALIAS.findall(text), *own])
            found.update(re.findall(rf"\b(?:{holders})\.(\w+)\b(?! = )", text))
    return found


def read_of_specdashs_settings() -> set[str]:
    """Keys that are looked up in resolved settings, `settings[f"{role}_service"]` for each role."""
    keys = re.findall(r'\b_?settings\[f?"([^"]+)"\]', "\n".join(texts().values()))
    return {re.sub(r"\{\w+\}", role, key) for key in keys for role in Role}


def is_named(parameter: Parameter) -> bool:
    """Whether its key or its name is a text somewhere outside the declarations."""
    return any(f'"{name}"' in text for name in (parameter.key, parameter.name) for text in texts().values())


def is_rendered(parameter: Parameter) -> bool:
    """Whether the engine gets it, through the tables that write flags, attributes and variables."""
    return not parameter.ours and bool(parameter.flags or parameter.attribute or parameter.environment)


def unread_of_proxy(parameters: tuple[Parameter, ...]) -> list[str]:
    return [parameter.key for parameter in parameters if parameter.name not in read_of_proxy_settings()]


def test_every_setting_of_the_proxy_is_read() -> None:
    assert unread_of_proxy(proxy_parameters.PARAMETERS) == []


def test_every_key_of_the_backend_reaches_the_engine_or_is_read_by_its_name() -> None:
    parameters = parameter_catalogue.PARAMETERS
    assert [entry.key for entry in parameters if not is_rendered(entry) and not is_named(entry)] == []


def test_every_setting_of_specdash_is_read() -> None:
    assert {setting.name for setting in config.SETTINGS} - read_of_specdashs_settings() == set()


def test_one_that_nothing_reads_is_found() -> None:
    unread = proxy_parameters._row("PROXY_SHOUT", proxy_parameters._S, "shout", False)
    assert unread_of_proxy((*proxy_parameters.PARAMETERS, unread)) == ["PROXY_SHOUT"]
    assert not is_named(unread)

"""The JSON Schema of config.toml, draft 2020-12, for editors: `specdash config schema`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdash.core.config import BY_NAME, NAME_OF_TARGET, NAMES_OF_TARGET, SETTINGS, TARGET_KEYS

if TYPE_CHECKING:
    from specdash.core.config import Setting

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def config_schema() -> dict[str, Any]:
    """Every setting with its default."""
    named = {"$schema": _DIALECT, "$id": "urn:specdash:schema:config.toml"}
    return {**named, **_table({setting.name: _setting(setting) for setting in SETTINGS}), "title": "config.toml"}


def _setting(setting: Setting) -> dict[str, Any]:
    if setting.name == "target":
        return {**setting.read.schema, "items": _target(), "description": setting.help, "default": []}
    default = {} if setting.default is None else {"default": setting.default}
    return {**setting.read.schema, "description": setting.help, **default}


def _target() -> dict[str, Any]:
    """A [[target]] table."""
    keys = {key: {**BY_NAME[key].read.schema, "description": BY_NAME[key].help} for key in TARGET_KEYS}
    name = {"type": "string", "pattern": f"^{NAME_OF_TARGET.pattern}$"}
    about = {"name": "What it is called.", "group": "The group that it is in, for `specdash fleet`."}
    names = {key: {**name, "description": about[key]} for key in NAMES_OF_TARGET}
    return _table({**names, **keys}) | {"required": ["name", "url"]}


def _table(properties: dict[str, Any]) -> dict[str, Any]:
    """A table whose unknown keys are mistakes."""
    return {"type": "object", "properties": properties, "additionalProperties": False}

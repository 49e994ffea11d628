"""config.toml as a model of pydantic, made of the settings' table: its values, what is wrong with them in one line, and
its JSON Schema. Imported only where there is something to check: pydantic takes 80 ms.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import partial
from reprlib import Repr
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from specdash.core.config import (
    BY_NAME,
    MOST_SHOWN,
    PLAIN_TEXTS,
    SETTINGS,
    TARGET_KEYS,
    Resolved,
    Setting,
    check_plain,
    near,
)
from specdash.core.errors import InputError
from specdash.core.log_places import check_place
from specdash.system.text import clean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import ErrorDetails

_EXAMPLE = {"name": "gpu1", "url": "http://gpu1:8080"}
_NAME = re.compile(r"[\w.@-]{1,40}")
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = MOST_SHOWN
_WANTED = {
    "string": "must be a text that is not empty",
    "boolean": "must be true or false",
    "object": 'must be a table: [keys], and below it lines such as pause = "space,p"',
    "array": 'must be tables: [[target]], and below each name = "gpu1", url = "http://gpu1:8080"',
}
"""By type of JSON Schema."""


def _number(value: Any) -> Any:
    """As a number, where its text is one: a flag is none."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    with suppress(ValueError):
        return float(value if isinstance(value, str) else "")
    raise ValueError  # Its words come from the schema.


def _flat(value: Any) -> Any:
    """Keys by the ids of actions; `move.up = "k"` without quotes is a table in a table. From a text: `pause=space,p
    arm=ctrl+a`."""
    if isinstance(value, str):
        return {name: keys for name, _, keys in (part.partition("=") for part in value.split())}
    if not isinstance(value, dict):
        return value
    inner = {name: _flat(keys) if isinstance(keys, dict) else {"": keys} for name, keys in value.items()}
    return {f"{name}.{rest}".rstrip("."): keys for name, table in inner.items() for rest, keys in table.items()}


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError("must be letters, digits and . _ - @, at most 40")
    return value


def _check_names(tables: tuple[Any, ...]) -> tuple[Any, ...]:
    names = [table.name for table in tables]
    for number_, name in enumerate(names):
        if name in names[:number_]:
            where = f'[[target]] {number_ + 1} ("{name}")'
            raise ValueError(f"{where}: name = {name!r}: another one is called so; give each a name of its own")
    return tables


def _kind(setting: Setting) -> Any:
    """What its value is."""
    if isinstance(setting.default, bool):
        return bool
    if isinstance(setting.default, float):
        unit: dict[str, Any] = {"unit": setting.unit}
        if not setting.bounds:
            return Annotated[Literal[setting.choices], Field(json_schema_extra=unit), BeforeValidator(_number)]
        least, most = setting.bounds
        return Annotated[float, Field(ge=least, le=most, json_schema_extra=unit), BeforeValidator(_number)]
    if setting.choices:
        return Literal[setting.choices]
    if setting.name == "keys":
        return Annotated[dict[str, Any], BeforeValidator(_flat)]
    if setting.name in ("log", "proxy_log"):
        return Annotated[str, Field(min_length=1), AfterValidator(check_place)]
    if setting.name in PLAIN_TEXTS:
        return Annotated[str, Field(min_length=1), AfterValidator(partial(check_plain, setting.name))]
    return Annotated[str, Field(min_length=1)]


def _field(setting: Setting, default: Any = None) -> tuple[Any, Any]:
    return _kind(setting), Field(setting.default if default is None else default, description=setting.help)


_NAMED = Annotated[str, Field(json_schema_extra={"pattern": f"^{_NAME.pattern}$"}), AfterValidator(_name)]
_TABLE = ConfigDict(extra="forbid")
_KEYS: Any = {key: _field(BY_NAME[key], ... if key == "url" else None) for key in TARGET_KEYS}
_TARGET: Any = create_model(
    "Target",
    __config__=_TABLE,
    name=(_NAMED, Field(..., description="What it is called.")),
    group=(_NAMED, Field("", description="The group that it is in, for `specdash fleet`.")),
    **_KEYS,
)
_TARGETS: Any = Annotated[tuple[_TARGET, ...], AfterValidator(_check_names)]
_FIELDS: Any = {setting.name: _field(setting) for setting in SETTINGS if setting.name != "target"}
CONFIG: Any = create_model(
    "config.toml", __config__=_TABLE, target=(_TARGETS, Field((), description=BY_NAME["target"].help)), **_FIELDS
)


def checked(given: Mapping[str, Resolved]) -> dict[str, Resolved]:
    """The values as they are meant. Raises `InputError`."""
    try:
        read = CONFIG.model_validate({name: raw.value for name, raw in given.items()})
    except ValidationError as error:
        row = error.errors(include_url=False)[0]
        name, *inner = row["loc"]
        where, model = given[str(name)].origin, CONFIG
        if inner:
            table = given[str(name)].value[inner[0]]
            called = table.get("name") if isinstance(table, dict) else None
            where += f": [[target]] {int(inner[0]) + 1}"
            where += f' ("{called}")' if isinstance(called, str) and _NAME.fullmatch(called) else ""
            model = _TARGET
        raise InputError(what_is_wrong(row, model, where)) from None
    except RecursionError:
        raise InputError(f"{next(iter(given.values())).origin}: its tables are too deep") from None
    values = read.model_dump(exclude_unset=True)
    return {name: Resolved(values[name], raw.origin) for name, raw in given.items()}


def what_is_wrong(row: ErrorDetails, model: type[BaseModel], where: str) -> str:
    """A mistake in one line: where it stands, the key, its value, and what it must be. It repeats no value that may be
    a secret: of an unknown key, of the name of a variable, and of an address that holds a password."""
    key = clean(str(row["loc"][-1]), MOST_SHOWN)
    if row["type"] == "extra_forbidden":
        if key in ("api_key", "proxy_key"):
            return f"{where}: {key}: keys are no part of this file; name the variable that holds it with {key}_env"
        return f"{where}: {key}: no setting of a target; {near(key, model.model_fields)}"
    if row["type"] == "missing":
        return f'{where}: {key} is missing; write {key} = "{_EXAMPLE[key]}"'
    schema = model.model_json_schema()["properties"].get(key, {"type": "array"})
    wanted = str(row["ctx"]["error"]) if row["type"] == "value_error" else ""
    if schema["type"] == "array":
        return f"{where}: {wanted or _WANTED['array']}"
    hidden = key in PLAIN_TEXTS and (wanted or key.endswith("_env"))
    value = "" if hidden else f" = {_SHORT.repr(row['input'])}"
    return f"{where}: {key}{value}: {wanted or _wanted(schema)}"


def _word(choice: str | float) -> str:
    return choice if isinstance(choice, str) else f"{choice:g}"


def _wanted(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        unit = f" ({schema['unit']})" if "unit" in schema else ""
        return f"must be one of {', '.join(map(_word, schema['enum']))}{unit}"
    if schema["type"] == "number" and "maximum" not in schema:
        return "must be a number from 0 on"
    if "maximum" in schema:
        return f"must be {schema['unit']}, from {schema['minimum']:g} to {schema['maximum']:.10g}"
    return _WANTED[schema["type"]]


def config_schema() -> dict[str, Any]:
    """The JSON Schema of config.toml, draft 2020-12, for editors."""
    named = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "urn:specdash:schema:config.toml"}
    schema: dict[str, Any] = CONFIG.model_json_schema()
    for table in (schema, *schema["$defs"].values()):
        for row in table["properties"].values():
            row.pop("title", None)
            if row.get("default", "") is None:
                del row["default"]
    return named | schema

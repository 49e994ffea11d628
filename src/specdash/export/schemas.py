"""The published JSON Schemas: of what commands print, and of the files that people write. `specdash schema` prints
them, docs/schemas/ has them, and nothing that runs otherwise imports this: pydantic costs 60 ms.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ConfigDict, TypeAdapter, with_config
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import get_original_bases, is_typeddict

from specdash.control.profiles import FIELDS, KNOWN_KEYS, NAME
from specdash.core import speculation
from specdash.core.changes import Role, is_secret
from specdash.core.config import BY_NAME, NAME_OF_TARGET, NAMES_OF_TARGET, SETTINGS, TARGET_KEYS
from specdash.core.parameters import FALSE_WORDS, TRUE_WORDS, ValueKind
from specdash.core.records import AlertSeverity
from specdash.export import documents
from specdash.insight import request
from specdash.insight.rules.catalogue import CHANGEABLE, RuleSpec, shipped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import core_schema

    from specdash.core.config import Setting
    from specdash.core.parameters import Parameter

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_CONFIG = ConfigDict(use_attribute_docstrings=True)


class PublishedSchema(NamedTuple):
    """One schema: what it is of, and the type of the document, or what makes its schema."""

    title: str
    kind: Any = None
    make: Callable[[], JsonSchemaValue] | None = None


def schema_text(name: str) -> str:
    """The schema of that name as its file has it. Raises KeyError for a name that is none."""
    return json.dumps(schema_of(name), indent=1, ensure_ascii=False) + "\n"


@cache
def schema_of(name: str) -> JsonSchemaValue:
    """The schema of that name, draft 2020-12. Raises KeyError for a name that is none."""
    published = SCHEMAS[name]
    schema = _of_type(published.kind) if published.make is None else published.make()
    return {"$schema": DIALECT, "$id": f"urn:specdash:schema:{name}", **schema, "title": published.title}


def _of_type(kind: Any) -> JsonSchemaValue:
    if isinstance(kind, type):
        adapter: TypeAdapter[Any] = TypeAdapter(with_config(_CONFIG)(kind))
    else:
        adapter = TypeAdapter(kind, config=_CONFIG)
    if not adapter.pydantic_complete:
        # Data classes name types that they import for type checkers alone.
        adapter.rebuild(_types_namespace=vars(speculation) | vars(request) | vars(documents))
    schema = adapter.json_schema(mode="serialization", schema_generator=_Generator, union_format="primitive_type_array")
    for part in _parts(schema):
        if part.pop(documents.EMPTY_IS_NULL, False):
            for inner in _parts(part, schema["$defs"]):
                if inner.get("default") == "":
                    inner["type"] = ["string", "null"]
    for part in _parts(schema):
        part.pop("default", None)
        if "description" in part:
            unwrapped = re.sub(r"(?<!\n)\n(?!\n)", " ", part["description"])
            part["description"] = re.sub(r"\bNone\b", "null", unwrapped)
    return schema


class _Generator(GenerateJsonSchema):
    """As documents are written: only types have titles; inherited fields keep their descriptions."""

    def field_title_should_be_set(self, _schema: object) -> bool:
        """A field's title would be its name once more."""
        return False

    def field_is_required(self, field: Any, total: bool) -> bool:
        """Every field of a data class is written, also one that has its default."""
        return field["type"] == "dataclass-field" or super().field_is_required(field, total)

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        """Pydantic reads the docstrings of the class itself alone."""
        made = super().typed_dict_schema(schema)
        for base in filter(is_typeddict, get_original_bases(schema["cls"])):
            for name, known in _of_type(base)["properties"].items():
                if "description" in known:
                    made["properties"][name].setdefault("description", known["description"])
        return made


def _config() -> JsonSchemaValue:
    """Every setting."""
    return _table({setting.name: _setting(setting) for setting in SETTINGS})


def _setting(setting: Setting) -> JsonSchemaValue:
    if setting.name == "target":
        return {**setting.read.schema, "items": _target(), "description": setting.help, "default": []}
    default = {} if setting.default is None else {"default": setting.default}
    return {**setting.read.schema, "description": setting.help, **default}


def _target() -> JsonSchemaValue:
    """A table of a server."""
    keys = {key: {**BY_NAME[key].read.schema, "description": BY_NAME[key].help} for key in TARGET_KEYS}
    name = {"type": "string", "pattern": f"^{NAME_OF_TARGET.pattern}$"}
    about = {"name": "What it is called.", "group": "The group that it is in, for `specdash fleet`."}
    names = {key: {**name, "description": about[key]} for key in NAMES_OF_TARGET}
    gpus = {"type": "string", "pattern": "^ssh://", "description": "The machine whose GPUs are its own, behind ssh."}
    return _table({**names, "gpu_host": gpus, **keys}) | {"required": ["name", "url"]}


def _rules() -> JsonSchemaValue:
    """Every rule, with what may be changed of it."""
    fields = _of_type(RuleSpec)["properties"]
    fields["severity"] = {"type": "string", "enum": list(AlertSeverity)}
    return _table({rule.spec.id: _rule(rule.spec, fields) for rule in shipped()})


def _rule(spec: RuleSpec, fields: Mapping[str, JsonSchemaValue]) -> JsonSchemaValue:
    changeable = {name: {**fields[name], "default": getattr(spec, name)} for name in CHANGEABLE if name != "limits"}
    for known in changeable.values():
        if known["type"] == "number":
            known["minimum"] = 0
    limits = {name: {"type": "number", "minimum": 0, "default": value} for name, value in spec.limits.items()}
    return _table({**changeable, "limits": _table(limits)}, f"{spec.title}. {spec.meaning}")


def _profile() -> JsonSchemaValue:
    """Every key that a profile can hold."""
    texts = {name: {"type": "string"} for name in FIELDS if name not in (*Role, "notes")}
    texts["name"] = {
        "type": "string",
        "pattern": NAME.pattern.replace("\\Z", "$"),
        "description": "As the file is called.",
    }
    tables = {str(role): _keys(role) for role in Role}
    notes = {"type": "array", "items": {"type": "string"}}
    sets_something: JsonSchemaValue = {"anyOf": [{"required": [role]} for role in tables], "required": ["name"]}
    return _table({**texts, "notes": notes, **tables}) | sets_something


def _keys(role: Role) -> JsonSchemaValue:
    keys = {key: _key(parameter) for key, parameter in KNOWN_KEYS[role].items() if not is_secret(key)}
    return _table(keys, f"Keys of the {role}'s env file. The empty text is the default.")


def _key(parameter: Parameter) -> JsonSchemaValue:
    default = {} if parameter.default is None else {"default": parameter.shown_default}
    return {**_value(parameter), "description": f"{parameter.meaning}: {parameter.allowed}", **default}


def _value(parameter: Parameter) -> JsonSchemaValue:
    """Texts are as env files have them: that of a number or switch is one, too."""
    if parameter.kind is ValueKind.SWITCH:
        return {"enum": [True, False, 1, 0, "", *TRUE_WORDS, *FALSE_WORDS]}
    if parameter.kind in _NUMBERS:
        kind, digits = _NUMBERS[parameter.kind]
        bounds = {"minimum": parameter.minimum, "maximum": parameter.maximum}
        number = {"type": kind} | {name: bound for name, bound in bounds.items() if bound is not None}
        words = "".join(f"|{word}" for word, _ in parameter.words)
        return {"anyOf": [number, {"type": "string", "pattern": f"^([+-]?{digits}{words})?$"}]}
    if parameter.choices:
        return {
            "enum": [
                "",
                *parameter.choices,
                *([True, False, *TRUE_WORDS, *FALSE_WORDS] if "on" in parameter.choices else ()),
            ]
        }
    if parameter.pattern:
        return {"type": "string", "pattern": f"^({parameter.pattern})?$"}
    return {"type": ["string", "integer"]}


_NUMBERS = {
    ValueKind.INTEGER: ("integer", r"\d+"),
    ValueKind.NUMBER: ("number", r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"),
}


def _table(properties: JsonSchemaValue, description: str = "") -> JsonSchemaValue:
    """A table of a file that people write: an unknown key is a mistake."""
    described = {"description": description} if description else {}
    return {**described, "type": "object", "properties": properties, "additionalProperties": False}


def _parts(schema: Any, definitions: Mapping[str, Any] | None = None) -> Iterator[JsonSchemaValue]:
    """The schema and all that it consists of; with `definitions` also what it refers to."""
    yield schema
    inner = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values(), *schema.get("anyOf", ())]
    inner += [schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict)]
    if definitions is not None and "$ref" in schema:
        inner.append(definitions[schema["$ref"].removeprefix("#/$defs/")])
    for part in inner:
        yield from _parts(part, definitions)


SCHEMAS: dict[str, PublishedSchema] = {
    "snapshot": PublishedSchema("specdash snapshot --json", documents.SnapshotDocument),
    "check": PublishedSchema("specdash check --json", documents.CheckDocument | documents.CheckFailure),
    "check-all": PublishedSchema("specdash check --all --json", documents.CheckAllDocument | documents.CheckFailure),
    "snapshot-all": PublishedSchema("specdash snapshot --all --json", documents.SnapshotsDocument),
    "check-list-rules": PublishedSchema("specdash check --list-rules --json", list[documents.CatalogueRule]),
    "doctor": PublishedSchema("specdash doctor --json", documents.DoctorDocument),
    "targets": PublishedSchema("specdash targets --json", documents.TargetsDocument),
    "fleet": PublishedSchema("specdash fleet --json", documents.FleetDocument),
    "fleet-history": PublishedSchema("specdash fleet --since TIME --json", documents.FleetHistoryDocument),
    "services-status": PublishedSchema("specdash services status --json", documents.ServicesDocument),
    "parse-log": PublishedSchema("specdash parse-log --json", documents.LogReport),
    "applies": PublishedSchema("specdash applies --json", list[documents.RecordedApply]),
    "baseline-list": PublishedSchema("specdash baseline list --json", list[documents.BaselineRecord]),
    "history-query": PublishedSchema("specdash history query --json", documents.HistoryQuery),
    "history-events": PublishedSchema("specdash history events --json", documents.HistoryEvents),
    "history-stats": PublishedSchema("specdash history stats --json", documents.HistoryStats),
    "config": PublishedSchema("specdash config show --json", dict[str, documents.SettingDocument]),
    "config.toml": PublishedSchema("config.toml", make=_config),
    "rules.toml": PublishedSchema("rules.toml", make=_rules),
    "profile.toml": PublishedSchema("profiles/NAME.toml", make=_profile),
}
"""By the command that prints it, or the file; `NAME.schema.json` in docs/schemas/."""

"""What commands print, and the files that people write, are as the published JSON Schemas say (docs/schemas/)."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from specdash.control.profiles import parse_profile
from specdash.core.config import resolve
from specdash.core.errors import InputError
from specdash.core.readings import FailureKind, Reading, Source
from specdash.core.records import AlertSeverity
from specdash.core.target import Target
from specdash.export.check_report import as_json, verdict
from specdash.export.schemas import SCHEMAS
from specdash.export.snapshot import to_json
from specdash.insight.rules.catalogue import shipped, with_user_limits
from specdash.insight.state import TargetState
from support.drawn_readings import values
from support.outside import off_schema, published, say
from tui.fake_state import busy_picture

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdash.insight.picture import Picture

ROOT = Path(__file__).parents[2]
SHAPES = Path(__file__).parent / "json"


def unpromised(form: dict[str, Any], promise: dict[str, Any] | bool, whole: dict[str, Any], at: str = "") -> list[str]:
    """What a recorded shape has, which scripts rely on, and the schema does not promise."""
    if isinstance(promise, bool):
        return [] if promise else [at]
    schema = promise
    if "$ref" in schema:
        schema = whole["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    if "anyOf" in schema:
        return min((unpromised(form, choice, whole, at) for choice in schema["anyOf"]), key=len)
    breaches = []
    for key, inner in form.get("keys", {}).items():
        promised = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
        if promised is None or ("properties" in schema and key not in schema["required"]):
            breaches.append(f"{at}.{key}")
        else:
            breaches += unpromised(inner, promised, whole, f"{at}.{key}")
    for part, keyword in (("items", "items"), ("every", "additionalProperties")):
        if part in form:
            breaches += unpromised(form[part], schema[keyword], whole, f"{at}[]") if keyword in schema else [at]
    kinds = schema.get("type", form.get("is", []))
    known = {"number" if kind == "integer" else kind for kind in ([kinds] if isinstance(kinds, str) else kinds)}
    return breaches + [f"{at} is {kind}" for kind in form.get("is", ()) if kind not in known]


def told_of(picture: Picture) -> dict[str, Any]:
    judged = verdict(picture, shipped(), AlertSeverity.WARNING, 1.0, ended=True)
    return {"snapshot": to_json(picture), "check": as_json(judged, shipped())}


LARGE = [name for name in SCHEMAS if name.startswith("snapshot")]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name for name in SCHEMAS]
)
def test_a_published_schema_is_one_and_is_printed_by_its_name(name: str) -> None:
    Draft202012Validator.check_schema(published(name))
    code, out, err = say("schema", name)
    assert (code, err, json.loads(out)) == (0, "", published(name))
    assert any(line.split()[0] == name for line in say("schema")[1].splitlines())


@pytest.mark.parametrize("name", [file.stem for file in SHAPES.iterdir() if file.stem in SCHEMAS])
def test_a_schema_promises_what_scripts_rely_on(name: str) -> None:
    form, schema = json.loads((SHAPES / f"{name}.json").read_text("utf-8")), published(name)
    # Of some there is the shape that several outputs have in common.
    form = form["items"] if "items" in form and schema["type"] == "object" else form
    assert unpromised(form, schema, schema) == []


def test_an_unknown_name_is_told_with_those_there_are() -> None:
    code, _, err = say("schema", "snapshots")
    assert code == 2
    assert "'snapshots'; one of: snapshot, check" in err


def test_a_picture_that_knows_everything_or_nothing_is_printed_as_its_schemas_say() -> None:
    nothing = TargetState(Target("http://127.0.0.1:1")).picture(1.0, 0.0)
    for picture in (busy_picture(10_000.0, 1_790_000_000.0, 300.0), nothing):
        for name, document in told_of(picture).items():
            assert off_schema(name, document) == []


@given(st.lists(st.tuples(st.floats(0, 300), values), max_size=12))
def test_whatever_is_read_the_picture_is_printed_as_its_schemas_say(
    steps: list[tuple[float, tuple[Source, Any]]],
) -> None:
    state = TargetState(Target("http://127.0.0.1:1"), rules=shipped())
    at = 1000.0
    for pause, (source, value) in steps:
        at += pause
        reading = Reading.unknown if isinstance(value, FailureKind) else Reading.known
        state.apply(reading(source, at, value))
    for name, document in told_of(state.picture(at, 1e9, 300.0)).items():
        assert off_schema(name, document) == []


def test_a_field_that_goes_or_changes_its_kind_is_no_document_any_more() -> None:
    document: Any = told_of(busy_picture(10_000.0, 1_790_000_000.0, 300.0))["snapshot"]
    assert off_schema("snapshot", document | {"added_later": 1}) == []
    assert off_schema("snapshot", document | {"schema": "specdash.snapshot/2"})
    assert off_schema("snapshot", document | {"window_seconds": "300"})
    assert off_schema("snapshot", {name: value for name, value in document.items() if name != "alerts"})
    drafter = {**document["drafter"], "steps": True}
    assert off_schema("snapshot", document | {"drafter": drafter}) == [
        "$.drafter.steps: True is not of type 'number', 'null'"
    ]


def test_an_error_of_check_is_as_its_schema_says() -> None:
    code, out, _ = say("check", "--json", "--url", "nonsense://x")
    assert code == 3
    assert off_schema("check", json.loads(out)) == []


READERS: dict[str, Callable[[str], object]] = {
    "config.toml": lambda text: resolve({}, {}, text),
    "rules.toml": lambda text: with_user_limits(shipped(), text),
    "profile.toml": lambda text: parse_profile(text, "x.toml", "x"),
}
HEADS = {"config.toml": [], "rules.toml": [], "profile.toml": ['name = "x"']}


def in_docs(page: str) -> str:
    """The example file that a page shows."""
    return (ROOT / page).read_text("utf-8").split("```toml\n")[1].split("```")[0]


@pytest.mark.parametrize(
    ("name", "page"),
    [("config.toml", "README.md"), ("rules.toml", "docs/rules.md"), ("profile.toml", "docs/profiles.md")],
)
def test_the_files_that_the_docs_show_are_as_their_schema_says(name: str, page: str) -> None:
    assert off_schema(name, tomllib.loads(in_docs(page))) == []


def test_the_profiles_that_ship_are_as_their_schema_says() -> None:
    files = list((ROOT / "src/specdash/control/profiles_data").iterdir())
    assert len(files) > 2
    assert [off_schema("profile.toml", tomllib.loads(file.read_text("utf-8"))) for file in files] == [[]] * len(files)


@pytest.mark.parametrize(
    ("name", "text", "where"),
    [
        ("config.toml", 'ulr = "x"', "'ulr'"),
        ("config.toml", 'window = "2m"', "$.window"),
        ("config.toml", "drain_timeout = 0", "$.drain_timeout"),
        ("config.toml", 'proxy_log = "journal:a b"', "$.proxy_log"),
        ("rules.toml", "[slot_hangs]", "'slot_hangs'"),
        ("rules.toml", "[slot_hung]\nlimits.prefil_s = 1", "$.slot_hung.limits"),
        ("rules.toml", "[slot_hung]\nlimits.prefill_s = -1", "$.slot_hung.limits.prefill_s"),
        ("rules.toml", '[slot_hung]\nseverity = "bad"', "$.slot_hung.severity"),
        ("rules.toml", '[slot_hung]\ntitle = "x"', "'title'"),
        ("profile.toml", 'name = "x"', "$"),
        ("profile.toml", 'name = "x"\n[backend]\nLLAMA_DRAFT_MAXX = 1', "'LLAMA_DRAFT_MAXX'"),
        ("profile.toml", 'name = "x"\n[backend]\nLLAMA_API_KEY = "x"', "'LLAMA_API_KEY'"),
        ("profile.toml", 'name = "x"\n[backend]\nLLAMA_DRAFT_MAX = "many"', "$.backend.LLAMA_DRAFT_MAX"),
        ("profile.toml", 'name = "x"\n[proxy]\nPROXY_LOOP_BREAKER = "perhaps"', "$.proxy.PROXY_LOOP_BREAKER"),
    ],
)
def test_a_mistake_in_a_file_is_named_by_its_schema_and_refused_by_who_reads_it(
    name: str, text: str, where: str
) -> None:
    assert any(where in error for error in off_schema(name, tomllib.loads(text)))
    with pytest.raises(InputError):
        READERS[name](text)


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
def test_what_its_schema_allows_is_read(name: str, data: st.DataObject) -> None:
    """Of any key, whatever value: texts of numbers apart, whose range the schema leaves to the reader."""
    path, known = data.draw(st.sampled_from(keys_of(name)))
    value = data.draw(values_of(known))
    text = "\n".join(HEADS[name] + [f"{'.'.join(path)} = {json.dumps(value, ensure_ascii=False)}"])
    document = tomllib.loads(text)
    if off_schema(name, document) == []:
        READERS[name](text)


def keys_of(name: str) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    """Every key of a file that has a single value, with its schema."""
    found: list[tuple[tuple[str, ...], dict[str, Any]]] = []
    tables: list[tuple[tuple[str, ...], dict[str, Any]]] = [((), published(name))]
    while tables:
        path, table = tables.pop()
        for key, known in table["properties"].items():
            (tables if "properties" in known else found).append(((*path, key), known))
    return [(path, known) for path, known in found if path not in (("name",), ("notes",))]


def values_of(known: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that the key may have, and others."""
    number = known.get("anyOf", [known])[0]
    bounds = [number[name] + step for name in ("minimum", "maximum") if name in number for step in (-1, 0, 1)]
    texts = (
        st.text(alphabet="abc09_.:/ -", max_size=8) if number.get("type") not in ("integer", "number") else st.just("")
    )
    return st.sampled_from([True, False, 0, 1, 0.5, *bounds, *known.get("enum", [])]) | st.integers() | texts

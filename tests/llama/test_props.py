"""GET /props becomes typed properties, of which a server may leave out any."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.core.readings import Props
from specdash.llama.server_answers import ParseError, parse_props

DATA = Path(__file__).parents[1] / "data" / "http"
KEYS = [
    "default_generation_settings",
    "n_ctx",
    "total_slots",
    "model_path",
    "is_sleeping",
    "chat_template_caps",
    "role",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=6,
)


def test_a_real_answer() -> None:
    assert parse_props((DATA / "props.json").read_bytes()) == Props(
        model_alias="models/llama.gguf",
        model_path="models/llama.gguf",
        build_info="b0-unknown",
        total_slots=2,
        n_ctx=4096,
        is_sleeping=False,
        endpoint_metrics=True,
        role=None,
    )


def test_a_router_says_so() -> None:
    assert parse_props('{"role":"router"}').role == "router"


def test_every_field_is_optional() -> None:
    assert parse_props("{}") == Props()


def test_fields_of_another_type_are_unknown() -> None:
    answer = {"total_slots": "2", "is_sleeping": 1, "model_path": 7, "default_generation_settings": []}
    assert parse_props(json.dumps(answer)) == Props()


@pytest.mark.parametrize("body", ["", "[]", "null", "3", b"\xfe", '{"a":', "<html>"])
def test_anything_but_an_object_is_an_error(body: bytes | str) -> None:
    with pytest.raises(ParseError):
        parse_props(body)


@given(st.dictionaries(st.sampled_from(KEYS), JSON))
def test_every_object_is_read(answer: dict[str, Any]) -> None:
    assert isinstance(parse_props(json.dumps(answer)), Props)


@given(st.binary() | st.text())
def test_nothing_but_the_documented_error_is_raised(body: bytes | str) -> None:
    with contextlib.suppress(ParseError):
        parse_props(body)

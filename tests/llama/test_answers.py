"""GET /health, /props and /slots become typed facts, whatever a build leaves out or writes differently."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from specdash.core.readings import Health, HealthStatus, Props, Slot, Slots
from specdash.llama.server_answers import (
    ParseError,
    is_loading,
    parse_health,
    parse_metrics,
    parse_models,
    parse_props,
    parse_slots,
)
from support.any_value import json_values

DATA = Path(__file__).parents[1] / "data" / "http"
LOADING = '{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'
PROGRESS = LOADING[:-1] + ',"progress":%s}'


@pytest.mark.parametrize(
    ("status", "body", "health"),
    [
        (200, b'{"status":"ok"}', Health(HealthStatus.OK)),
        (200, '{"status":"no slot available"}', Health(HealthStatus.OK, "no slot available")),
        (503, LOADING, Health(HealthStatus.LOADING, "Loading model")),
        (503, '{"status":"loading model"}', Health(HealthStatus.LOADING)),
        (
            503,
            '{"error":{"message":"Loading model","progress":0.25}}',
            Health(HealthStatus.LOADING, "Loading model", progress=0.25),
        ),
        (503, PROGRESS % "0.25", Health(HealthStatus.LOADING, "Loading model", progress=0.25)),
        *(
            (503, PROGRESS % progress, Health(HealthStatus.LOADING, "Loading model"))
            for progress in ("7", "-1", "true", '"x"', "null", "NaN")
        ),
    ],
)
def test_what_a_server_says_of_its_health(status: int, body: bytes | str, health: Health) -> None:
    assert parse_health(status, body, 0.002) == replace(health, latency_s=0.002)


@pytest.mark.parametrize(("status", "body"), [(500, "oops"), (503, "<html>"), (200, '{"status":"error"}'), (302, "")])
def test_any_other_health_is_an_error(status: int, body: str) -> None:
    assert parse_health(status, body).status is HealthStatus.ERROR


@pytest.mark.parametrize("body", ["", "OK", "<html>", "[]", "{}", '{"status":1}', b"\xff\x00"])
def test_a_success_that_is_not_llama_servers_is_no_health(body: bytes | str) -> None:
    with pytest.raises(ParseError):
        parse_health(200, body)


def test_only_unavailability_is_loading() -> None:
    assert is_loading(503, LOADING)
    assert not is_loading(500, LOADING)
    assert not is_loading(503, '{"error":{"message":"busy"}}')
    assert not is_loading(503, "Loading model")


def test_the_properties_of_a_real_server() -> None:
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


def test_every_property_is_optional() -> None:
    assert parse_props("{}") == Props()


def test_properties_of_another_type_are_unknown() -> None:
    answer = {"total_slots": "2", "is_sleeping": 1, "model_path": 7, "default_generation_settings": []}
    assert parse_props(json.dumps(answer)) == Props()


def slot(**fields: Any) -> Slot:
    return parse_slots(json.dumps([fields])).slots[0]


def test_a_busy_server_of_a_real_run() -> None:
    idle, busy = parse_slots((DATA / "slots_busy_1.json").read_bytes()).slots
    assert idle == Slot(id=0, is_processing=False, n_ctx=4096, speculative=True)
    assert busy == Slot(
        id=1,
        is_processing=True,
        n_ctx=4096,
        speculative=True,
        task=2,
        n_decoded=732,
        n_remain=768,
        n_prompt_tokens=1278,
        n_prompt_tokens_processed=482,
        n_prompt_tokens_cache=0,
        speculative_types=("draft-simple", "ngram-mod"),
    )


def test_slots_that_never_served_are_stubs_with_unknown_fields() -> None:
    slots = parse_slots((DATA / "slots_fresh.json").read_bytes()).slots
    assert [entry.id for entry in slots] == [0, 1]
    assert all(entry.task is None and entry.n_decoded is None for entry in slots)


def test_next_token_is_read_as_a_list_and_as_an_object() -> None:
    token = {"n_decoded": 5, "n_remain": 7}
    assert slot(next_token=[token]) == slot(next_token=token)
    assert slot(next_token=token).n_decoded == 5


@pytest.mark.parametrize("token", [None, [], {}, [None], "x", 3])
def test_a_next_token_without_numbers_is_unknown_and_not_zero(token: Any) -> None:
    assert slot(next_token=token).n_decoded is None


def test_no_limit_and_no_task_are_unknown() -> None:
    assert slot(id_task=-1).task is None
    assert slot(next_token=[{"n_remain": -1}]).n_remain is None


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("none,draft-simple,ngram-mod", ("draft-simple", "ngram-mod")),
        ("draft-mtp", ("draft-mtp",)),
        ("none", ()),
        ("", ()),
        (None, None),
        (7, None),
    ],
)
def test_the_none_that_the_server_always_writes_is_left_out(written: Any, meant: Any) -> None:
    assert slot(params={"speculative.types": written}).speculative_types == meant


def test_a_slot_without_an_id_has_its_place_as_one() -> None:
    assert [entry.id for entry in parse_slots("[{},{}]").slots] == [0, 1]


def test_a_server_without_slots_has_none() -> None:
    assert parse_slots("[]") == Slots(())


PARSERS: list[tuple[Callable[[bytes | str], object], bytes | str]] = [
    *((parse_props, body) for body in ("", "[]", "null", "3", b"\xfe", '{"a":', "<html>")),
    *((parse_models, body) for body in ("", "[]", "null", "3")),
    *((parse_slots, body) for body in ("", "{}", "[1]", "null", "[{}", b"\xff", "[" * 100_000, '{"error":{}}')),
]


@pytest.mark.parametrize(("parse", "body"), PARSERS)
def test_anything_else_is_an_error(parse: Callable[[bytes | str], object], body: bytes | str) -> None:
    with pytest.raises(ParseError):
        parse(body)


@given(st.binary() | st.text(), st.sampled_from([200, 401, 500, 503]))
def test_nothing_but_the_documented_error_is_raised(body: bytes | str, status: int) -> None:
    for parse in (parse_props, parse_slots, parse_models, parse_metrics):
        with contextlib.suppress(ParseError):
            parse(body)
    try:
        parse_health(status, body)
    except ParseError:
        assert status == 200


KEYS = (
    *("default_generation_settings", "n_ctx", "total_slots", "model_path", "is_sleeping", "role"),
    *("id", "is_processing", "speculative", "id_task", "next_token", "params"),
)


@given(st.lists(st.dictionaries(st.sampled_from(KEYS), json_values)))
def test_every_object_is_read(entries: list[dict[str, Any]]) -> None:
    assert len(parse_slots(json.dumps(entries)).slots) == len(entries)
    for entry in entries:
        assert isinstance(parse_props(json.dumps(entry)), Props)

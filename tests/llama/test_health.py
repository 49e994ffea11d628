"""GET /health becomes ok, loading or error; a success that is not llama-server's is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.core.observations import Health, HealthStatus
from specdash.llama.bodies import ParseError
from specdash.llama.health import is_loading, parse_health

LOADING = '{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'


def test_a_healthy_server_is_ok() -> None:
    assert parse_health(200, b'{"status":"ok"}', 0.002) == Health(HealthStatus.OK, latency_s=0.002)


def test_a_loading_server_says_so() -> None:
    assert parse_health(503, LOADING) == Health(HealthStatus.LOADING, "Loading model")


def test_old_builds_name_loading_in_the_status() -> None:
    assert parse_health(503, '{"status":"loading model"}').status is HealthStatus.LOADING


@pytest.mark.parametrize(
    "body",
    [
        '{"error":{"message":"Loading model","progress":0.25}}',
        '{"progress":0.25,"error":{"message":"Loading model"}}',
    ],
)
def test_progress_is_read_where_a_server_tells_it(body: str) -> None:
    assert parse_health(503, body).progress == 0.25


@pytest.mark.parametrize("progress", ["7", "-1", "true", '"x"', "null", "NaN"])
def test_a_progress_that_is_no_fraction_is_unknown(progress: str) -> None:
    assert parse_health(503, LOADING[:-1] + f',"progress":{progress}}}').progress is None


def test_all_slots_taken_is_healthy() -> None:
    health = parse_health(200, '{"status":"no slot available"}')
    assert health == Health(HealthStatus.OK, "no slot available")


@pytest.mark.parametrize(("status", "body"), [(500, "oops"), (503, "<html>"), (200, '{"status":"error"}'), (302, "")])
def test_anything_else_is_an_error(status: int, body: str) -> None:
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


@given(st.sampled_from([200, 401, 500, 503]), st.binary() | st.text())
def test_nothing_but_the_documented_error_is_raised(status: int, body: bytes | str) -> None:
    try:
        parse_health(status, body)
    except ParseError:
        assert status == 200

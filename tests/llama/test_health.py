"""GET /health becomes ok, loading or error; a success that is not llama-server's is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from specdash.core.readings import Health, HealthStatus
from specdash.llama.server_answers import ParseError, is_loading, parse_health

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

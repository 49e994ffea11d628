"""A month of servers, downsampled by a real Prometheus, is what was told to it."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from specdash.core.errors import ExitCode
from support.fault_server import FaultServer, hangs, says
from support.outside import say
from support.prometheus import running_prometheus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.scripted_server import Behaviour

CANARY = "sk-canary-of-history"
DAY = 86400
EVERY = 120
"""Seconds between two scrapes."""
AWAY = (12 * DAY, 13 * DAY)
"""When the exporter was off, in seconds after the first sample."""
HURT = (20 * DAY, 20 * DAY + 6 * 3600)
"""When an alert was active."""
RESET = 10 * DAY
"""When the server, and with it its counters, began anew."""
TURN = 15 * DAY
"""When it became slower, and accepted less."""
PEAK = 25 * DAY
ENDED = 28 * DAY
"""When the other server's exporter ended."""


@cache
def newest() -> int:
    """The moment of the newest sample; the first is 30 days before. It is that of the first test, not of collection: a
    server whose newest sample is minutes old counts as ended."""
    return int(time.time()) // EVERY * EVERY


def month() -> str:
    """Thirty days of two servers as OpenMetrics."""
    ages = [age for age in range(0, 30 * DAY + 1, EVERY) if not AWAY[0] < age < AWAY[1]]
    busy: dict[str, Callable[[int], float]] = {
        "up": lambda _: 1.0,
        "decode_tokens_per_second": lambda age: 60.0 if age < TURN else 30.0 + (age // EVERY % 2),
        "prefill_tokens_per_second": lambda _: 800.0,
        "requests_deferred": lambda age: 9.0 if age == PEAK else 0.0,
    }
    lines: list[str] = []

    def family(name: str, kind: str, labels: str, values: list[tuple[int, float]]) -> None:
        suffix = "_total" if kind == "counter" else ""
        if (kind_of := f"# TYPE specdash_{name} {kind}") not in lines:
            lines.append(kind_of)
        lines.extend(
            f"specdash_{name}{suffix}{{{labels}}} {value} {newest() - 30 * DAY + age}" for age, value in values
        )

    def own(server: str) -> str:
        return f'server="http://{server}:8080",instance="{server}:9538",job="s"'

    for name, value in busy.items():
        family(name, "gauge", own("gpu1"), [(age, value(age)) for age in ages])
        family(name, "gauge", own("gpu2"), [(age, value(age)) for age in ages if age <= ENDED])
    for gpu, load in ((0, 0.5), (1, 0.9)):
        family("gpu_utilisation_ratio", "gauge", f'{own("gpu1")},gpu="{gpu}"', [(age, load) for age in ages])
    hurting = f'{own("gpu1")},rule="speculation_hurts",severity="warning"'
    family("alert_active", "gauge", hurting, [(age, 1.0) for age in ages if HURT[0] <= age <= HURT[1]])
    since = [age if age < RESET else age - RESET for age in ages]
    family("draft_tokens", "counter", own("gpu1"), [(age, 10.0 * own) for age, own in zip(ages, since, strict=True)])
    turn = TURN - RESET
    accepted = [
        6.0 * own if age < RESET else 6.0 * min(own, turn) + 3.0 * max(own - turn, 0)
        for age, own in zip(ages, since, strict=True)
    ]
    family("accepted_tokens", "counter", own("gpu1"), list(zip(ages, accepted, strict=True)))
    return "\n".join([*lines, "# EOF", ""])


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_prometheus(tmp_path_factory.mktemp("prometheus"), samples=month()) as url:
        yield url


def printed(url: str, *words: str) -> dict[str, Any]:
    code, out, err = say("fleet", "--prometheus", url, "--json", *words)
    assert code == ExitCode.OK, err
    document: dict[str, Any] = json.loads(out)
    return document


def ages(document: dict[str, Any]) -> list[float]:
    """The end of each step, in seconds after the first sample."""
    return [datetime.fromisoformat(at).timestamp() - newest() + 30 * DAY for at in document["times"]]


@pytest.mark.slow
def test_a_month_is_downsampled_to_what_was_told(prometheus: str) -> None:
    document = printed(prometheus, "--since", "30d")
    servers = {server["name"]: server for server in document["servers"]}
    busy, step = servers["http://gpu1:8080"], document["step_seconds"]
    assert 0 < len(document["times"]) <= 120
    judged = 0
    for at, age in enumerate(ages(document)):
        begins = age - step
        row = {name: values[at] for name, values in busy.items() if isinstance(values, list) and name != "alerts"}
        if begins < EVERY or age >= 30 * DAY:
            continue
        if AWAY[0] <= begins and age <= AWAY[1] - EVERY:
            assert set(row.values()) <= {None, 1.0, 0.0, 60.0, 800.0, 0.9}
            continue
        if begins < AWAY[1] and age > AWAY[0]:
            continue
        assert row["prefill_tokens_per_second"] == pytest.approx(800.0)
        assert row["gpu_utilisation"] == pytest.approx(0.9)
        assert row["requests_deferred"] == (9.0 if begins <= PEAK <= age else 0.0)
        if age < TURN or begins > TURN:
            judged += 1
            assert row["acceptance"] == pytest.approx(0.6 if age < TURN else 0.3, rel=1e-3)
            assert row["decode_tokens_per_second"] == pytest.approx(60.0 if age < TURN else 30.5, abs=0.01)
    assert judged > 100


@pytest.mark.slow
def test_a_gap_stays_a_gap_and_a_server_without_figures_is_dated(prometheus: str) -> None:
    document = printed(prometheus, "--since", "30d", "--step", "1h")
    servers = {server["name"]: server for server in document["servers"]}
    times = ages(document)
    inside = [at for at, age in enumerate(times) if AWAY[0] + EVERY < age - 3600 and age < AWAY[1] - EVERY]
    busy, ended = servers["http://gpu1:8080"], next(name for name in servers if "gpu2" in name)
    assert len(inside) > 20
    assert all(busy[name][at] is None for at in inside for name in ("up", "acceptance", "decode_tokens_per_second"))
    assert busy["stale_since"] is None
    stale = datetime.fromisoformat(servers[ended]["stale_since"]).timestamp() - newest() + 30 * DAY
    assert abs(stale - ENDED) <= 3600
    _, table, _ = say("fleet", "--prometheus", prometheus, "--since", "30d", "--once")
    assert "gpu2:8080" in table
    assert "NO FIGURES SINCE" in table


@pytest.mark.slow
def test_an_alert_is_a_span_as_exact_as_the_steps(prometheus: str) -> None:
    (server,) = printed(prometheus, "--since", "15d", "--step", "1h", "--server", "http://gpu1:8080")["servers"]
    (alert,) = server["alerts"]
    assert (alert["rule"], alert["severity"]) == ("speculation_hurts", "warning")
    since, until = (datetime.fromisoformat(alert[end]).timestamp() - newest() + 30 * DAY for end in ("since", "until"))
    assert abs(since - HURT[0]) <= 3600
    assert abs(until - HURT[1]) <= 2 * 3600


@pytest.mark.slow
def test_what_prometheus_refuses_or_has_not_is_said(prometheus: str) -> None:
    words = ("fleet", "--prometheus", prometheus, "--json")
    code, out, err = say(*words, "--since", "30d", "--step", "1m")
    assert (code, out) == (ExitCode.USAGE, "")
    assert "11000 points" in err
    code, out, err = say(*words, "--since", "2020-01-01", "--until", "2020-01-02")
    assert (code, out) == (ExitCode.UNREACHABLE, "")
    assert "no data about any server" in err
    assert "of the name gpu9" in say(*words, "--since", "1d", "--server", "gpu9")[2]


@contextmanager
def answering(behaviour: Behaviour) -> Iterator[str]:
    """The address of one that is a Prometheus as far as its newest values."""
    newest = says(200, json.dumps({"status": "success", "data": {"result": []}}))
    with FaultServer({"/api/v1/query": newest, "/api/v1/query_range": behaviour}) as server:
        yield server.url


def refusal(kind: str, words: str) -> str:
    return json.dumps({"status": "error", "errorType": kind, "error": words})


@pytest.mark.parametrize(
    ("behaviour", "code", "words"),
    [
        (says(401, "{}"), 3, "refuses the key (HTTP 401)"),
        (says(400, refusal("bad_data", f"exceeded maximum resolution {CANARY}")), 4, "refuses the question (bad_data)"),
        (says(422, refusal("execution", "too many samples")), 4, "--query.max-samples is its limit"),
        (says(503, refusal("timeout", "query timed out")), 4, "--query.timeout is its limit"),
        (says(404, "<html>"), 4, "is no Prometheus: HTTP 404"),
        (hangs(), 4, "does not answer within 1 s; ask for a shorter time"),
    ],
)
def test_why_there_is_no_history_is_said_and_no_key(
    behaviour: Behaviour, code: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_KEY", CANARY)
    monkeypatch.setattr("specdash.collect.prometheus.ASK_LONG_S", 1.0)
    with answering(behaviour) as url:
        asked = ("--prometheus", url, "--prometheus-key-env", "PROMETHEUS_KEY", "--since", "7d", "--json")
        found, out, err = say("fleet", *asked)
    assert (found, out) == (code, "")
    assert words in err
    assert CANARY not in err


def test_credentials_in_an_address_are_refused_and_not_repeated() -> None:
    code, out, err = say("fleet", "--prometheus", f"http://me:{CANARY}@127.0.0.1:9", "--since", "7d", "--json")
    assert (code, out) == (ExitCode.USAGE, "")
    assert "--prometheus-key-env NAME" in err
    assert CANARY not in err


@pytest.mark.parametrize(
    "words",
    [
        ("--since", "7d", "--json"),
        ("--prometheus", "http://127.0.0.1:9", "--since", "7d"),
        ("--prometheus", "http://127.0.0.1:9", "--until", "7d", "--json"),
        ("--prometheus", "http://127.0.0.1:9", "--since", "1h", "--until", "2h", "--json"),
        ("--prometheus", "http://127.0.0.1:9", "--since", "1h", "--step", "2h", "--json"),
    ],
)
def test_what_cannot_be_meant_is_refused(words: tuple[str, ...]) -> None:
    assert say("fleet", *words)[0] == ExitCode.USAGE

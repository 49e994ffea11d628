"""The hub watches everything of one target, knows when it gets no CPU itself, and ends within a second."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collect.seen import Seen, leave, routes
from specdash.collect import gpu, own_files
from specdash.collect import hub as proxy_watch
from specdash.collect.hub import SETTLE_S, SPAN_S, TICK_S, Bus, Hub, SchedulingWatch
from specdash.core import paths
from specdash.core.errors import UsageError
from specdash.core.proxy_events import ProxyStatus, RequestEvent, to_json
from specdash.core.readings import OTHER_SERVERS, STARVED_SHARE, FailureKind, Reading, Source
from specdash.core.records import ProxyRecord, RunRecord
from specdash.core.structs import json_of
from specdash.core.target import Target
from specdash.insight.state import TargetState
from support.clock import Clock
from support.fault_server import FaultServer, free_port, hangs, says
from support.waiting import until

ME = psutil.Process()


def broken(*_: Any) -> Any:
    raise ZeroDivisionError


def test_every_source_is_observed_and_a_collector_with_a_bug_says_so(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log, seen = tmp_path / "server.log", Seen()
    log.write_text("0.00.001.000 I srv  llama_server: model loaded\n")
    monkeypatch.setattr(gpu.GpuCollector, "step", broken)
    with Hub(Target(server.url, log=str(log)), [seen.take]):
        # Only a router has models to tell of.
        seen.wait_for(*(source for source in Source if source is not Source.ROUTER))
    assert seen.known(*(Source(name) for name in ("health", "props", "metrics", "slots", "log", "host", "process")))
    assert seen.kind(Source.GPU) is FailureKind.ERROR
    assert "ZeroDivisionError" in seen.detail(Source.GPU)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_where_a_server_goes_its_process_is_looked_at_at_once(server: FaultServer) -> None:
    seen = Seen()
    # At the pace of this hub's clock, its process would not be looked at again for an hour.
    with Hub(Target(server.url), [seen.take], interval_s=3600.0, gpu=False):
        seen.wait_for(Source.HEALTH, Source.PROPS, Source.METRICS, Source.SLOTS)
        until(lambda: len(seen.of(Source.PROCESS)) >= 2)
        looks = len(seen.of(Source.PROCESS))
        server.close()
        until(lambda: seen.kind(Source.HEALTH) and len(seen.of(Source.PROCESS)) > looks)


def test_that_a_server_is_on_trial_is_published_before_it_is_seen_to_go(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_files, "PERIOD_S", 15.0)
    seen, trial = Seen(), paths.trial_file()
    note = {"pid": ME.pid, "pid_started": ME.create_time(), "at": 5.0, "what": "tune", "url": server.url}
    with Hub(Target(server.url), [seen.take]):
        seen.wait_for(Source.HEALTH, Source.TRIAL)
        trial.parent.mkdir(parents=True, exist_ok=True)
        trial.write_text(json.dumps({**note, "service": "specdash-backend", "original": ""}), encoding="utf-8")
        server.close()
        until(lambda: seen.kind(Source.HEALTH))
    gone = next(at for at, reading in enumerate(seen.readings) if reading.failure and reading.source is Source.HEALTH)
    assert any(reading.source is Source.TRIAL and reading.value for reading in seen.readings[:gone])


def test_what_is_not_named_is_a_reason_and_what_is_not_wanted_is_not_observed(server: FaultServer) -> None:
    seen = Seen()
    with Hub(Target(server.url), [seen.take], gpu=False, host=False):
        seen.wait_for(Source.PROXY, Source.PROXY_EVENTS, Source.LOG, Source.SLOTS)
    for source, option in ((Source.PROXY, "--proxy-url"), (Source.PROXY_EVENTS, "--proxy-log"), (Source.LOG, "--log")):
        assert seen.kind(source) is FailureKind.NOT_CONFIGURED
        assert option in seen.detail(source)
    assert not seen.of(Source.GPU) + seen.of(Source.HOST)


class Proxies:
    """Run records of this test alone, and the proxies that they name."""

    def __init__(self, folder: Path, upstream: str) -> None:
        self.env = {"HOME": str(folder), "XDG_STATE_HOME": str(folder)}
        self.folder, self.upstream, self.seen = folder, upstream, Seen()

    def start(self, name: str, proxy: FaultServer, requests: int, *, pid: int | None = None) -> Path:
        """Let a proxy with one finished request turn up; its events file."""
        proxy.routes["/v1/context"] = says(200, json.dumps({"status": json_of(ProxyStatus(requests=requests))}))
        events, process = self.folder / f"{name}.jsonl", psutil.Process(pid)
        events.write_text(to_json(RequestEvent(1.0, "s", name)) + "\n")
        record = ProxyRecord(process.pid, process.create_time(), proxy.url, self.upstream, str(events))
        leave(self.env, record, name)
        return events

    def hub(self, **named: Any) -> Hub:
        target = Target(self.upstream, **named)
        self.state = TargetState(target)
        options: dict[str, Any] = {"interval_s": 0.25, "gpu": False, "host": False, "env": self.env}
        return Hub(target, [self.state.apply, self.seen.take], on_target=self.state.retarget, **options)

    @property
    def shown(self) -> tuple[str | None, int | None, list[str]]:
        """What the picture says of the proxy: address, requests, and the ids of finished ones."""
        proxy = self.state.picture(time.monotonic(), time.time()).proxy
        requests = proxy.live.requests if proxy.live is not None else None
        return proxy.url, requests, [request_event.request_id for request_event in proxy.finished]


@pytest.fixture
def proxies(server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proxies:
    monkeypatch.setattr(proxy_watch, "SEARCH_S", 0.02)
    return Proxies(tmp_path, server.url)


def test_a_proxy_that_starts_later_is_shown_and_when_it_ends_the_next(proxies: Proxies) -> None:
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process,
        FaultServer({}) as first,
        FaultServer({}) as second,
        proxies.hub(),
    ):
        proxies.seen.wait_for(Source.HEALTH, Source.PROXY, Source.PROXY_EVENTS)
        assert proxies.shown == (None, None, [])
        events = proxies.start("first", first, 3, pid=process.pid)
        until(lambda: proxies.shown == (first.url, 3, ["first"]))
        with events.open("a") as file:
            file.write(to_json(RequestEvent(2.0, "s", "next")) + "\n")
        until(lambda: proxies.shown[2] == ["next", "first"])
        process.communicate(b"\n", timeout=10)
        proxies.start("second", second, 8)
        until(lambda: proxies.shown == (second.url, 8, ["second"]))
        asked = first.count("/v1/context")
        until(lambda: second.count("/v1/context") > 2)
        assert first.count("/v1/context") == asked


def test_an_address_that_cannot_be_meant_is_refused_before_anything_starts() -> None:
    before = threading.active_count()
    with pytest.raises(UsageError):
        Hub(Target("ftp://x")).start()
    assert threading.active_count() == before


def test_nothing_is_published_after_the_end(server: FaultServer) -> None:
    seen = Seen()
    with Hub(Target(server.url), [seen.take]) as hub:
        seen.wait_for(Source.HEALTH, Source.HOST, Source.GPU)
    count = len(seen.readings)
    hub.stop()
    Hub(Target(server.url)).stop()
    hub.bus.publish(seen.readings[0])
    assert len(seen.readings) == count


def test_the_end_comes_within_a_second_though_everything_hangs(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.routes = dict.fromkeys(server.routes, hangs())
    released = threading.Event()
    monkeypatch.setattr(gpu.GpuCollector, "step", lambda *_: released.wait(30) and 1.0)
    hub = Hub(Target(server.url), [lambda _: None])
    hub.start()
    time.sleep(0.2)
    started = time.monotonic()
    hub.stop()
    took = time.monotonic() - started
    released.set()
    # The bound is the promise itself.
    assert took < 1.0


def test_every_sink_gets_every_reading_one_at_a_time_and_one_that_raises_disturbs_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first: list[Reading[Any]] = []
    last: list[Reading[Any]] = []
    inside, most = [0], [0]

    def slow(_: Reading[Any]) -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        threading.Event().wait(0.01)
        inside[0] -= 1

    bus, reading = Bus([first.append, slow, broken, last.append]), Reading.known(Source.HEALTH, 1.0, "fine")
    threads = [threading.Thread(target=bus.publish, args=(reading,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert first == last == [reading] * 4
    assert most == [1]
    assert [record.levelname for record in caplog.records] == ["ERROR"], "the first error alone is logged"


def test_a_new_interval_reaches_all_collectors(server: FaultServer) -> None:
    seen = Seen()
    with Hub(Target(server.url), [seen.take], interval_s=5.0, gpu=False) as hub:
        seen.wait_for(Source.HEALTH, Source.HOST)
        hub.set_interval(0.25)
        until(lambda: min(len(seen.of(Source.HEALTH)), len(seen.of(Source.HOST))) >= 5)


class Restarted:
    """A server that writes a log, and leaves a run record that names it; both are of this very process."""

    def __init__(self, home: Path, url: str) -> None:
        self.env, self._home, self.url, self.seen = {"HOME": str(home)}, home, url, Seen()

    def start(self, name: str, line: str = "one") -> Path:
        log = self._home / f"{name}.log"
        leave(self.env, RunRecord(os.getpid(), ME.create_time(), self.url, "llama.cpp", log=str(log)))
        self.write(log, line)
        return log

    def write(self, log: Path, line: str) -> None:
        with log.open("a", encoding="utf-8") as file:
            file.write(f"0.00.001.000 I srv  {log.stem}: {line}\n")

    def hub(self, target: Target, **more: Any) -> Hub:
        return Hub(target, [self.seen.take], gpu=False, host=False, env=self.env, **more)

    @property
    def lines(self) -> list[str]:
        return [line.rpartition("srv  ")[2] for batch in self.seen.values(Source.LOG) for line in batch.tail]


@pytest.fixture
def backend(server: FaultServer, tmp_path: Path) -> Restarted:
    return Restarted(tmp_path, server.url)


def test_the_log_that_the_newest_run_record_names_is_followed(backend: Restarted) -> None:
    with backend.hub(Target(backend.url)):
        backend.seen.wait_for(Source.LOG)
        backend.start("first")
        until(lambda: backend.lines == ["first: one"])
        second = backend.start("second", "two")
        until(lambda: backend.lines == ["first: one", "second: two"])
        backend.write(second, "three")
        until(lambda: backend.lines[2:] == ["second: three"])


def test_a_log_of_the_server_that_the_user_named_stays_the_one(backend: Restarted) -> None:
    named = backend.start("named")
    learnt: list[Target] = []
    with backend.hub(Target(backend.url, log=str(named), log_named=True), on_target=learnt.append):
        until(lambda: backend.lines == ["named: one"])
        backend.start("other")
        backend.write(named, "two")
        until(lambda: backend.lines == ["named: one", "named: two"] and learnt)
        assert {target.log for target in learnt} == {str(named)}


def test_where_nothing_was_ever_seen_alive_the_other_servers_are_named(backend: Restarted) -> None:
    backend.start("other")
    with backend.hub(Target(f"http://127.0.0.1:{free_port()}")):
        backend.seen.wait_for(Source.HEALTH)
    named = backend.seen.detail(Source.HEALTH, 0).partition(OTHER_SERVERS)[2]
    assert named.split(", ")[0] == backend.url


class Watched(SchedulingWatch):
    """A watch with a clock, and what it published."""

    def __init__(self) -> None:
        self.clock, self.states, self.work_s = Clock(), list[bool](), 0.0
        super().__init__(self.took, self.clock, lambda: self.work_s)
        self.sleep(SETTLE_S - TICK_S)

    def took(self, reading: Reading[Any]) -> None:
        self.states.append(reading.value.is_starved)  # type: ignore[union-attr]

    def sleep(self, *late: float) -> None:
        """Wake up so late each time."""
        for value in late:
            self.clock.now += TICK_S + value
            self.woke()


@given(st.lists(st.floats(0.0, 20.0), min_size=1, max_size=80))
def test_it_counts_as_starved_by_what_was_late_within_the_span(late: list[float]) -> None:
    watch, wakes = Watched(), list[tuple[float, float]]()
    for value in late:
        watch.sleep(value)
        wakes.append((watch.clock.now, value))
        in_span = sum(delay for at, delay in wakes if at > watch.clock.now - SPAN_S)
        if abs(in_span - STARVED_SHARE * SPAN_S) > 1e-6:
            assert watch.states[-1] == (in_span > STARVED_SHARE * SPAN_S)


def test_it_is_published_at_first_while_it_lasts_and_when_it_is_over() -> None:
    watch = Watched()
    watch.sleep(*[0.005] * 4000)
    assert watch.states == [False], "the late start is its own doing"
    watch.sleep(*[0.5] * 20, *[0.0] * 60)
    _, *during, last = watch.states
    assert (set(during), last) == ({True}, False)
    assert len(during) > 20


def test_a_silence_is_its_own_doing_where_it_slept_through_it_also_before_it_woke() -> None:
    watch = Watched()
    watch.sleep(*[0.0] * 10)
    asked = watch.clock.now
    watch.clock.now += 3.0
    assert watch.slept_since(asked), "it has not even woken yet"
    watch.woke()
    assert watch.slept_since(asked)
    later = watch.clock.now
    watch.sleep(*[0.0] * 8)
    assert not watch.slept_since(later)
    watch.clock.now += 3.0
    watch.work_s += 2.5
    assert not watch.slept_since(later), "what it took in meanwhile came in time"


@pytest.mark.slow
def test_a_specdash_that_is_stopped_and_goes_on_blames_itself_alone() -> None:
    with FaultServer(routes()) as server:
        command = [sys.executable, "-m", "specdash", "check", "--url", server.url, "--for", "20", "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        until(lambda: server.count("/metrics") >= 3, 60)
        for _ in range(3):
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(2.5)
            os.kill(process.pid, signal.SIGCONT)
            time.sleep(0.2)
        out, _ = process.communicate(timeout=90)
    rules = {alert["rule"] for alert in json.loads(out)["alerts"]}
    assert "cpu_starved" in rules
    assert rules.isdisjoint({"server_hung", "backend_down", "slot_hung", "port_taken"}), rules

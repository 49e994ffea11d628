"""`specdash up`: both programs in the foreground, kept running, and gone with it."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from specdash.backend.demo import DRAFT_MODEL, TARGET_MODEL, bundled_model, env_text, proxy_env_text
from specdash.backend.launch import free_port
from specdash.collect.run_records import live_backends, live_proxies
from specdash.control.deployment import main_pid
from specdash.core.env_edit import with_changes
from specdash.core.envfile import parse
from specdash.core.errors import ExitCode
from specdash.core.paths import backend_env_file, proxy_env_file
from support.asking import ask, healthy
from support.ended import gone
from support.help_engine import scripted_engine
from support.waiting import until

START_S = 60.0


@dataclass
class Place:
    """A home with an env file of each: of a scripted engine, and of a real proxy."""

    home: Path
    env: dict[str, str]
    backend_url: str
    proxy_url: str
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def up(self, *words: str) -> subprocess.Popen[bytes]:
        return self.start("up", *words)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        with (self.home / "said").open("ab") as said:
            command = [sys.executable, "-m", "specdash", *words]
            process = subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        self.started.append(process)
        return process

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "specdash", *words],
            env=self.env, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    @property
    def said(self) -> str:
        return (self.home / "said").read_text(encoding="utf-8")

    def ready(self) -> None:
        until(lambda: healthy(self.backend_url) and healthy(self.proxy_url), START_S, lambda: self.said)
        until(lambda: bool(live_backends(self.env)), START_S)

    def pids(self) -> dict[str, int]:
        """The runner, its engine and the proxy."""
        (backend,), (proxy,) = live_backends(self.env), live_proxies(self.env)
        return {"runner": main_pid(backend), "engine": backend.pid, "proxy": proxy.pid}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "SPECDASH_"))}
    env |= {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    ports = free_port("127.0.0.1"), free_port("127.0.0.1")
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    backend, proxy = backend_env_file(env), proxy_env_file(env)
    backend.parent.mkdir(parents=True)
    text = env_text(port=ports[0], log=tmp_path / "engine.log", spec_types=("draft-simple",), engine="xllamacpp")
    text = with_changes(parse(text + "LLAMA_START_BASELINE=0\n"), scripted_engine(tmp_path))
    backend.write_text(text, encoding="utf-8")
    proxy.write_text(proxy_env_text(port=ports[1], upstream=urls[0], events=tmp_path / "events.jsonl"), "utf-8")
    found = Place(tmp_path, env, urls[0], urls[1])
    try:
        yield found
    finally:
        for process in found.started:
            process.terminate()
            process.wait(60)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, ExitCode.OK), (signal.SIGINT, ExitCode.INTERRUPTED)], ids=["TERM", "Ctrl-C"]
)
def test_it_runs_both_and_ends_both(place: Place, number: signal.Signals, code: ExitCode) -> None:
    process = place.up()
    place.ready()
    pids = place.pids()
    process.send_signal(number)
    assert process.wait(60) == code
    assert all(gone(pid) for pid in pids.values())


def test_what_is_killed_comes_back_and_no_client_of_the_proxy_is_refused(place: Place) -> None:
    place.up()
    place.ready()
    before = place.pids()
    os.kill(before["proxy"], signal.SIGKILL)
    until(lambda: gone(before["proxy"]))
    # The listening socket outlives the proxy: this request waits for the next one.
    assert ask(f"{place.proxy_url}/v1/context", timeout=30)
    os.kill(before["runner"], signal.SIGKILL)
    until(lambda: gone(before["engine"]))
    until(lambda: bool(live_backends(place.env)), START_S)
    place.ready()
    assert not set(before.values()) & set(place.pids().values())
    assert "the proxy ended (signal SIGKILL); it starts again in 0.25 s" in place.said


def test_killed_itself_it_leaves_nothing(place: Place) -> None:
    process = place.up()
    place.ready()
    pids = place.pids()
    process.kill()
    process.wait(10)
    until(lambda: all(gone(pid) for pid in pids.values()))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--backend-env", "/nowhere.env"), ExitCode.BAD_INPUT, "env file /nowhere.env: no such file"),
        (("--draft", "x.gguf"), ExitCode.USAGE, "--draft and --profile go with --model"),
        (("--model", "/nowhere.gguf", "--backend-env", "none"), ExitCode.BAD_INPUT, "/nowhere.gguf"),
    ],
)
def test_what_cannot_be_meant_is_refused(place: Place, words: tuple[str, ...], code: ExitCode, said: str) -> None:
    done = place.command("up", *words)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr


def test_a_port_in_use_and_settings_that_cannot_be_meant_end_it_at_once(place: Place) -> None:
    place.up("proxy")
    until(lambda: healthy(place.proxy_url) is not None and bool(live_proxies(place.env)), START_S)
    done = place.command("up", "proxy")
    assert done.returncode == ExitCode.PORT_IN_USE
    assert "PROXY_PORT" in done.stderr
    backend_env_file(place.env).write_text("LLAMA_MODEL=/nowhere.gguf\n", encoding="utf-8")
    done = place.command("up", "backend")
    assert done.returncode == ExitCode.BAD_INPUT
    assert "LLAMA_MODEL" in done.stderr + done.stdout


def test_settings_that_are_spoilt_later_do_not_end_it(place: Place) -> None:
    place.up("backend")
    until(lambda: healthy(place.backend_url) and bool(live_backends(place.env)), START_S)
    (record,) = live_backends(place.env)
    file = backend_env_file(place.env)
    good = file.read_bytes()
    file.write_text("LLAMA_MODEL=/nowhere.gguf\n", encoding="utf-8")
    os.kill(main_pid(record), signal.SIGKILL)
    until(lambda: "the backend ended (exit code 3)" in place.said, START_S)
    file.write_bytes(good)
    until(lambda: healthy(place.backend_url), START_S)


def test_services_restart_works_under_it_and_stop_names_what_ends_both(place: Place) -> None:
    process = place.up()
    place.ready()
    before = place.pids()
    shown = json.loads(place.command("services", "status", "--json").stdout)
    assert [(row["manager"], row["state"]) for row in shown["services"]] == [("specdash up", "running")] * 2
    assert place.command("services", "restart", "backend").returncode == ExitCode.OK
    place.ready()
    assert place.pids()["runner"] != before["runner"]
    done = place.command("services", "stop")
    assert done.returncode == ExitCode.SERVICE
    (advice,) = re.findall(r"`(kill \d+)` ends both", done.stderr)
    subprocess.run(shlex.split(advice), check=True)
    assert process.wait(60) == ExitCode.OK
    assert place.command("services", "start").returncode == ExitCode.SERVICE


def test_a_backend_that_was_started_by_hand_is_ended_and_started_as_services_says(place: Place) -> None:
    process = place.start("backend", "run")
    until(lambda: bool(live_backends(place.env)) and healthy(place.backend_url), START_S, lambda: place.said)
    assert "listening" in place.command("services", "logs", "backend", "-n", "400").stdout
    done = place.command("services", "restart", "backend")
    assert done.returncode == ExitCode.SERVICE
    ends, starts = re.findall(r"`([^`]+)` (?:ends|starts) it", done.stderr)
    subprocess.run(shlex.split(ends), check=True)
    assert process.wait(60) == ExitCode.OK
    place.start(*shlex.split(starts)[1:])
    until(lambda: bool(live_backends(place.env)) and healthy(place.backend_url), START_S, lambda: place.said)


def test_a_log_is_followed_until_ctrl_c(place: Place) -> None:
    place.up("backend")
    until(lambda: healthy(place.backend_url) and bool(live_backends(place.env)), START_S)
    process = place.start("services", "logs", "backend", "--follow")

    def is_said() -> bool:
        with (place.home / "engine.log").open("a", encoding="utf-8") as log:
            log.write("one more line\n")
        return "one more line" in place.said

    until(is_said, START_S)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == ExitCode.INTERRUPTED


@pytest.mark.engine
def test_from_a_model_and_an_empty_home_to_an_answer_through_the_proxy(place: Place) -> None:
    for file in (backend_env_file(place.env), proxy_env_file(place.env)):
        file.unlink()
    said = place.command("up")
    assert said.returncode == ExitCode.BAD_INPUT
    (advice,) = re.findall(r"`specdash (up --model MODEL.gguf)`", said.stderr)
    words = [*advice.replace("MODEL.gguf", str(bundled_model(TARGET_MODEL))).split(), "--draft"]
    place.up(*words[1:], str(bundled_model(DRAFT_MODEL)))
    until(lambda: bool(live_proxies(place.env)) and bool(live_backends(place.env)), START_S, lambda: place.said)
    (proxy,), (backend,) = live_proxies(place.env), live_backends(place.env)
    until(lambda: healthy(backend.url), START_S)
    body = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "the speculative decoder"}]}
    assert ask(f"{proxy.url}/v1/messages", body, timeout=60)["content"]
    for file in (backend_env_file(place.env), proxy_env_file(place.env)):
        assert file.stat().st_mode & 0o777 == 0o600
        lines = file.read_text(encoding="utf-8").splitlines()
        assert all(lines[at - 1].startswith("# ") for at, line in enumerate(lines) if "=" in line and line[0] != "#")
    until(lambda: "ready: " in place.said, START_S, lambda: place.said)
    (ready,) = [line for line in place.said.splitlines() if line.startswith("ready: ")]
    variables = dict(word.split("=", 1) for word in shlex.split(ready.partition("; ")[2])[:-1])
    assert variables == {
        "ANTHROPIC_BASE_URL": proxy.url,
        "ANTHROPIC_AUTH_TOKEN": "local",
        "ANTHROPIC_MODEL": ask(f"{proxy.url}/v1/models")["data"][0]["id"],
    }
    assert ready in place.command("services", "status").stdout.splitlines()
    assert json.loads(place.command("services", "status", "--json").stdout)["clients"]["url"] == proxy.url

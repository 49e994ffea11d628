"""`specdash up`: both programs in the foreground, kept running, and gone with it."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specdash.backend.demo import DRAFT_MODEL, TARGET_MODEL, bundled_model
from specdash.collect.run_records import live_backends, live_proxies
from specdash.control.deployment import main_pid
from specdash.core.errors import ExitCode
from specdash.core.paths import backend_env_file, proxy_env_file
from support.asking import ask, healthy
from support.ended import gone
from support.place import START_S, Place, place
from support.waiting import until

pytestmark = pytest.mark.slow
__all__ = ["place"]


def test_what_is_killed_comes_back_no_client_of_the_proxy_is_refused_and_ctrl_c_ends_both(place: Place) -> None:
    process = place.up()
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
    pids = place.pids()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == ExitCode.INTERRUPTED
    assert all(gone(pid) for pid in pids.values())


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


def test_settings_that_are_spoilt_later_do_not_end_it_and_its_log_is_followed_until_ctrl_c(place: Place) -> None:
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
    process = place.start("services", "logs", "backend", "--follow")

    def is_said() -> bool:
        with (place.home / "engine.log").open("a", encoding="utf-8") as log:
            log.write("one more line\n")
        return "one more line" in place.said

    until(is_said, START_S)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == ExitCode.INTERRUPTED


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


@pytest.mark.engine
def test_a_full_disk_behind_its_output_ends_no_service(place: Place) -> None:
    for file in (backend_env_file(place.env), proxy_env_file(place.env)):
        file.unlink()
    words = ["--model", str(bundled_model(TARGET_MODEL))]
    assert place.command("services", "install", *words).returncode == ExitCode.SERVICE  # wrote the env files
    command = [sys.executable, "-m", "specdash", "up"]
    with Path("/dev/full").open("wb") as full:
        place.started.append(subprocess.Popen(command, env=place.env, stdin=subprocess.DEVNULL, stdout=full))
    until(lambda: "\nready: " in place.command("services", "status").stdout, START_S)
    time.sleep(1.0)  # it has looked again meanwhile, and printed the same line
    assert place.started[0].poll() is None


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


def test_a_full_disk_behind_its_standard_error_does_not_end_it(place: Place) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "specdash", "up", "backend"]
        nothing = subprocess.DEVNULL
        process = subprocess.Popen(command, env=place.env, stdin=nothing, stdout=nothing, stderr=full)
    place.started.append(process)
    until(lambda: healthy(place.backend_url) and bool(live_backends(place.env)), START_S)
    (before,) = live_backends(place.env)
    os.kill(main_pid(before), signal.SIGKILL)
    until(lambda: any(record.pid != before.pid for record in live_backends(place.env)), START_S)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == ExitCode.INTERRUPTED

"""The proxy in front of a server is the one whose run record says so, and whose process lives."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from specdash.collect.discover import with_proxy
from specdash.core import paths
from specdash.core.records import ProxyRecord
from specdash.core.target import Target

SERVER = Target("http://127.0.0.1:8080")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}


def leave(env: dict[str, str], name: str = "1", **changes: Any) -> ProxyRecord:
    values: dict[str, Any] = {
        "pid": os.getpid(),
        "pid_started": psutil.Process().create_time(),
        "url": "http://127.0.0.1:4000",
        "upstream": "http://localhost:8080",
        "events": "/state/proxy-events.jsonl",
    }
    record = ProxyRecord(**{**values, **changes})
    folder = paths.proxy_records_dir(env)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(record.to_json())
    return record


def test_a_server_gets_the_proxy_whose_upstream_it_is_with_its_key(env: dict[str, str], tmp_path: Path) -> None:
    leave(env, "other", upstream="http://127.0.0.1:9999", url="http://127.0.0.1:5000")
    leave(env, "mine")
    found = with_proxy(SERVER, env)
    assert found.proxy_url == "http://127.0.0.1:4000"
    assert found.proxy_log == "/state/proxy-events.jsonl"
    assert found.proxy_origin == f"run record of process {os.getpid()}"
    file = tmp_path / "proxy.env"
    file.write_text("PROXY_API_KEY=sk-file\n")
    leave(env, "mine", api_key_env="PROXY_API_KEY", env_file=str(file), events=None, log="/var/log/proxy.log")
    assert with_proxy(SERVER, env).proxy_key == "sk-file"
    assert with_proxy(SERVER, env).proxy_log is None, "its text log is not read for events"
    assert with_proxy(SERVER, {**env, "PROXY_API_KEY": "sk-env"}).proxy_key == "sk-env"


@pytest.mark.parametrize(
    "changes", [{"pid_started": 1.0}, {"pid": 2**22 + 1}, {"upstream": "http://127.0.0.1:8081"}, {"url": "ftp://x"}]
)
def test_a_record_of_a_dead_or_another_proxy_is_void(env: dict[str, str], changes: dict[str, Any]) -> None:
    assert with_proxy(SERVER, env) == SERVER
    leave(env, **changes)
    (paths.proxy_records_dir(env) / "broken.json").write_text('{"pid": 1')
    assert with_proxy(SERVER, env) == SERVER


def test_what_the_user_named_of_a_proxy_stays(env: dict[str, str]) -> None:
    leave(env)
    named = replace(SERVER, proxy_url="http://127.0.0.1:9", proxy_origin="--proxy-url")
    assert with_proxy(named, env) == named
    found = with_proxy(replace(SERVER, proxy_log="/mine.log", proxy_key="sk-mine"), env)
    assert (found.proxy_url, found.proxy_log, found.proxy_key) == (
        "http://127.0.0.1:4000",
        "/mine.log",
        "sk-mine",
    )
    assert found.proxy_found == ("proxy_url", "proxy_origin")


@pytest.fixture
def other() -> Iterator[psutil.Process]:
    """A process that a test may end."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.kill()
        process.communicate(timeout=10)


def test_a_proxy_that_was_found_stays_while_it_runs_and_until_another_is_found(
    env: dict[str, str], other: psutil.Process
) -> None:
    first = replace(SERVER, proxy_log="/mine.log")
    assert with_proxy(first, env) == first
    leave(env, pid=other.pid, pid_started=other.create_time())
    found = with_proxy(first, env)
    leave(env, "younger", url="http://127.0.0.1:4444")
    assert with_proxy(found, env) == found
    (paths.proxy_records_dir(env) / "younger.json").unlink()
    other.kill()
    other.wait(10)
    assert with_proxy(found, env) == found
    leave(env, "2", url="http://127.0.0.1:4001")
    found = with_proxy(found, env)
    assert (found.proxy_url, found.proxy_log) == ("http://127.0.0.1:4001", "/mine.log")

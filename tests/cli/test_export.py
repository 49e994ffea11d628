"""`specdash export`: a real server's metrics, on a port and printed once."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from specdash.backend.demo import DRAFT_MODEL, TARGET_MODEL, bundled_model
from specdash.backend.launch import free_port
from specdash.collect import discover
from support.asking import read
from support.engines import engine_env, running_backend
from support.outside import say
from support.waiting import until

RULES = Path(__file__).parents[2] / "contrib" / "prometheus" / "rules.yml"
KEY = "sk-canary-0123456789"


@contextmanager
def exporter(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and the address of its page."""
    command = [sys.executable, "-m", "specdash", "export", "--listen", "127.0.0.1:0", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "CANARY": KEY})
    try:
        assert process.stderr is not None
        yield process, next(line for line in process.stderr if "metrics on" in line).split()[-1]
    finally:
        process.kill()
        process.communicate()


def page(url: str) -> str:
    return read(url, timeout=20).decode()


def value(text: str, name: str) -> float | None:
    """The value of the first sample of that name."""
    row = next(
        (line for line in text.splitlines() if line.startswith((f"specdash_{name}{{", f"specdash_{name} "))), None
    )
    return float(row.rsplit(" ", 1)[1]) if row is not None else None


@pytest.mark.engine
def test_a_scrape_tells_what_the_server_did_and_no_key(tmp_path: Path) -> None:
    env = {
        "LLAMA_MODEL": str(bundled_model(TARGET_MODEL)), "LLAMA_DRAFT_MODEL": str(bundled_model(DRAFT_MODEL)),
        "LLAMA_SPEC_TYPE": "draft-simple", "LLAMA_THREADS": "1", "LLAMA_START_BASELINE": "0",
        **engine_env("xllamacpp"),
    }  # fmt: skip
    with (
        running_backend(env, tmp_path) as backend,
        exporter("--url", backend.url, "--log", str(backend.log), "--api-key-env", "CANARY") as (process, url),
    ):
        until(lambda: value(page(url), "up") == 1.0, 20.0)
        for number in range(3):
            backend.complete(f"Once upon a time {number}", 24)
        counted = "request_time_per_output_token_seconds_count"
        until(lambda: value(page(url), counted) == 3.0, 20.0, lambda: page(url))
        own = next(
            float(line.split()[1])
            for line in page(f"{backend.url}/metrics").splitlines()
            if line.startswith("llamacpp:spec_decode_num_draft_tokens_total")
        )
        assert own > 0
        until(lambda: value(page(url), "draft_tokens_total") == own, 20.0)
        text = page(url)
        assert KEY not in text
        if promtool := shutil.which("promtool"):
            checked = subprocess.run(
                [promtool, "check", "metrics"], input=text, text=True, capture_output=True, timeout=30, check=False
            )
            assert checked.returncode == 0, checked.stdout + checked.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_it_waits_for_a_server_that_is_away_and_says_so() -> None:
    with exporter("--url", "http://127.0.0.1:9") as (_, url):
        until(lambda: value(page(url), "up") == 0.0, 20.0)


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["--listen", "9538"], 2, "--listen 9538: must be HOST:PORT"),
        (["--listen", "127.0.0.1:²"], 2, "--listen 127.0.0.1:²: must be HOST:PORT"),
        (["--listen", "127.0.0.1:70000"], 2, "--listen 127.0.0.1:70000: must be HOST:PORT"),
        (["--all", "--url", "http://127.0.0.1:9"], 2, "--all and --url"),
        (["--once", "--listen", "127.0.0.1:1"], 2, "not allowed with"),
        (["--once"], 4, "no llama-server found"),
    ],
)
def test_what_cannot_be_meant_is_said(
    words: list[str], code: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discover, "discover", lambda *_: [])
    found, out, err = say("export", *words)
    assert (found, out) == (code, "")
    assert reason in err


def test_a_port_in_use_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        code, _, err = say("export", "--url", "http://127.0.0.1:9", "--listen", place)
    assert code == 3
    assert f"--listen {place}: Address already in use" in err


@pytest.mark.slow
def test_a_real_prometheus_scrapes_it_knows_its_alerts_and_is_read_back(tmp_path: Path) -> None:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("needs prometheus (Debian's package)")
    with exporter("--url", "http://127.0.0.1:9") as (_, url):
        config = tmp_path / "prometheus.yml"
        config.write_text(
            f"global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{RULES}]\n"
            f"scrape_configs: [{{job_name: s, static_configs: [{{targets: ['{urlsplit(url).netloc}']}}]}}]\n",
            encoding="utf-8",
        )
        place = f"127.0.0.1:{free_port('127.0.0.1')}"
        command = [program, f"--config.file={config}", f"--storage.tsdb.path={tmp_path}/data"]
        with subprocess.Popen([*command, f"--web.listen-address={place}"], stderr=subprocess.DEVNULL) as prometheus:
            try:
                until(lambda: _answer(place, "query?query=specdash_up").get("result"), 30.0)
                (row,) = _answer(place, "query?query=specdash_up")["result"]
                assert row["metric"]["server"] == "http://127.0.0.1:9"
                assert row["value"][1] == "0"
                until(
                    lambda: (
                        "SpecdashBackendDown"
                        in {alert["labels"]["alertname"] for alert in _answer(place, "alerts").get("alerts", ())}
                    ),
                    30.0,
                )
                code, out, _ = say("fleet", "--json", "--prometheus", f"http://{place}")
                (known,) = json.loads(out)["rows"]
                assert (code, known["url"], known["state"]) == (4, "http://127.0.0.1:9", "down")
                assert known["cause"] == "Server is down"
            finally:
                prometheus.terminate()


def _answer(place: str, path: str) -> Any:
    try:
        return json.loads(page(f"http://{place}/api/v1/{path}"))["data"]
    except OSError:
        return {}

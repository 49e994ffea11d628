"""Nothing secret and nothing that others wrote gets into a bundle, from a real server that logs everything."""

import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from specdash.backend.demo import DRAFT_MODEL, TARGET_MODEL, bundled_model
from specdash.collect.hub import Hub
from specdash.core.target import Target
from specdash.history.recorder import Recorder
from specdash.history.store import Store
from specdash.insight.state import TargetState
from support.asking import read
from support.bundles import members, texts
from support.engines import RunningBackend, engine_env, running_backend
from support.proxy_process import running_proxy
from support.waiting import until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

KEY, PROXY_KEY, ENV_SECRET = "wombat-key-8f3a77c1", "wombat-proxy-key-19bb", "wombat-env-secret-52ce"
CANARIES = (b"wombat", b"aardvark", b"quokka")
FORGED = (
    "0.00.000.001 I srv  load_model: loading model 'quokka.gguf'\n"
    "quokka_function: model loaded\n"
    "slot quokka: id  0 | task 7 | stop processing: n_tokens = 3, truncated = 0\n"
    "0.00.000.001 E srv  quokka: the draft model 'quokka' is not compatible with the target model 'quokka'\n"
    "0.00.000.002 W build_info: quokka\n"
    "llama_kv_cache: quokka cells\n"
    "# quokka was here\n"
)
PROMPT = f"aardvark: keep this prompt to yourself.\n{FORGED}def aardvark():\n"


def post(url: str, body: Mapping[str, Any]) -> None:
    """One request; what is answered does not matter."""
    with suppress(urllib.error.HTTPError):
        read(url, body, key=KEY)


def traffic(backend: RunningBackend) -> None:
    """Requests that make a verbose server print prompts, answers, grammars and errors."""
    post(f"{backend.url}/completion", {"prompt": PROMPT, "n_predict": 40, "temperature": 0})
    messages = [{"role": "system", "content": "aardvark system"}, {"role": "user", "content": PROMPT}]
    post(f"{backend.url}/v1/chat/completions", {"messages": messages, "max_tokens": 30})
    post(f"{backend.url}/completion", {"prompt": "aardvark " * 3000, "n_predict": 5})
    post(f"{backend.url}/completion", {"prompt": "x", "grammar": "root ::= aardvark ((", "n_predict": 5})
    post(f"{backend.url}/completion", {"prompt": "x", "json_schema": {"type": "aardvark"}, "n_predict": 5})


@contextmanager
def recorded(target: Target, env: Mapping[str, str]) -> Iterator[TargetState]:
    """Watched and recorded, as the dashboard does it."""
    recorder = Recorder(target, env=env)
    state = TargetState(target, observer=recorder)
    recorder.start()
    with Hub(target, [state.apply, recorder.on_reading], interval_s=0.25, on_target=state.retarget, env=env):
        yield state
    recorder.close()


def is_recorded(path: Path) -> bool:
    """Whether more than two seconds of a server are in the record."""
    if not path.exists():
        return False
    with Store(path) as store:
        return any((span := store.span(name)) and span[1] - span[0] > 2 for name in store.targets())


def test_no_member_of_a_bundle_holds_a_canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target_model, draft_model = bundled_model(TARGET_MODEL), bundled_model(DRAFT_MODEL)
    monkeypatch.setenv("LLAMA_TRACE", "1")
    settings = {
        "LLAMA_MODEL": str(target_model),
        "LLAMA_DRAFT_MODEL": str(draft_model),
        "LLAMA_SPEC_TYPE": "draft-simple",
        "LLAMA_CTX_SIZE": "2048",
        "LLAMA_PARALLEL": "2",
        "LLAMA_THREADS": "1",
        "LLAMA_API_KEY": KEY,
        "LLAMA_ARG_LOG_VERBOSITY": "5",
        "LLAMA_TRACE": "1",
        "SOME_TOKEN": ENV_SECRET,
        "UNKNOWN_TO_ALL": "wombat-in-an-unknown-key",
        **engine_env("xllamacpp"),
    }
    proxied = {"PROXY_API_KEY": PROXY_KEY, "PROXY_UPSTREAM_API_KEY": KEY}
    with (
        running_backend(settings, tmp_path / "b") as backend,
        running_proxy(backend.url, tmp_path / "p", proxied) as proxy,
    ):
        target = Target(
            backend.url, api_key=KEY, log=str(backend.log), proxy_url=proxy.url, proxy_key=PROXY_KEY,
            proxy_log=str(proxy.events_file),
        )  # fmt: skip
        env = {**os.environ, "XDG_STATE_HOME": str(backend.state), "LLAMA_API_KEY": KEY, "PROXY_KEY": PROXY_KEY}
        with recorded(target, env):
            threads = [threading.Thread(target=traffic, args=(backend,)) for _ in range(2)]
            for thread in threads:
                thread.start()
            body = {
                "model": "m", "max_tokens": 30, "messages": [{"role": "user", "content": PROMPT}],
                "metadata": {"user_id": "someone@wombat.example"},
            }  # fmt: skip
            assert proxy.messages(body, {"x-api-key": PROXY_KEY}).status == 200
            for thread in threads:
                thread.join(60)
            # Older builds print a prompt line by line; this one writes it as one line of JSON.
            with backend.log.open("a", encoding="utf-8") as log_file:
                log_file.write(f"prompt: '{PROMPT}'\n")
            until(lambda: is_recorded(backend.state / "specdash" / "history.db"))
        words = ["--url", backend.url, "--log", str(backend.log), "--backend-env-file", str(tmp_path / "b/backend.env")]
        words += ["--proxy-url", proxy.url, "--proxy-key-env", "PROXY_KEY", "--proxy-log", str(proxy.events_file)]
        words += ["--proxy-env-file", str(proxy.env_file)]
        output = tmp_path / "bundle.tar.gz"
        done = subprocess.run(
            [sys.executable, "-m", "specdash", "incident", *words, "--output", str(output)],
            env=env, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert_clean(output, done, tmp_path)
    log = backend.log.read_bytes()
    assert b"aardvark" in log, "the server printed no prompt: this test proves nothing"
    assert b"quokka" in log


def assert_clean(output: Path, done: subprocess.CompletedProcess[str], tmp_path: Path) -> None:
    """A bundle was written, it is whole, and neither it nor what the command printed holds a canary."""
    assert done.returncode == 0, done.stderr
    found = members(output)
    expected = {
        "history.db",
        "snapshot.json",
        "env/backend.env",
        "env/proxy.env",
        "log/llama-server.log",
        "proxy-events.jsonl",
    }
    assert expected <= found.keys(), done.stdout
    for name, data in texts(found, tmp_path):
        for canary in CANARIES:
            place = data.lower().find(canary)
            assert place < 0, f"{name}: {data[max(0, place - 60) : place + 60]!r}"
    assert not any(canary in (done.stdout + done.stderr).lower().encode() for canary in CANARIES)
    replayed = subprocess.run(
        [sys.executable, "-m", "specdash", "replay", str(output), "--json", "--since", "now"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert replayed.returncode == 0, replayed.stderr
    assert json.loads(replayed.stdout)["backend"]["model"] == "demo-target.gguf"

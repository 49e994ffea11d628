"""`specdash targets`: what a first look at the servers of this machine shows, and what the choice among them says."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from specdash.backend.demo import TARGET_MODEL, bundled_model
from specdash.cli import options
from specdash.cli.servers import targets
from specdash.collect.targets import look_at
from specdash.core.target import Target
from support.engines import RunningBackend, running_backend
from support.fault_server import FaultServer, free_port, hangs, says
from support.outside import say

OK, KEY = says(200, '{"status":"ok"}'), says(401, '{"error":{"message":"Invalid API Key"}}')
LOADING = says(503, '{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}')


@pytest.mark.parametrize(
    ("health", "props", "state", "answers", "needs_key"),
    [
        (OK, KEY, "wants a key", True, True),
        (LOADING, LOADING, "loading", True, None),
        (OK, hangs(), "ok", True, None),
        (hangs(), hangs(), "no answer in time", False, None),
    ],
)
def test_a_look_says_in_words_how_a_server_is(
    health: object, props: object, state: str, answers: bool, needs_key: bool | None
) -> None:
    with FaultServer({"/health": health, "/props": props}) as server:  # type: ignore[dict-item]
        look = look_at([Target(server.url)])[0]
    assert (look.state_words, look.answers, look.needs_key) == (state, answers, needs_key)


def test_a_key_that_is_refused_is_not_taken_for_one_that_is_missing() -> None:
    with FaultServer({"/health": OK, "/props": KEY}) as server:
        looks = look_at([Target(server.url, api_key="of-another-server")])
    assert looks[0].state_words == "refuses the key"
    printed = json.dumps(targets.to_json(looks)) + "\n".join(targets.to_text(looks))
    assert "of-another-server" not in printed


def test_a_server_that_is_gone_does_not_answer() -> None:
    look = look_at([Target(f"http://127.0.0.1:{free_port()}")])[0]
    assert (look.answers, look.state, look.model) == (False, "connection refused", None)


def test_where_none_is_found_the_exit_code_is_that_of_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdash.collect.discover.discover", lambda _env: [])
    code, out, err = say("targets")
    assert (code, out) == (4, "")
    assert "no llama-server found" in err
    assert say("snapshot")[0] == 4
    assert json.loads(say("targets", "--json")[1]) == {"schema": 1, "targets": []}


def test_taking_the_best_of_several_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    several = [Target("http://127.0.0.1:1"), Target("http://127.0.0.1:2")]
    monkeypatch.setattr("specdash.collect.discover.discover", lambda _env: several)
    settings = options.resolved_settings(None)
    assert options.one_target(settings).url == "http://127.0.0.1:1"
    assert capsys.readouterr().err.startswith("specdash: 2 servers found, using http://127.0.0.1:1;")
    monkeypatch.setattr("specdash.collect.discover.discover", lambda _env: several[:1])
    options.one_target(settings)
    assert capsys.readouterr().err == ""


def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, *here: Target) -> None:
    """What config.toml says, and the servers that are found on this machine."""
    (tmp_path / "specdash").mkdir()
    (tmp_path / "specdash" / "config.toml").write_text(text)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("specdash.collect.discover.discover", lambda _env: list(here))


def test_targets_of_the_file_join_those_of_this_machine_each_with_what_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
        api_key_env = "HERE"
        [[target]]
        name = "far"
        url = "http://gpu1:8080/"
        api_key_env = "FAR"
        [[target]]
        name = "near"
        url = "http://localhost:2"
        [[target]]
        name = "unset"
        url = "http://gpu2"
        api_key_env = "UNSET"
    """
    here = [Target("http://127.0.0.1:1"), Target("http://127.0.0.1:2", pid=7, log="near.log", origin="process 7")]
    configured(tmp_path, monkeypatch, text, *here)
    monkeypatch.setenv("HERE", "sk-here")
    monkeypatch.setenv("FAR", "sk-far")
    targets = options.find_targets(options.resolved_settings(None))
    assert [(target.label, target.url, target.api_key) for target in targets] == [
        ("http://127.0.0.1:1", "http://127.0.0.1:1", "sk-here"),
        ("near", "http://localhost:2", None),
        ("far", "http://gpu1:8080", "sk-far"),
        ("unset", "http://gpu2", None),
    ]
    assert (targets[1].pid, targets[1].log) == (7, "near.log")
    assert targets[1].origin.endswith('[[target]] "near"; process 7')


def test_a_key_that_cannot_be_read_is_said_once_however_often_servers_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configured(tmp_path, monkeypatch, '[[target]]\nname = "gpu"\nurl = "http://gpu1"\napi_key_env = "NEVER_SET"\n')
    for _ in range(3):
        options.find_targets(options.resolved_settings(None))
    said = capsys.readouterr().err
    assert said.count("NEVER_SET") == 1
    assert '[[target]] "gpu"' in said


def test_a_key_goes_to_its_own_target_and_onto_no_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FaultServer({"/health": OK, "/props": KEY}) as first, FaultServer({"/health": OK, "/props": KEY}) as second:
        text = "api_key_env = 'KEY_0'\n"
        for number, server in enumerate((first, second), 1):
            text += f"[[target]]\nname = 'gpu{number}'\nurl = '{server.url}'\napi_key_env = 'KEY_{number}'\n"
        configured(tmp_path, monkeypatch, text)
        for number in range(3):
            monkeypatch.setenv(f"KEY_{number}", f"sk-canary-{number}")
        printed = [say("targets"), say("targets", "--json"), say("snapshot", "--target", "gpu2")]
        printed += [say("config", "show"), say("config", "show", "--json")]
        heads = ["".join(call.head for call in server.calls) for server in (first, second)]
    assert "sk-canary" not in str(printed)
    assert {key for key in ("0", "1", "2") if f"sk-canary-{key}" in heads[0]} == {"1"}
    assert {key for key in ("0", "1", "2") if f"sk-canary-{key}" in heads[1]} == {"2"}


def test_a_name_is_used_in_the_place_of_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configured(tmp_path, monkeypatch, f"[[target]]\nname = 'gpu1'\nurl = 'http://127.0.0.1:{free_port()}'\n")
    assert say("status", "--target", "gpu1")[0] == 4
    assert say("status", "--target", "gpu1", "--url", "http://x") == (
        2,
        "",
        "specdash: --target and --url cannot be used together\n",
    )
    assert "did you mean 'gpu1'?" in say("status", "--target", "gpu")[2]


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBackend]:
    values = {"LLAMA_ENGINE": "xllamacpp", "LLAMA_MODEL": str(bundled_model(TARGET_MODEL)), "LLAMA_CTX_SIZE": "1024"}
    with running_backend(values, tmp_path_factory.mktemp("targets")) as running:
        yield running


@pytest.mark.engine
def test_a_real_server_is_a_row_with_its_model(backend: RunningBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(backend.state))
    # The server answers a moment before the runner leaves its record.
    backend.wait_record()
    code, out, err = say("targets", "--json")
    assert (code, err) == (0, "")
    row = next(row for row in json.loads(out)["targets"] if row["url"] == backend.url)
    assert row["answers"]
    assert row["needs_key"] is False
    assert row["model"]
    assert row["origin"].startswith("run record")

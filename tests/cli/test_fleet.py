"""`specdash fleet`: every server at once, for people and for scripts."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from collect.test_fleet import ROUTES
from specdash.backend.demo import DRAFT_MODEL, TARGET_MODEL, bundled_model
from specdash.cli.servers.fleet import Fleet
from specdash.core.errors import ExitCode
from specdash.core.target import Target
from support.asking import complete
from support.engines import running_backend
from support.fault_server import FaultServer, drips, free_port, hangs, says
from support.outside import say
from support.router import running_router
from support.scripted_server import Behaviour
from support.waiting import until

CANARY = "sk-canary-of-fleet"
FAR = "0.0.0.0.nip.invalid"
"""A name that nobody resolves: no server of this machine."""


@pytest.fixture(autouse=True)
def _nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdash.collect.discover.discover", lambda _env: [])


def configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **urls: str) -> None:
    """A table for each, with a key."""
    directory = tmp_path / "config" / "specdash"
    directory.mkdir(parents=True)
    tables = (f'[[target]]\nname = "{name}"\nurl = "{url}"\napi_key_env = "FLEET_KEY"\n' for name, url in urls.items())
    (directory / "config.toml").write_text("".join(tables))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(directory.parent))
    monkeypatch.setenv("FLEET_KEY", CANARY)


def printed(*words: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the rows by name, and everything that was printed."""
    code, out, err = say("fleet", "--json", *words)
    rows = json.loads(out)["rows"]
    return code, {row["name"]: row for row in rows}, out + err


def test_another_machine_is_a_row_that_says_how_it_is_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with FaultServer(ROUTES) as near:
        configured(monkeypatch, tmp_path, near=near.url, far="ssh://ann@gpu1/127.0.0.1:8081")
        code, rows, _ = printed()
    assert code == ExitCode.OK
    assert (rows["near"]["state"], rows["far"]["state"]) == ("live", "elsewhere")
    assert "`specdash --on ann@gpu1/127.0.0.1:8081`" in rows["far"]["reason"]
    assert rows["far"]["answers"] is False
    code, out, _ = say("targets")
    assert "specdash --on ann@gpu1" in out
    assert code == ExitCode.UNREACHABLE


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (says(401, "{}"), 3, "refuses the key (HTTP 401)"),
        (says(200, "<html>"), 4, "is no Prometheus"),
        (says(200, '{"status":"success","data":{"result":[]}}'), 4, "has no data from `specdash export`"),
    ],
)
def test_a_prometheus_that_is_none_or_knows_nothing_is_said(
    answer: Behaviour, code: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_KEY", CANARY)
    with FaultServer({"/api/v1/query": answer}) as server:
        found, out, err = say("fleet", "--once", "--prometheus", server.url, "--prometheus-key-env", "PROMETHEUS_KEY")
    assert (found, out) == (code, "")
    assert words in err
    assert CANARY not in err


def test_a_dead_a_mute_and_a_dripping_server_are_rows_and_the_others_have_their_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mute = FaultServer(dict.fromkeys(ROUTES, hangs()))
    dripping = FaultServer(dict.fromkeys(ROUTES, drips(b"HTTP/1.1 200 OK\r\n")))
    locked = FaultServer(ROUTES | dict.fromkeys(("/props", "/metrics", "/slots"), says(401, f'{{"error":"{CANARY}"}}')))
    with mute, dripping, locked, FaultServer(ROUTES) as good:
        gone = f"http://127.0.0.1:{free_port()}"
        configured(
            monkeypatch, tmp_path, gone=gone, mute=mute.url, dripping=dripping.url, locked=locked.url, good=good.url
        )
        code, rows, text = printed()
        table = say("fleet", "--once")[1]
    assert code == ExitCode.OK
    assert {name: row["answers"] for name, row in rows.items()} == {
        "gone": False, "mute": False, "dripping": False, "locked": True, "good": True,
    }  # fmt: skip
    assert list(rows)[-1] == "good"
    assert (rows["good"]["state"], rows["good"]["slots"], rows["good"]["slots_busy"]) == ("live", 2, 1)
    assert rows["locked"]["state"] == "unauthorized"
    assert (rows["gone"]["decode"]["tokens_per_second"], rows["gone"]["slots"]) == (None, None)
    assert CANARY not in text + table
    assert [line.split()[0] for line in table.splitlines()][-1] == "good"


def test_where_nobody_answers_the_exit_code_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    configured(monkeypatch, tmp_path, gone=f"http://127.0.0.1:{free_port()}")
    assert printed()[0] == ExitCode.UNREACHABLE


def test_where_there_is_none_it_is_said_how_to_name_one() -> None:
    code, out, err = say("fleet", "--once")
    assert (code, out) == (ExitCode.UNREACHABLE, "")
    assert 'name = "gpu1"' in err


@pytest.mark.parametrize("words", [("--wait", "1"), ("--json", "--wait", "-1"), ("--json", "--once"), ()])
def test_what_cannot_be_meant_is_refused(words: tuple[str, ...]) -> None:
    assert say("fleet", *words)[0] == ExitCode.USAGE


def test_a_row_that_nobody_looks_at_is_made_anew_less_often_and_at_once_where_its_state_changes() -> None:
    with FaultServer(ROUTES) as server, Fleet([Target(server.url, name="a")], (), 0.5, 300.0) as fleet:
        until(lambda: fleet.rows()[0].state == "live")
        unseen = fleet.rows(())[0]
        assert fleet.rows(())[0] is unseen
        assert fleet.rows({"a"})[0] is not unseen
        server.close()
        until(lambda: fleet.rows(())[0].state == "down")


@pytest.mark.engine
def test_two_real_servers_are_two_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = {"LLAMA_ENGINE": "xllamacpp", "LLAMA_MODEL": str(bundled_model(TARGET_MODEL)), "LLAMA_CTX_SIZE": "1024"}
    draft = {"LLAMA_DRAFT_MODEL": str(bundled_model(DRAFT_MODEL)), "LLAMA_SPEC_TYPE": "draft-simple"}
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(running_backend(model | more, tmp_path / name))
            for name, more in (("plain", {}), ("drafting", draft))
        )
        configured(monkeypatch, tmp_path, plain=first.url, drafting=second.url)
        complete(second.url, "import os\n\ndef walk(path):\n", 64)
        code, rows, _ = printed("--wait", "2")
        table = say("fleet", "--once")[1]
    assert code == ExitCode.OK
    assert {row["state"] for row in rows.values()} == {"live"}
    assert rows["plain"]["verdict"] == "not speculating"
    assert rows["drafting"]["acceptance"] is not None
    assert rows["drafting"]["decode"]["tokens_per_second"] > 0
    assert "NOT SPECULATING" in table


@pytest.mark.llama_server
def test_the_models_of_a_real_router_are_rows_and_none_is_loaded_by_looking(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with running_router(tmp_path) as router:
        router.use("beta")
        configured(monkeypatch, tmp_path, router=router.url)
        rows = printed("--wait", "3")[1]
        assert {name: row["state"] for name, row in rows.items()} == {
            "router/alpha": "unloaded", "router/beta": "live", "router/broken": "unloaded",
        }  # fmt: skip
        assert rows["router/beta"]["slots"]
        assert router.states()["alpha"] == "unloaded"
    assert json.dumps(rows)

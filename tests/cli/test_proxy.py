"""`specdash proxy`: what it shows, and what it says when something is wrong."""

import json
import os
from pathlib import Path

import psutil
import pytest

from specdash.cli.main import main
from specdash.core.errors import ExitCode
from specdash.core.paths import proxy_records_dir
from specdash.core.proxy_parameters import PARAMETERS
from specdash.core.records import ProxyRecord
from support.fault_server import FaultServer, free_port, says
from support.outside import say


@pytest.fixture
def env_file(tmp_path: Path) -> Path:
    file = tmp_path / "proxy.env"
    file.write_text("PROXY_PORT=4100\nPROXY_API_KEY=hush\nLLAMA_CPP_BASE=http://127.0.0.1:9/v1\n")
    return file


class TestShow:
    def test_every_setting_with_its_value_source_and_meaning(
        self, env_file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["proxy", "show", "--env-file", str(env_file), "--json"]) == ExitCode.OK
        shown = json.loads(capsys.readouterr().out)
        rows = {row["key"]: row for row in shown["settings"]}
        assert set(rows) == {parameter.key for parameter in PARAMETERS}
        assert (rows["PROXY_PORT"]["value"], rows["PROXY_PORT"]["source"]) == ("4100", str(env_file))
        assert (rows["PROXY_READ_TIMEOUT"]["value"], rows["PROXY_READ_TIMEOUT"]["source"]) == ("600", "default")
        assert rows["PROXY_PORT"]["needs_restart"] is True
        assert all(row["meaning"] for row in rows.values())
        assert shown["problems"] == []

    @pytest.mark.parametrize("form", [[], ["--json"]])
    def test_secrets_are_masked(self, env_file: Path, form: list[str]) -> None:
        out = say("proxy", "show", "--env-file", str(env_file), *form)[1]
        assert "hush" not in out
        assert "***" in out

    def test_problems_are_shown_and_are_a_failure(self, env_file: Path) -> None:
        env_file.write_text("PROXY_READ_TIMEOUT=soon\nPROXY_TYPO=1\n")
        code, out, _ = say("proxy", "show", "--env-file", str(env_file))
        assert code == ExitCode.BAD_INPUT
        assert "PROXY_READ_TIMEOUT=soon" in out
        assert "PROXY_TYPO is not a setting" in out

    def test_the_environment_counts_where_there_is_no_file(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PROXY_PORT", "4321")
        code, out, _ = say("proxy", "show")
        assert code == ExitCode.OK
        assert "PROXY_PORT=4321  [environment]" in out


class TestRun:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("PROXY_PORT=many\n", "PROXY_PORT=many"),
            ("PROXY_HOST=0.0.0.0\n", "set PROXY_API_KEY"),
            (
                "PROXY_TLS_CERT_FILE=/nowhere\nPROXY_TLS_KEY_FILE=/nowhere\n",
                "PROXY_TLS_CERT_FILE is set, but the proxy serves TLS no longer",
            ),
            ("LLAMA_CPP_BASE=here\n", "LLAMA_CPP_BASE=here"),
            ("nonsense\n", "proxy.env:1"),
        ],
    )
    def test_what_cannot_be_meant_is_one_line(
        self, env_file: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        env_file.write_text(text)
        assert main(["proxy", "run", "--env-file", str(env_file)]) == ExitCode.BAD_INPUT
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert said in lines[0]


class TestOperator:
    def test_hold_sends_what_was_given_with_the_key(self, env_file: Path) -> None:
        with FaultServer({"/admin/hold": says(200, '{"held": true}')}) as server:
            words = ("--env-file", str(env_file), "--url", server.url, "--reason", "r", "--limit", "5")
            code, out, _ = say("proxy", "hold", *words)
            (call,) = server.asked("/admin/hold")
        assert (code, json.loads(out)) == (ExitCode.OK, {"held": True})
        assert call.head.startswith("POST ")
        assert "x-api-key: hush" in call.head.lower()

    @pytest.mark.parametrize(("action", "method"), [("resume", "POST"), ("state", "GET")])
    def test_resume_and_state(self, action: str, method: str) -> None:
        with FaultServer({f"/admin/{action}": says(200, '{"held": false}')}) as server:
            assert main(["proxy", action, "--url", server.url]) == ExitCode.OK
            (call,) = server.asked(f"/admin/{action}")
        assert call.head.startswith(method)

    def test_nobody_there_is_unreachable(self) -> None:
        code, _, err = say("proxy", "state", "--url", f"http://127.0.0.1:{free_port()}")
        assert code == ExitCode.UNREACHABLE
        assert "no proxy answers at" in err

    def test_a_refusal_is_told_in_its_own_words(self) -> None:
        with FaultServer({"/admin/state": says(401, '{"error":{"message":"missing API key"}}')}) as server:
            code, _, err = say("proxy", "state", "--url", server.url)
        assert code == ExitCode.FAILED
        assert "401: missing API key" in err

    def test_another_program_is_no_proxy(self) -> None:
        with FaultServer({"/admin/state": says(200, "<html>")}) as server:
            code, _, err = say("proxy", "state", "--url", server.url)
        assert code == ExitCode.UNREACHABLE
        assert "does not answer like a specdash proxy" in err


def leave_record(url: str, name: str, env_file: Path | None = None) -> None:
    """A proxy of this process, as a running one leaves its record."""
    record = ProxyRecord(
        pid=os.getpid(),
        pid_started=psutil.Process().create_time(),
        url=url,
        upstream="http://127.0.0.1:8080",
        env_file=str(env_file) if env_file is not None else None,
    )
    directory = proxy_records_dir()
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.json").write_text(record.to_json(), encoding="utf-8")


class TestTheProxyThatRuns:
    @pytest.mark.parametrize("action", ["state", "resume", "hold"])
    def test_is_found_as_watch_finds_it_and_named(self, action: str, capsys: pytest.CaptureFixture[str]) -> None:
        with FaultServer({f"/admin/{action}": says(200, '{"held": false}')}) as server:
            leave_record(server.url, "one")
            assert main(["proxy", action]) == ExitCode.OK
        shown = capsys.readouterr()
        assert json.loads(shown.out) == {"held": False}
        assert server.url in shown.err

    def test_is_asked_for_where_several_run(self) -> None:
        leave_record("http://127.0.0.1:9001", "one")
        leave_record("http://127.0.0.1:9002", "two")
        code, _, said = say("proxy", "hold")
        assert code == ExitCode.USAGE
        assert "http://127.0.0.1:9001" in said
        assert "http://127.0.0.1:9002" in said
        assert "--url" in said

    def test_gives_way_to_the_env_file_that_is_named(self, env_file: Path) -> None:
        leave_record("http://127.0.0.1:9001", "one")
        code, _, err = say("proxy", "state", "--env-file", str(env_file))
        assert code == ExitCode.UNREACHABLE
        assert "9001" not in err

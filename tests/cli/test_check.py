"""`specdash check` as a monitor runs it: exit codes, the first line, and never a wrong alarm for a wrong option."""

import json
import re
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from specdash.core.errors import ExitCode
from specdash.insight.rules.catalogue import shipped
from support.fault_server import FaultServer, free_port, says
from support.faults import BreakableServer
from support.outside import ran

OK, WARNING, CRITICAL, UNKNOWN = range(4)
PERFORMANCE = re.compile(r"( [a-z]+=-?[0-9.e+]+(%|s)?)+")


def check(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    return ran("check", *argv, **env)


def first_line(done: subprocess.CompletedProcess[str], code: int, word: str) -> str:
    """The first line, well formed, of a run that ended so."""
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stderr == ""
    words, _, performance = done.stdout.splitlines()[0].partition(" |")
    assert words.startswith(f"{word} - ")
    assert PERFORMANCE.fullmatch(performance), performance
    return words


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (("--frob",), "--frob"),
        (("--fail-on", "fatal"), "fatal"),
        (("--for", "soon"), "soon"),
        (("--for", "0.5"), "1 second"),
        (("--for", "2d"), "1 day"),
        (("--rules", "/no/such/file"), "/no/such/file"),
        (("--url", "ftp://x"), "ftp"),
        (("--url", "http://127.0.0.1:9", "--api-key-env", "NOT_SET_ANYWHERE"), "NOT_SET_ANYWHERE"),
    ],
)
def test_what_cannot_be_meant_is_unknown_and_said_where_monitors_read(argv: tuple[str, ...], named: str) -> None:
    done = check(*argv)
    assert done.returncode == UNKNOWN
    (line,) = done.stdout.splitlines()
    assert line.startswith("UNKNOWN - ")
    assert named in line
    assert done.stderr == ""
    told = json.loads(check(*argv, "--json").stdout)
    assert (told["status"], told["exit_code"]) == ("UNKNOWN", UNKNOWN)


def test_the_first_line_says_which_server_was_judged_and_more_words_what_to_do() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    done = check("--url", url, "-v")
    assert first_line(done, CRITICAL, "CRITICAL").startswith(f"CRITICAL - {url}: Server is down: ")
    assert "remedy: " in done.stdout
    assert "not checked:" in done.stdout


def test_a_snapshot_of_a_server_that_refuses_the_key_is_printed_and_fails() -> None:
    denied = says(401, '{"error":{"message":"Invalid API Key","code":401}}')
    routes = {"/health": says(200, '{"status":"ok"}'), **dict.fromkeys(("/metrics", "/slots", "/props"), denied)}
    with FaultServer(routes) as server:
        done = ran("snapshot", "--json", "--url", server.url)
    assert done.returncode == ExitCode.BAD_INPUT, done.stderr
    assert json.loads(done.stdout)["backend"]["state"] == "unauthorized"


def test_a_rules_file_with_a_mistake_is_unknown_and_not_silently_left_out(tmp_path: Path) -> None:
    directory = tmp_path / "specdash"
    directory.mkdir()
    (directory / "rules.toml").write_text("[backend_dwon]\nenabled = false\n")
    done = check("--list-rules", XDG_CONFIG_HOME=str(tmp_path))
    assert done.returncode == UNKNOWN
    assert "did you mean 'backend_down'" in done.stdout


def test_the_catalogue_is_listed_with_the_limits_in_force(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("[slot_hung]\nlimits.no_token_s = 77\n[gpu_lost]\nenabled = false\n")
    done = check("--list-rules", "--rules", str(rules))
    assert done.returncode == OK
    lines = done.stdout.splitlines()
    assert len(lines) == len(shipped())
    assert any("slot_hung" in line and "no_token_s 77" in line for line in lines)
    assert any(line.startswith("off") and "gpu_lost" in line for line in lines)
    listed = json.loads(check("--list-rules", "--json").stdout)
    assert [entry["rule"] for entry in listed] == [rule.id for rule in shipped()]
    assert all(entry["runbook"]["checks"] for entry in listed)


@pytest.mark.slow
def test_fail_on_says_what_is_a_failure_and_a_rules_file_what_is_severe(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[backend_down]\nseverity = "notice"\n')
    url = f"http://127.0.0.1:{free_port()}"
    assert "Server is down" in first_line(check("--url", url, "--rules", str(rules)), OK, "OK")
    first_line(check("--url", url, "--fail-on", "notice", SPECDASH_RULES=str(rules)), WARNING, "WARNING")


@pytest.mark.slow
def test_metrics_that_are_not_understood_are_a_warning_and_their_rules_are_listed() -> None:
    healthy = {"/health": says(200, '{"status":"ok"}'), "/props": says(200, '{"total_slots":1}')}
    slots = says(200, '[{"id":0,"n_ctx":4096,"speculative":true,"is_processing":false}]')
    with FaultServer({**healthy, "/slots": slots, "/metrics": says(200, "<html>It works!</html>")}) as server:
        done = check("--url", server.url, "-v")
    words = first_line(done, WARNING, "WARNING")
    assert "/metrics" in words
    assert "not understood" in words
    unjudged = done.stdout.partition("not checked:")[2]
    assert "zero_acceptance" in unjudged


@pytest.mark.slow
@pytest.mark.llama_server
def test_a_healthy_server_is_ok_once_and_over_a_while(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    # How busy this machine is with other tests is not what is judged here.
    rules.write_text("[cpu_starved]\nenabled = false\n")
    with BreakableServer(tmp_path) as server, server.working():
        done = check("--url", server.url, "--log", str(server.log), "--rules", str(rules))
        assert re.search(r"live, \d+ rules checked, no alerts", first_line(done, OK, "OK"))
        done = check("--url", server.url, "--for", "6s", "--json", "--rules", str(rules))
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["status"] == "OK"
    assert told["alerts"] == []
    assert told["seconds"] >= 6
    assert told["performance"]["decode"] > 0
    assert told["judged"] > 20


@pytest.mark.slow
@pytest.mark.llama_server
def test_a_fault_that_is_over_counts_when_it_came_while_we_watched(tmp_path: Path) -> None:
    with BreakableServer(tmp_path) as server:

        def fault() -> None:
            time.sleep(5.0)
            with server.stopped():
                time.sleep(2.5)

        thread = threading.Thread(target=fault)
        thread.start()
        done = check("--url", server.url, "--for", "16")
        thread.join()
    assert "Server hangs" in first_line(done, CRITICAL, "CRITICAL")
    assert "(over)" in done.stdout


@pytest.mark.slow
@pytest.mark.llama_server
def test_a_refused_key_is_a_warning_and_the_key_is_never_said(tmp_path: Path) -> None:
    with BreakableServer(tmp_path, "--api-key", "canary-good") as server:
        env = {"WRONG": "canary-wrong"}
        done = check("--url", server.url, "--api-key-env", "WRONG", "-v", **env)
        assert "refuses the API key" in first_line(done, WARNING, "WARNING")
        assert "canary" not in done.stdout + done.stderr

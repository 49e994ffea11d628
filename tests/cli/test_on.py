"""`--on USER@HOST`: the same command on another machine, over a real sshd."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from specdash.cli.on import taken_from
from specdash.core.errors import ExitCode, UsageError
from specdash.core.paths import config_file
from support.fault_server import free_port
from support.outside import say
from support.pseudo_terminal import PseudoTerminal
from support.small_server import small_server
from support.sshd import SshServer, ssh_server
from support.waiting import until

SPECDASH = [sys.executable, "-m", "specdash"]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with ssh_server(tmp_path_factory.mktemp("far")) as server:
        yield server


@pytest.fixture
def far(machine: SshServer, monkeypatch: pytest.MonkeyPatch) -> SshServer:
    monkeypatch.setenv("PATH", machine.path)
    return machine


def on_far(*words: str, given: str | None = None) -> tuple[int, str, str]:
    """Exit code, standard output and standard error, none of them a terminal."""
    done = subprocess.run(
        [*SPECDASH, *words, "--on", "far"], input=given, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr


# What the command line names.


@pytest.mark.parametrize(
    ("words", "machine", "there"),
    [
        ("--on gpu1", "ssh://gpu1", ""),
        ("snapshot --on ann@gpu1 --json", "ssh://ann@gpu1", "snapshot --json"),
        ("snapshot --on=ann@gpu1:2222", "ssh://ann@gpu1:2222", "snapshot"),
        ("--url ssh://gpu1/127.0.0.1:8081 check", "ssh://gpu1", "--url 127.0.0.1:8081 check"),
        ("check --url=SSH://ann@[fe80::1]:22/", "ssh://ann@[fe80::1]:22", "check"),
        ("check --on gpu1 --url http://127.0.0.1:8081", "ssh://gpu1", "check --url http://127.0.0.1:8081"),
        ("check --on gpu1 --on gpu2", "ssh://gpu1", "check --on gpu2"),
        ("check --url http://gpu1:8080", None, "check --url http://gpu1:8080"),
        ("check --target here", None, "check --target here"),
        ("check --url", None, "check --url"),
        ("x -- --on gpu1", None, "x -- --on gpu1"),
    ],
)
def test_the_first_machine_is_taken_out_of_the_words(words: str, machine: str | None, there: str) -> None:
    assert taken_from(words.split()) == (machine, there.split())


@pytest.mark.parametrize(
    "written",
    ["", "-oProxyCommand=evil", "ann@-x", "ssh://-oProxyCommand=evil", "ann:secret@gpu1", "a b", "gpu1:", "gpu1 -v"],
)
def test_what_ssh_would_take_for_an_option_or_holds_a_password_is_refused_without_repeating_it(written: str) -> None:
    with pytest.raises(UsageError, match="write a machine as") as refused:
        taken_from(["check", "--on", written])
    assert "secret" not in str(refused.value)


def test_a_target_of_config_toml_may_be_another_machine() -> None:
    config_file().parent.mkdir(parents=True)
    config_file().write_text('[[target]]\nname = "far"\nurl = "ssh://gpu1/127.0.0.1:1"\n')
    assert taken_from(["check", "--target", "far"]) == ("ssh://gpu1", ["check", "--url", "127.0.0.1:1"])
    assert taken_from(["check", "--target=other"]) == (None, ["check", "--target=other"])


def test_an_address_of_the_environment_names_no_machine_but_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDASH_URL", "ssh://ann@gpu1")
    code, out, err = say("snapshot", "--json")
    assert (code, out) == (ExitCode.USAGE, "")
    assert "`specdash --on ann@gpu1`" in err


# What becomes of it there.


def test_standard_output_is_that_of_the_command_alone(far: SshServer) -> None:
    config = far.specdash.parents[2] / ".config/specdash/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('window = "15m"\n')
    code, out, err = on_far("config", "show", "--json")
    assert (code, err) == (ExitCode.OK, "")
    assert json.loads(out)["window"] == {"value": "15m", "origin": str(config)}


@pytest.mark.parametrize("name", ["a b.gguf", 'it\'s "here".gguf', "$HOME `id` \\ *;?!.gguf", "é\t.gguf", "-"])
def test_words_arrive_as_they_were_written_and_so_does_the_exit_code(far: SshServer, name: str) -> None:
    code, _, err = on_far("gguf", f"/none/{name}")
    assert code == ExitCode.BAD_INPUT
    assert f"/none/{name}" in err.replace("\\t", "\t")


def test_standard_input_reaches_it(far: SshServer) -> None:
    code, _, err = on_far("apply", "--from-stdin", "--dry-run", given='{"backend": {"LLAMA_API_KEY": "canary"}}\n')
    assert code == ExitCode.SERVICE
    assert "canary" not in err


def test_a_machine_without_specdash_is_one_sentence(far: SshServer) -> None:
    away = far.specdash.rename(far.specdash.with_name("away"))
    try:
        code, out, err = on_far("snapshot", "--json")
    finally:
        away.rename(far.specdash)
    assert (code, out) == (ExitCode.UNREACHABLE, "")
    assert err == "specdash: ssh://far has no specdash on its PATH or in ~/.local/bin: install or link it there\n"


def test_without_a_connection_ssh_says_why_and_a_monitor_gets_its_own_answer(far: SshServer) -> None:
    known = far.known_hosts.read_text()
    far.known_hosts.write_text("")
    try:
        code, out, err = on_far("snapshot", "--json")
        monitored = on_far("check")
    finally:
        far.known_hosts.write_text(known)
    assert (code, out) == (ExitCode.UNREACHABLE, "")
    assert "Host key verification failed" in err
    assert err.splitlines()[-1].startswith("specdash: the connection to ssh://far failed")
    assert monitored[0] == 3
    assert monitored[1].startswith("UNKNOWN - the connection to ssh://far failed")


def test_there_is_a_terminal_there_only_where_both_ends_are_one_here(far: SshServer) -> None:
    code, _, err = on_far("watch")
    assert code == ExitCode.USAGE
    assert "watch needs a terminal" in err
    with PseudoTerminal([*SPECDASH, "--url", "ssh://far/127.0.0.1:9"], size=(120, 40)) as terminal:
        terminal.wait_for("http://127.0.0.1:9 ")
        terminal.press(b"q")
        assert terminal.wait_exit() == ExitCode.OK


@pytest.mark.slow
def test_ctrl_c_reaches_a_command_without_a_terminal(far: SshServer) -> None:
    words = ["check", "--for", "60s", "--url", "ssh://far/127.0.0.1:9"]
    with subprocess.Popen([*SPECDASH, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as near:
        until(lambda: far.processes)
        os.kill(near.pid, signal.SIGINT)
        near.communicate(timeout=30)
    assert near.returncode == ExitCode.INTERRUPTED
    until(lambda: not far.processes, why=lambda: "it goes on there")


@pytest.mark.engine
@pytest.mark.slow
def test_a_snapshot_is_that_of_the_server_there(far: SshServer, tmp_path: Path) -> None:
    port = free_port()
    with small_server(port, tmp_path / "server.log"):
        words = ["snapshot", "--json", "--url", f"ssh://far/127.0.0.1:{port}", "--log", str(tmp_path / "server.log")]
        done = subprocess.run([*SPECDASH, *words], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (ExitCode.OK, "")
    picture = json.loads(done.stdout)
    assert picture["backend"]["url"] == f"http://127.0.0.1:{port}"
    assert picture["log"]["lines"] > 10


@pytest.mark.slow
def test_the_row_of_a_fleet_opens_the_dashboard_there_and_comes_back(far: SshServer) -> None:
    config_file().parent.mkdir(parents=True)
    config_file().write_text('[[target]]\nname = "workshop"\nurl = "ssh://far/127.0.0.1:9"\n')
    with PseudoTerminal([*SPECDASH, "fleet"], size=(120, 40)) as terminal:
        terminal.wait_for("workshop", "elsewhere")
        terminal.press(b"/workshop\r")
        terminal.wait_for("filter: workshop")
        terminal.press(b"\r")
        terminal.wait_for("http://127.0.0.1:9 ")
        terminal.press(b"q")
        terminal.wait_for("workshop", "elsewhere")
        terminal.press(b"q")
        assert terminal.wait_exit() == ExitCode.OK

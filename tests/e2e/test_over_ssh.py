"""A real llama.cpp behind a real sshd: the dashboard of another machine, its connection cut, and what ssh refuses."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from specdash.core.readings import Source
from specdash.insight.state import TargetState
from support.asking import complete
from support.fault_server import free_port
from support.over_ssh import Watched, behind_ssh
from support.small_server import small_server
from support.sshd import SshServer, ssh_server
from support.terminal import Terminal
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.engine]
CANARY = "sk-canary-over-ssh-0123456789"


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with ssh_server(tmp_path_factory.mktemp("far")) as server:
        yield server


@pytest.fixture(scope="module")
def server(far: SshServer) -> Iterator[int]:
    port = free_port()
    with small_server(port, far.folder / "server.log"):
        complete(f"http://127.0.0.1:{port}", "Once upon a time", 48)
        yield port


def environment(far: SshServer, **more: str) -> dict[str, str]:
    how = f"command={shlex.quote(shlex.join(far.command))} program={shlex.quote(far.program(**more))}"
    return {"SPECDASH_SSH": how}


def ssh_children(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return [child for child in psutil.Process(pid).children(recursive=True) if is_watching(child)]
    return []


def is_watching(process: psutil.Process) -> bool:
    """Whether it is the ssh that watches, and not that of the tune screen."""
    return process.name() == "ssh" and not any("--changes" in word for word in process.cmdline())


def agents(port: int) -> list[psutil.Process]:
    words = ("agent", f"http://127.0.0.1:{port}")
    return [p for p in psutil.process_iter(["cmdline"]) if set(words) <= set(p.info["cmdline"] or ())]


def test_a_snapshot_over_ssh_is_that_of_the_server_and_no_key_crosses(far: SshServer, server: int) -> None:
    url = f"ssh://far/127.0.0.1:{server}"
    given = ("--log", str(far.folder / "server.log"), "--api-key-env", "FAR_KEY")
    done = subprocess.run(
        [sys.executable, "-m", "specdash", "snapshot", "--json", "--url", url, *given],
        capture_output=True, text=True, timeout=90, check=False,
        env={**os.environ, **environment(far, FAR_KEY=CANARY)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    picture = json.loads(done.stdout)
    assert picture["backend"]["state"] == "live"
    assert picture["backend"]["speculation"]["acceptance"]["lifetime"] is not None
    assert picture["log"]["lines"] > 10
    assert CANARY not in done.stdout + done.stderr
    until(lambda: not agents(server), why=lambda: "an agent was left behind")


def test_what_crosses_the_wire_holds_no_key(far: SshServer, server: int) -> None:
    words = f"{far.program(FAR_KEY=CANARY)} agent --url 127.0.0.1:{server} --api-key-env FAR_KEY"
    with subprocess.Popen(
        [*far.command, "-T", "far", words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        crossed = b"".join(agent.stdout.readline() for _ in range(12))
        agent.stdin.close()
        crossed += agent.stdout.read()
        assert agent.wait(20) == 0, "it ends with its input"
    assert b'"slots"' in crossed
    assert CANARY.encode() not in crossed


@pytest.mark.tmux
def test_the_dashboard_says_that_the_connection_was_cut_and_comes_back(
    far: SshServer, server: int, tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "specdash", "--url", f"ssh://far/127.0.0.1:{server}"]
    env = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), **environment(far)}
    with Terminal(words, columns=140, rows=40, env=env) as terminal:
        terminal.wait_for("LIVE", "ssh://far", within_s=60)
        terminal.press("e")
        terminal.wait_for("no service found")
        first = ssh_children(terminal.pid)
        assert first, "the user's own ssh"
        first[0].send_signal(signal.SIGKILL)
        terminal.wait_for("UNKNOWN", "was ended by signal 9")
        terminal.wait_for("LIVE", within_s=60)
        assert ssh_children(terminal.pid)[0].pid != first[0].pid
        terminal.press("q")
        assert terminal.wait_exit() == 0
    until(lambda: not agents(server), why=lambda: "an agent was left behind")


def test_figures_are_those_of_a_local_watch(far: SshServer, server: int) -> None:
    target = behind_ssh(far.command, far.program(), server=f"127.0.0.1:{server}")
    state = TargetState(target)
    with Watched(target) as watched:
        watched.hub.bus._sinks.append(state.apply)
        until(lambda: watched.values(Source.METRICS) and watched.values(Source.PROCESS), 60, watched.failure)
        assert watched.values(Source.PROCESS)[-1].pid in psutil.pids(), "the process is seen, as on its own machine"
        before = watched.values(Source.METRICS)[-1]
        timings = complete(f"http://127.0.0.1:{server}", "It was a dark and stormy night", 64)["timings"]
        until(lambda: watched.values(Source.METRICS)[-1].draft_tokens != before.draft_tokens)
        after = watched.values(Source.METRICS)[-1]
    assert after.draft_tokens - before.draft_tokens == timings["draft_n"]
    assert after.accepted_tokens - before.accepted_tokens == timings["draft_n_accepted"]


@pytest.mark.parametrize(
    ("spoilt", "words"),
    [("key", "Permission denied (publickey)"), ("known_hosts", "Host key verification failed")],
)
def test_what_ssh_refuses_is_told_in_its_own_words(far: SshServer, tmp_path: Path, spoilt: str, words: str) -> None:
    config = tmp_path / "config"
    if spoilt == "key":
        subprocess.run([far.keygen, "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
        config.write_text(far.config.read_text().replace(f"{far.folder}/key", f"{tmp_path}/key"))
    else:
        config.write_text(far.config.read_text().replace(str(far.known_hosts), "/dev/null"))
    with Watched(behind_ssh(("ssh", "-F", str(config)), far.program())) as watched:
        until(lambda: words in watched.failure(), why=watched.failure)
    assert "no connection (exit 255)" in watched.failure()


def test_a_machine_without_specdash_is_told_how_to_install_it(far: SshServer) -> None:
    with Watched(behind_ssh(far.command, "specdash-that-is-not-there")) as watched:
        until(lambda: "`pip install .`" in watched.failure(), why=watched.failure)

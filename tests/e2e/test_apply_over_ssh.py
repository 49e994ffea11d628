"""Changes on another machine over a real sshd: as they are here, and whole whatever becomes of the connection."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from itertools import cycle, product
from typing import TYPE_CHECKING

import psutil
import pytest

from specdash.control.apply.journal import ApplyLock, journal_file
from specdash.control.far import FarConsole
from specdash.control.profiles import all_profiles
from specdash.core.changes import ApplyOutcome, ApplyStep, Role
from specdash.core.errors import ConflictError, ExitCode, SpecdashError
from specdash.core.paths import detached_dir
from specdash.core.target import ssh_host
from support.crash import FORWARD_POINTS, ROLLBACK_POINTS
from support.cut import connection, cut_at
from support.deployment import ON_A_SCRIPTED_ENGINE, Command, Rig, assert_each_end_has_its_code_and_json, misbehaving
from support.pseudo_terminal import read_until
from support.sshd import SshServer, ssh_server
from support.terminal import Terminal
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(180)]
CANARY = "sk-canary-of-an-apply-0123456789"
URL = "ssh://far"
POINTS = tuple(point for point in FORWARD_POINTS if not point.endswith(":after"))
"""What is after a step is before the next."""
EITHER_END = ("ssh", "sshd")
"""Whose process is killed. What runs there is detached from both, so that each point needs only one of them."""


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with ssh_server(tmp_path_factory.mktemp("far")) as server:
        yield server


class Near:
    """The machine at which somebody sits: `specdash` there, with the rig behind ssh."""

    def __init__(self, far: SshServer, rig: Rig, home: Path) -> None:
        self.far, self.rig, self.home = far, rig, home

    def target(self, **there: str) -> tuple[tuple[str, ...], str]:
        """The user's ssh, and what is specdash on the machine far; `there` is more of its environment."""
        return self.far.command, self.far.program(HOME=str(self.rig.home), SPECDASH_SETTLE_TIME="0", **there)

    def words(self, *words: str, **there: str) -> tuple[list[str], dict[str, str]]:
        """A command on the machine far, and the environment to give it in."""
        command, program = self.target(**there)
        how = f"command={shlex.quote(shlex.join(command))} program={shlex.quote(program)}"
        env = {**os.environ, "HOME": str(self.home), "SPECDASH_SSH": how, "PYTHONFAULTHANDLER": "1"}
        return [sys.executable, "-m", "specdash", *words, "--url", URL], env

    def console(self) -> FarConsole:
        """What a dashboard of this machine has."""
        command, program = self.target()
        return FarConsole(ssh_host(URL, command=command, program=program))

    def start(self, *words: str, **there: str) -> Command:
        """That command, not waited for."""
        argv, env = self.words(*words, **there)
        pipe = subprocess.PIPE
        return Command(argv, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def command(self, *words: str, given: str = "", **there: str) -> subprocess.CompletedProcess[str]:
        """The same, to its end."""
        process = self.start(*words, **there)
        out, err = process.communicate(given, 120)
        return subprocess.CompletedProcess(words, process.returncode, out, err)


@pytest.fixture
def near(far: SshServer, rig: Rig, tmp_path: Path) -> Near:
    return Near(far, rig, tmp_path)


def test_each_end_has_the_exit_code_and_the_json_of_a_local_apply(near: Near) -> None:
    assert_each_end_has_its_code_and_json(near.rig, near.command)
    assert near.rig.values()["LLAMA_DRAFT_MAX"] == "8"


@ON_A_SCRIPTED_ENGINE
@pytest.mark.parametrize(
    ("point", "way"),
    [
        *zip(POINTS, cycle(EITHER_END), strict=False),
        *product(("write:renamed", "health:before"), (*EITHER_END, "agent")),
    ],
)
def test_a_connection_that_is_cut_at_any_point_changes_nothing_of_how_it_ends(
    near: Near, point: str, way: str, tmp_path: Path
) -> None:
    done = near.command("apply", "--yes", "--json", "LLAMA_DRAFT_MAX=8", **cut_at(point, way, near.far, tmp_path))
    assert (tmp_path / "was-cut").exists()
    assert "it goes on there, connecting again" in done.stderr
    assert done.returncode == ExitCode.OK, done.stderr
    assert json.loads(done.stdout)["outcome"] == "applied"
    near.rig.assert_settled()
    assert near.rig.values()["LLAMA_DRAFT_MAX"] == "8"


@ON_A_SCRIPTED_ENGINE
@pytest.mark.parametrize(("point", "way"), [*zip(ROLLBACK_POINTS, cycle(EITHER_END), strict=False)])
def test_a_connection_that_is_cut_while_it_rolls_back_leaves_the_old_settings(
    near: Near, point: str, way: str, tmp_path: Path
) -> None:
    words = misbehaving(near.rig.home, "exits")
    done = near.command("apply", "--yes", "--json", *words, **cut_at(point, way, near.far, tmp_path))
    assert (tmp_path / "was-cut").exists()
    assert done.returncode == ExitCode.ROLLED_BACK, done.stderr
    assert json.loads(done.stdout)["outcome"] == "rolled back"
    near.rig.assert_settled(version=near.rig.good_backend)


def test_nobody_has_to_come_back_for_it_to_end(near: Near, tmp_path: Path) -> None:
    """Also the specdash here is killed, and the connection with it."""
    before = len(near.rig.records())
    process = near.start("apply", "--yes", "LLAMA_DRAFT_MAX=8")
    assert process.stderr is not None
    for line in process.stderr:
        if line.split()[:1] == ["write"]:
            break
    for child in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
        child.kill()
    process.communicate(timeout=60)
    until(lambda: [record.outcome for record in near.rig.records()][before:] == [ApplyOutcome.APPLIED], 60)
    listed = json.loads(near.command("applies", "--json").stdout)
    assert [entry["outcome"] for entry in listed][-1:] == ["applied"]
    near.rig.assert_settled()


@pytest.mark.parametrize(
    ("point", "code", "outcome"),
    [
        ("lock:before", ExitCode.FAILED, None),
        ("backup:journal", ExitCode.ROLLED_BACK, "rolled back"),
        ("restart:asked", ExitCode.ROLLED_BACK, "rolled back"),
        ("record:appended", ExitCode.OK, "applied"),
    ],
)
def test_what_is_killed_there_itself_is_rolled_back_there(
    near: Near, point: str, code: ExitCode, outcome: str | None, tmp_path: Path
) -> None:
    done = near.command("apply", "--yes", "--json", "LLAMA_DRAFT_MAX=8", **cut_at(point, "itself", near.far, tmp_path))
    assert done.returncode == code, done.stderr
    assert (json.loads(done.stdout)["outcome"] if outcome else None) == outcome
    near.rig.assert_settled(version=None if code is ExitCode.OK else near.rig.good_backend)


def test_a_secret_is_in_no_command_line_and_in_no_file_but_where_an_apply_keeps_it(near: Near, far: SshServer) -> None:
    rig = near.rig
    process = near.start("apply", "--yes", "--from-stdin")
    assert process.stdin is not None
    process.stdin.write(
        json.dumps({"backend": {"LLAMA_API_KEY": CANARY}, "proxy": {"PROXY_UPSTREAM_API_KEY": CANARY}}) + "\n"
    )
    process.stdin.flush()
    seen = 0
    while process.poll() is None:
        for command in psutil.process_iter(["cmdline", "pid"]):
            words = command.info["cmdline"] or []
            seen += "--carry-out" in words
            assert not any(CANARY in word for word in words)
    out, err = process.communicate(timeout=60)
    assert process.returncode == ExitCode.OK, err
    assert seen, "the command was looked at while it ran"
    assert CANARY not in out + err
    assert rig.values()["LLAMA_API_KEY"] == CANARY
    holding = {
        path.relative_to(rig.home).parts[0]
        for folder in (rig.home, near.home, far.folder)
        for path in folder.rglob("*")
        if path.is_file() and not path.is_relative_to(rig.home / ".cache") and CANARY.encode() in path.read_bytes()
    }
    assert holding == {rig.file(role).name for role in Role}
    assert list(detached_dir(rig.env).iterdir())
    shown = near.command("rollback", "--dry-run")
    assert CANARY not in shown.stdout + shown.stderr


def test_without_a_terminal_and_without_yes_nothing_is_done(near: Near) -> None:
    done = near.command("apply", "LLAMA_DRAFT_MAX=8")
    assert done.returncode == ExitCode.USAGE
    assert "+LLAMA_DRAFT_MAX=8" in done.stdout
    assert "needs --yes" in done.stderr
    near.rig.assert_settled(version=near.rig.good_backend)


@pytest.mark.parametrize("ends", ["y", "n", "the connection dies"])
def test_on_a_terminal_it_asks_and_a_question_that_is_cut_off_is_a_no(near: Near, ends: str) -> None:
    controller, terminal = pty.openpty()
    words, env = near.words("apply", "LLAMA_DRAFT_MAX=8")
    with subprocess.Popen(
        words, env=env, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    ) as p:
        os.close(terminal)
        read_until(controller, b"Apply this? [y/N]")
        if ends == "the connection dies":
            for part in connection("sshd", near.far.pid, str(near.far.config)):
                part.kill()
        os.write(controller, b"n\n" if ends == "n" else b"y\n")
        read_until(controller, b"applied:" if ends == "y" else b"nothing was changed")
        assert p.wait(60) == 0
    os.close(controller)
    near.rig.assert_settled(version=None if ends == "y" else near.rig.good_backend)
    assert near.rig.values()["LLAMA_DRAFT_MAX"] == ("8" if ends == "y" else "4")


def test_ctrl_c_rolls_back_there(near: Near) -> None:
    process = near.start("apply", "--yes", "--json", *misbehaving(near.rig.home, "deaf"))
    assert process.stderr is not None
    for line in process.stderr:
        if line.split()[:1] == ["restart"]:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == ExitCode.ROLLED_BACK, err
    assert json.loads(out)["reason"] == "it was interrupted"
    near.rig.assert_settled(version=near.rig.good_backend)


def locked(rig: Rig) -> bool:
    """Whether an apply is running there."""
    try:
        with ApplyLock("test", rig.env):
            return False
    except ConflictError:
        return True


def test_nobody_is_kept_waiting_who_asks_for_the_end_while_there_is_no_connection(near: Near, tmp_path: Path) -> None:
    """What runs there goes on, and may be asked for later."""
    key = near.far.folder / "authorized_keys"
    kept, before = key.read_text(), len(near.rig.records())
    process = near.start("apply", "--yes", *misbehaving(near.rig.home, "deaf"), "--health-timeout", "20")
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if line.split()[:1] == ["restart"]:
                key.write_text("")
                for part in connection("sshd", near.far.pid, str(near.far.config)):
                    part.kill()
                break
        while "connecting again" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        key.write_text(kept)
    assert process.returncode == ExitCode.UNREACHABLE, err
    assert "says how it ended" in err
    until(lambda: [record.outcome for record in near.rig.records()][before:] == [ApplyOutcome.ROLLED_BACK], 60)
    # The journal goes when the record is written, and then the lock.
    until(lambda: not journal_file(near.rig.env).path.exists() and not locked(near.rig))
    near.rig.assert_settled(version=near.rig.good_backend)


def test_what_was_applied_there_is_rolled_back_and_services_are_restarted_there(near: Near) -> None:
    rig = near.rig
    assert near.command("apply", "--yes", "LLAMA_DRAFT_MAX=6").returncode == 0
    engine = rig.engine()
    assert engine is not None
    done = near.command("services", "restart", "backend")
    assert (done.returncode, done.stdout) == (0, "specdash-backend: restarted\n"), done.stderr
    rig.wait_ready()
    again = rig.engine()
    assert again is not None
    assert again.pid != engine.pid
    done = near.command("rollback", "--yes", "--json")
    assert json.loads(done.stdout)["kind"] == "rollback"
    rig.assert_settled(version=rig.good_backend)
    assert near.command("recover", "--json").stdout == '{"outcome": "nothing to recover"}\n'


def test_a_dashboard_shows_and_changes_the_services_there_without_their_secrets(near: Near) -> None:
    rig, console = near.rig, near.console()
    shown = console.look().of(Role.BACKEND)
    assert shown is not None
    assert (shown.status.alive, shown.values["LLAMA_DRAFT_MAX"], shown.values["LLAMA_API_KEY"]) == (True, "4", "***")
    assert [profile.name for profile in console.profiles()] == [profile.name for profile in all_profiles(rig.env)]
    refused = console.plan({Role.BACKEND: {"LLAMA_DRAFT_MAX": "0"}})
    assert refused.refused
    plan = console.plan({Role.BACKEND: {"LLAMA_DRAFT_MAX": "8"}})
    assert [(change.key, change.before, change.after) for change in plan.changes] == [("LLAMA_DRAFT_MAX", "4", "8")]
    for running, outcome in ((console.start(plan), ApplyOutcome.APPLIED), (None, ApplyOutcome.ROLLED_BACK)):
        if running is None:
            words = dict(word.split("=", 1) for word in misbehaving(rig.home, "exits"))
            running = console.start(console.plan({Role.BACKEND: words}))
        assert running.join(120)
        assert running.record is not None, running.error
        assert running.record.outcome is outcome
        assert {report.step for report in running.reports} >= {ApplyStep.LOCK, ApplyStep.HEALTH}
    stale = console.start(plan)
    assert stale.join(60)
    assert "was changed since it was read" in str(stale.error)
    rig.assert_settled()
    assert rig.values()["LLAMA_DRAFT_MAX"] == "8"
    back = console.start(console.plan_rollback())
    assert back.join(60)
    rig.assert_settled(version=rig.good_backend)
    assert console.close(5)


def test_a_dashboard_is_refused_what_the_machine_there_does_not_allow(near: Near) -> None:
    config = near.rig.home / ".config/specdash/config.toml"
    console = near.console()
    plan = console.plan({Role.BACKEND: {"LLAMA_DRAFT_MAX": "8"}})
    with pytest.raises(SpecdashError, match="stands for a secret that is not shown"):
        console.plan({Role.BACKEND: {"LLAMA_EXTRA_ARGS": "--api-key *** --no-mmap"}})
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text("read_only = true\n")
    try:
        running = console.start(plan)
        assert running.join(60)
    finally:
        config.unlink()
        console.close(5)
    assert "no dashboard changes anything there" in str(running.error)
    near.rig.assert_settled(version=near.rig.good_backend)


@pytest.mark.tmux
def test_the_tune_screen_applies_there_and_says_so_when_the_connection_dies(near: Near, tmp_path: Path) -> None:
    server = near.rig.backend_url.removeprefix("http://")
    words, env = near.words(**cut_at("health:before", "sshd", near.far, tmp_path))
    own = {"HOME": str(near.home), "TMPDIR": str(near.home), "SPECDASH_SSH": env["SPECDASH_SSH"]}
    with Terminal([*words[:-1], f"{URL}/{server}"], columns=140, rows=40, env=own) as terminal:
        terminal.wait_for("LIVE", "ssh://far", within_s=60)
        terminal.press("e")
        terminal.wait_for("Settings", "LLAMA_DRAFT_MAX", within_s=60)
        terminal.press("A", "j", "Enter", "8", "Enter")
        terminal.wait_for("1 pending", "may be applied", within_s=60)
        terminal.press("a")
        terminal.wait_for("4 → 8", "enter applies")
        terminal.press("Enter")
        screen = terminal.wait_for("APPLIED", within_s=90)
        assert (tmp_path / "was-cut").exists()
        for step in ("hold", "drain", "restart", "health", "speculation", "probe", "resume"):
            assert step in screen
        terminal.press("Escape")
        terminal.wait_for("nothing pending")
        terminal.press("q")
        assert terminal.wait_exit() == 0
    near.rig.assert_settled()
    assert near.rig.values()["LLAMA_DRAFT_MAX"] == "8"


def test_a_dashboard_that_ends_takes_its_apply_back(near: Near) -> None:
    console = near.console()
    words = dict(word.split("=", 1) for word in misbehaving(near.rig.home, "deaf"))
    running = console.start(console.plan({Role.BACKEND: words}))
    until(lambda: ApplyStep.HEALTH in {report.step for report in running.reports}, 60)
    assert console.close(60)
    assert running.record is not None
    assert running.record.outcome is ApplyOutcome.ROLLED_BACK
    near.rig.assert_settled(version=near.rig.good_backend)

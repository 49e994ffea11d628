"""A real systemd user manager for tests, in a mount namespace of its own, so that this machine notices nothing of it.

systemd refuses to run as a user manager on a machine that was not booted with it: in the namespace, /run is empty and
holds the directory that says so. Its sockets are in a directory that both sides see, so `systemctl --user` works from
outside with `environment`. There is no journald: units write to files.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SYSTEMD = "/usr/lib/systemd/systemd"
_START_S = 20.0
_IN_NAMESPACE = 'mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system && exec "$0" --user'


@dataclass(frozen=True, slots=True)
class UserManager:
    """A running manager. `environment` has what `systemctl --user` and specdash need to reach it, on top of their own:
    HOME, XDG_CONFIG_HOME and XDG_RUNTIME_DIR."""

    home: Path
    runtime: Path
    pid: int

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead to it."""
        return {
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.home / ".config"),
            "XDG_STATE_HOME": str(self.home / ".local/state"),
            "XDG_RUNTIME_DIR": str(self.runtime),
        }

    @property
    def units(self) -> Path:
        """Where the user's units are."""
        return self.home / ".config/systemd/user"

    def systemctl(self, *arguments: str, check: bool = True) -> str:
        """What `systemctl --user ARGUMENTS` prints."""
        done = subprocess.run(
            [_tool("systemctl"), "--user", "--no-pager", *arguments],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert not check or done.returncode == 0, f"systemctl {' '.join(arguments)}: {done.stderr}"
        return done.stdout


def _tool(name: str) -> str:
    return shutil.which(name) or name


def why_not() -> str | None:
    """Why a manager cannot run here, None when it can."""
    if not Path(SYSTEMD).is_file() or shutil.which("systemctl") is None:
        return "no systemd is installed"
    if shutil.which("unshare") is None:
        return "no unshare is installed"
    if os.geteuid() != 0:
        return "a mount namespace needs root"
    return None


@contextlib.contextmanager
def running_user_manager(home: Path) -> Iterator[UserManager]:
    """Start one, whose home is `home`; it ends with all its units. Skips the test where that is impossible, unless
    SPECDASH_REQUIRE_SYSTEMD=1, which CI sets: then it fails."""
    reason = why_not()
    if reason is not None:
        if os.environ.get("SPECDASH_REQUIRE_SYSTEMD") == "1":
            pytest.fail(f"no systemd user manager: {reason}")
        pytest.skip(reason)
    # Sockets have short names: pytest's own directories are too deep for them.
    runtime = Path(tempfile.mkdtemp(prefix="sd-run-"))
    (home / ".config/systemd/user").mkdir(parents=True, exist_ok=True)
    manager_log = home / "systemd.log"
    with manager_log.open("wb") as log:
        process = subprocess.Popen(
            [_tool("unshare"), "-m", "--propagation", "private", "sh", "-c", _IN_NAMESPACE, SYSTEMD],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(home),
                "XDG_CONFIG_HOME": str(home / ".config"),
                "XDG_STATE_HOME": str(home / ".local/state"),
                "XDG_RUNTIME_DIR": str(runtime),
                "LANG": "C.UTF-8",
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    manager = UserManager(home, runtime, process.pid)
    try:
        deadline = time.monotonic() + _START_S
        while "running" not in (state := manager.systemctl("show", "-p", "SystemState", "--value", check=False)):
            said = manager_log.read_text(encoding="utf-8", errors="replace")
            assert "degraded" not in state, f"the user manager is degraded: {said}"
            assert process.poll() is None, f"the user manager ended: {said}"
            assert time.monotonic() < deadline, f"the user manager is still {state!r}: {said}"
            time.sleep(0.05)
        yield manager
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)
        shutil.rmtree(runtime, ignore_errors=True)

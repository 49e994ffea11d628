"""A connection that is cut at one point of an apply on the machine far, from there: `support.crash` names the points.

The interpreter there reads `sitecustomize`, which `cut_at` writes; the program knows nothing of it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

import psutil

from support import crash
from support.deployment import SOURCES, TESTS

if TYPE_CHECKING:
    from pathlib import Path

    from support.sshd import SshServer

_SITE = """
import os, sys
if "--carry-out" in sys.orig_argv and os.environ.get("CUT_POINT"):
    from support import cut
    cut.arm()
"""


def cut_at(point: str, way: str, far: SshServer, folder: Path) -> dict[str, str]:
    """What to have in the environment there. `way` says whose process is killed: `ssh` is the user's, `sshd` that of
    the session there, `agent` what that has started, and `itself` the apply."""
    (folder / "sitecustomize.py").write_text(_SITE)
    path = os.pathsep.join(map(str, (folder, TESTS, SOURCES)))
    sign = folder / "was-cut"
    return {
        "PYTHONPATH": path, "CUT_POINT": point, "CUT_WAY": way, "CUT_SIGN": str(sign), "CUT_SSHD": str(far.pid),
        "CUT_CONFIG": str(far.config),
    }  # fmt: skip


def arm() -> None:
    """Cut in this process; once, so that a recovery is let be."""
    if not os.path.exists(os.environ["CUT_SIGN"]):  # noqa: PTH110 - an interpreter that has just begun
        crash._die = _cut
        crash.arm(os.environ["CUT_POINT"])


def _cut() -> None:
    sign, way = os.environ["CUT_SIGN"], os.environ["CUT_WAY"]
    with contextlib.suppress(FileExistsError), open(sign, "x"):  # noqa: PTH123
        if way == "itself":
            os.kill(os.getpid(), signal.SIGKILL)
        for process in connection(way, int(os.environ["CUT_SSHD"]), os.environ["CUT_CONFIG"]):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def connection(way: str, sshd: int, config: str) -> list[psutil.Process]:
    """The processes of all connections now."""
    inside = {process.pid for process in psutil.Process(sshd).children(recursive=True)}
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        # Neither is known of one that is a zombie.
        name, words = process.info["name"] or "", process.info["cmdline"] or ()
        ways = {
            "ssh": name == "ssh" and config in words,
            "sshd": process.pid in inside and name.startswith("sshd"),
            "agent": process.pid in inside and "--changes" in words and "agent" in words,
        }
        if ways[way]:
            found.append(process)
    return found

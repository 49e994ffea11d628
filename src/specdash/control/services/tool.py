"""The commands of service managers."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

from specdash.core.errors import ServiceError
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a tool said. `code` is None for one that did not end in time and was ended."""

    code: int | None
    out: str
    err: str

    @property
    def done(self) -> bool:
        """Whether it did what it was asked."""
        return self.code == 0

    @property
    def reason(self) -> str:
        """The first line of what it complained about, without the advice that follows."""
        lines = [line.strip() for line in self.err.splitlines() if line.strip()]
        return lines[0].rstrip(".") if lines else f"exit code {self.code}"


def run_tool(
    command: Sequence[str],
    env: Mapping[str, str],
    timeout: float,
    *,
    name: str,
    missing: str,
) -> ToolOutput:
    """Run a command to its end in `env`, where it is looked for, too. `name` is what it is called where it does not end
    in time.

    Raises `ServiceError` where it cannot be run: `missing` where it is not installed.
    """
    tool = shutil.which(command[0], path=env.get("PATH"))
    if tool is None:
        raise ServiceError(missing)
    try:
        # In a session of its own: Ctrl-C is for us, a half-done restart must not come of it.
        done = subprocess.run(
            [tool, *command[1:]],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return ToolOutput(None, "", f"{name} did not end within {timeout:g} s")
    except OSError as error:
        raise ServiceError(f"{tool} cannot be run: {error.strerror or error}") from None
    out, err = (data.decode("utf-8", "replace") for data in (done.stdout, done.stderr))
    return ToolOutput(done.returncode, out, err)

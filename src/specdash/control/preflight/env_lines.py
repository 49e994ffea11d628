"""Lines of the env file that systemd drops or misreads, and values that are not what they look like."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from specdash.control.preflight.context import parted
from specdash.core import envfile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.control.preflight.context import Findings, PreflightContext

_VARIABLE = re.compile(r"\$\{?[A-Za-z_]")
_COMMENT = re.compile(r"\s[#;]")
_MARKED = ("LLAMA_", "PROXY_")
_MAY_HOLD = re.compile(r"TEMPLATE|_ARGS$|KEY|TOKEN|PASSW|SECRET")


def check(values: Mapping[str, str], context: PreflightContext, out: Findings) -> None:
    """Add what is to be said of the file as it is now, and of the wanted values as systemd hands them on."""
    _file(context, out)
    for key, text in values.items():
        if (problem := envfile.name_problem(key) or envfile.value_problem(key, text)) is not None:
            said, fix = parted(problem)
            out.error("env-value", said, key=key, fix=fix)
        if not key.startswith(_MARKED) or _MAY_HOLD.search(key):
            continue
        if _VARIABLE.search(text):
            out.warning("env-value", f"{key}={text}: systemd expands no variables here", key=key, fix="write it out")
        if _COMMENT.search(text):
            fix = "put the comment on a line of its own"
            out.warning("env-value", f"{key}={text}: what looks like a comment is part of the value", key=key, fix=fix)


def _file(context: PreflightContext, out: Findings) -> None:
    try:
        data = context.env_file.read_bytes()
    except (FileNotFoundError, ValueError):
        return
    except OSError as error:
        out.error("env-file", f"{context.env_file}: {error.strerror or error}", fix="make it a file you can read")
        return
    file = envfile.parse(envfile.decode(data))
    ours = context.service is None or context.service.reloads
    for entry in file.entries:
        if entry.problem is None:
            continue
        said, fix = parted(entry.problem)
        add = out.error if ours else out.warning
        add("env-line", f"{context.env_file}:{entry.line}: {said}", fix=fix or "mend the line")
    for trap in envfile.traps(file):
        said, fix = parted(trap.text)
        out.warning("env-line", f"{context.env_file}:{trap.line}: {said}", fix=fix)
    seen: dict[str, int] = {}
    for entry in file.entries:
        if entry.key is None:
            continue
        if entry.key in seen and entry.key not in context.changed:
            said = f"{context.env_file}:{entry.line}: {entry.key} is set again; line {seen[entry.key]} does not count"
            out.warning("env-line", said, key=entry.key, fix="remove one of the lines")
        seen[entry.key] = entry.line

"""`specdash services adopt`: the settings of a llama-server that was started by hand, as an env file for a service."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.cli.options import one_target, resolved_settings
from specdash.control.env_store import read_env, replace_env
from specdash.control.preflight import PreflightContext, check
from specdash.control.services.service_command import adopted_values, started_with
from specdash.core import paths
from specdash.core.changes import Role
from specdash.core.env_edit import shown_text, with_changes
from specdash.core.envfile import encode
from specdash.core.errors import ConflictError, ExitCode, RefusedError, errors

if TYPE_CHECKING:
    import argparse

    from specdash.core.target import Target

_HEAD = "# Written by `specdash services adopt` from a llama-server that was started by hand\n"


def adopt(args: argparse.Namespace) -> int:
    """Write the env file, and say how the service takes over. Raises `RefusedError` where the server cannot be adopted,
    `ConflictError` where there is an env file already."""
    target = one_target(resolved_settings(args))
    path = Path(args.env_file).expanduser().absolute() if args.env_file else paths.backend_env_file()
    values = _values(target)
    print(f"the settings of process {target.pid}, {target.url}:")
    print("\n".join(f"  {key}={shown_text(key, value)}" for key, value in values.items()))
    pids = frozenset({target.pid} if target.pid is not None else ())
    findings = check(Role.BACKEND, values, PreflightContext(path, own_pids=pids))
    print("\n".join(f"{finding.severity}: {finding.line}" for finding in findings) or "preflight: no problems found")
    if errors(findings):
        raise RefusedError("preflight found errors, nothing was written; start the server without them, then adopt it")
    snapshot = read_env(path)
    if snapshot.exists:
        raise ConflictError(f"{path} is there already, nothing was written; name another file with --env-file")
    if args.dry_run:
        print(f"would write {path}")
        return ExitCode.OK
    replace_env(snapshot, encode(_HEAD + with_changes(snapshot.file, values)))
    named = f" --backend-env {path}" if args.env_file else ""
    print(f"wrote {path}; nothing was stopped. The service takes over with:")
    print(f"  kill {target.pid}   # requests that run are cut off")
    print(f"  specdash services install backend{named} --start")
    return ExitCode.OK


def _values(target: Target) -> dict[str, str]:
    if target.pid is None:
        raise RefusedError(f"{target.url}: its process is not seen from here; run this as the user who started it")
    process = started_with(target.pid)
    if process is None:
        raise RefusedError(f"process {target.pid} does not show its arguments; run this as the user who started it")
    values = adopted_values(*process, target)
    if values is None:
        raise RefusedError(f"process {target.pid} is no llama-server that was started by hand")
    return values

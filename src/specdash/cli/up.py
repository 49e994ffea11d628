"""`specdash up`: the backend and the proxy in the foreground of a pane or a container, kept running until Ctrl-C."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from typing import TYPE_CHECKING

from specdash.backend.env_store import read_env
from specdash.cli.changes.services import add_model_options, bootstrap_texts, env_files_of
from specdash.cli.signals import answered
from specdash.control.keeper import Keeper
from specdash.control.services import setup, units
from specdash.control.services.clients import client_view
from specdash.core.changes import Role
from specdash.core.errors import ExitCode, InputError, PortInUseError
from specdash.system.processes import open_listening

if TYPE_CHECKING:
    import argparse
    import socket
    from collections.abc import Mapping
    from pathlib import Path

_LOOK_S = 0.2


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("role", nargs="?", choices=[str(role) for role in Role], help="only this one")
    add_model_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run both until a signal or until one cannot be started: its exit code, 0 after SIGTERM, 130 after Ctrl-C."""
    if (left := setup.left_supervisor()) is not None:
        print(f"specdash: {left}", file=sys.stderr)
    env_files = env_files_of(args)
    for path in setup.write_env_files(bootstrap_texts(args, env_files), env_files):
        print(f"wrote {path}", flush=True)
    roles = _roles(args, env_files)
    sockets = _listening(read_env(env_files[Role.PROXY]).values) if Role.PROXY in roles else []
    asked_by: list[int] = []

    def end(number: int) -> str:
        asked_by.append(number)
        if len(asked_by) == 1:
            return "ending: the proxy lets its requests finish; another one ends all at once"
        keeper.kill()
        return "ending all at once"

    with Keeper() as keeper, answered(end) as asked:
        for role in roles:
            shared = sockets if role is Role.PROXY else ()
            keeper.start_service(role, env_files[role], os.environ, sockets=shared)
        ended, clients = None, None
        while ended is None and not asked.wait(_LOOK_S):
            ended = next((kept for kept in keeper.kept.values() if not kept.is_alive()), None)
            if clients is None and (seen := client_view({role: env_files[role] for role in roles})) and seen.ready:
                clients = seen
                # A full disk behind standard output ends no service.
                with contextlib.suppress(OSError):
                    print(clients.line, flush=True)
        for item in sockets:
            item.close()
        # The proxy first: it lets its requests finish while the backend still answers.
        for role in (Role.PROXY, Role.BACKEND):
            keeper.stop(role)
        if ended is not None:
            return ended.code or ExitCode.FAILED
        return ExitCode.OK if asked_by[0] == signal.SIGTERM else ExitCode.INTERRUPTED


def _roles(args: argparse.Namespace, env_files: Mapping[Role, Path]) -> list[Role]:
    """Those asked for, else those that there is an env file for."""
    found = []
    for role in [Role(args.role)] if args.role is not None else list(Role):
        if env_files[role].is_file():
            found.append(role)
        elif args.role is not None or getattr(args, f"{role}_env") is not None:
            raise InputError(f"env file {env_files[role]}: no such file")
        else:
            print(f"specdash: no {role}: there is no {env_files[role]}", file=sys.stderr, flush=True)
    if not found:
        raise InputError("nothing to run; `specdash up --model MODEL.gguf` writes both env files and starts")
    return found


def _listening(values: Mapping[str, str]) -> list[socket.socket]:
    host, port = units.proxy_place(values)
    try:
        return open_listening(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"port {port} of {host} is in use; stop its owner, or set another PROXY_PORT"
            ) from None
        raise InputError(f"PROXY_HOST={host}, PROXY_PORT={port}: cannot listen there ({error.strerror})") from None

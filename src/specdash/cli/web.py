"""`specdash web`: the dashboard in a browser of this machine, for those without a terminal; read-only. docs/web.md"""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import signal
import sys
from typing import TYPE_CHECKING

from specdash.cli.options import add_settings, bare_target, find_targets, one_target, resolved_settings, say
from specdash.core.config import RULE_SETTINGS, SCREEN_SETTINGS, TARGET_SETTINGS
from specdash.core.errors import ExitCode, InputError, UsageError
from specdash.core.target import host_and_port, is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping
    from socket import socket

    from specdash.core.config import Resolved

LISTEN = "127.0.0.1:9539"
_KILLED_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, (*TARGET_SETTINGS, *SCREEN_SETTINGS, *RULE_SETTINGS))
    parser.add_argument(
        "--listen", metavar="HOST:PORT", default=LISTEN, help=f"a loopback address to serve on (default {LISTEN})"
    )
    parser.add_argument("--page", action="store_true", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; with `--page`, which textual-serve's child is started with, be one page."""
    settings = resolved_settings(args)
    if args.page:
        return _be_page(settings)
    try:
        from specdash.cli import web_server
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("specdash"):
            raise
        raise InputError(f"specdash web needs the package {error.name}: pip install 'specdash[web]'") from None
    from aiohttp import web

    sockets = _listening(args.listen)
    target = one_target(settings)
    words = [sys.executable, "-m", "specdash", *sys.argv[1:], "--page", "--url", target.url]
    key = secrets.token_urlsafe(32)
    # The shell of textual-serve becomes the page: whoever ends it ends the page.
    server = web_server.PageServer(f"exec {shlex.join(words)}", title="specdash", key=key)
    host, port = sockets[0].getsockname()[:2]
    say(f"{target.url} in a browser, read-only, until Ctrl+C:")
    print(f"http://{f'[{host}]' if ':' in host else host}:{port}/?key={key}", flush=True)
    # No access log: it would hold the key.
    web.run_app(
        server.application(),
        sock=sockets,
        print=lambda *_: None,
        access_log=None,
        shutdown_timeout=web_server.SHUTDOWN_S,
    )
    return ExitCode.OK


def _listening(text: str) -> list[socket]:
    from specdash.system.sockets import open_listening

    try:
        host, port = host_and_port(text)
    except ValueError:
        raise UsageError(f"--listen {text}: must be HOST:PORT, as {LISTEN}") from None
    if not is_loopback(host):
        raise UsageError(
            f"--listen {text}: only a loopback address, since key and page are not encrypted; from another machine use "
            f"ssh -L {port}:127.0.0.1:{port}"
        )
    try:
        return open_listening(host, port)
    except OSError as error:
        raise InputError(f"--listen {text}: {error.strerror or error}; name another with --listen") from None


def _be_page(settings: Mapping[str, Resolved]) -> int:
    from specdash.cli.signals import stopped_by_signals
    from specdash.cli.watch import open_dashboard

    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_KILLED_WITH_PARENT, signal.SIGKILL)
    if os.isatty(0):
        raise UsageError("--page is for specdash itself: use specdash web")
    # A browser has all colours, whatever the terminal has that the server was started in.
    os.environ["COLORTERM"], os.environ["TERM"] = "truecolor", "xterm-256color"
    with stopped_by_signals():
        return open_dashboard(
            bare_target(settings), settings, complete=lambda: find_targets(settings)[0], in_browser=True
        )

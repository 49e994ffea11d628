"""`specdash` and `specdash watch`: the dashboard on a running server."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from specdash.cli.options import add_settings, find_targets, resolved_settings
from specdash.core.config import SCREEN_SETTINGS, TARGET_SETTINGS
from specdash.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from specdash.core.config import Resolved
    from specdash.core.target import Target
    from specdash.tui.app import Dashboard


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_settings(parser, (*TARGET_SETTINGS, *SCREEN_SETTINGS))


def run(args: argparse.Namespace) -> int:
    """Open the dashboard; without a server, the page that says how to connect."""
    need_terminal("watch", "use `specdash snapshot` in scripts")
    settings = resolved_settings(args)
    targets = find_targets(settings)
    target = targets[0] if targets else _wait_for_server(settings)
    return open_dashboard(target, settings) if target is not None else ExitCode.OK


def _wait_for_server(settings: Mapping[str, Resolved]) -> Target | None:
    """Show how to connect until a server turns up or the user quits."""
    from specdash.collect.discover import USUAL_PORTS
    from specdash.core import paths
    from specdash.tui.screens.connect import ConnectApp

    def look() -> Target | None:
        return next(iter(find_targets(settings)), None)

    tried = (
        (str(paths.run_records_dir()), "no `specdash backend run` is alive"),
        ("processes of this machine", "no llama-server among those this user may see"),
        (", ".join(f"127.0.0.1:{port}" for port in USUAL_PORTS), "nothing there answers as llama-server"),
    )
    app: ConnectApp[Target] = ConnectApp(
        tried, look=look, theme=settings["theme"].value, ascii_only=settings["ascii"].value
    )
    return app.run()


def need_terminal(command: str, instead: str) -> None:
    """Raise `UsageError` unless the dashboard can read keys and draw; Textual draws on standard error."""
    if not (os.isatty(0) and os.isatty(2)):
        raise UsageError(f"{command} needs a terminal; {instead}")


def open_dashboard(
    target: Target, settings: Mapping[str, Resolved], *, demo: bool = False, seconds: float | None = None
) -> int:
    """Watch one server until the user quits, or for `seconds`."""
    from specdash.collect.hub import Hub
    from specdash.core import paths
    from specdash.core.config import WINDOWS_S
    from specdash.insight.state import TargetState
    from specdash.tui.app import Dashboard

    state = TargetState(target)
    hub = Hub(target, [state.apply], interval_s=settings["refresh"].value)
    app = Dashboard(
        state,
        on_interval=hub.set_interval,
        demo=demo,
        theme=settings["theme"].value,
        ascii_only=settings["ascii"].value,
        screenshots=paths.state_dir() / "screenshots",
    )
    app.window_s = WINDOWS_S[settings["window"].value]
    app.interval_s = settings["refresh"].value
    with hub, _ending(app, seconds):
        app.run()
    return app.return_code or ExitCode.OK


@contextmanager
def _ending(app: Dashboard, seconds: float | None) -> Iterator[None]:
    """Quit the running app after `seconds`, if any."""
    if seconds is None:
        yield
        return

    def leave() -> None:
        with suppress(RuntimeError):
            app.call_from_thread(app.exit)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()

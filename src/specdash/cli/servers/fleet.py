"""`specdash fleet`: all servers at once, as a screen, a table or JSON."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Self

from msgspec.structs import replace

from specdash.cli import on
from specdash.cli.options import (
    add_settings,
    alert_rules,
    await_answers,
    every_target,
    machines,
    print_answer,
    resolved_settings,
    settings_for,
    wait_until,
    within,
)
from specdash.collect.api_key import resolve_api_key
from specdash.core.config import (
    APPLY_SETTINGS,
    ARM_SETTINGS,
    RECORD_SETTINGS,
    RULE_SETTINGS,
    SCREEN_SETTINGS,
    WINDOWS_S,
)
from specdash.core.errors import ExitCode, SpecdashError, UnreachableError, UsageError
from specdash.core.target import is_over_ssh, machine_and_server, normalise_url, on_words

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from specdash.core.config import Resolved
    from specdash.core.target import Target
    from specdash.insight.fleet import FleetRow
    from specdash.insight.rules.catalogue import Rule

JUDGED_EVERY_S = 2.0
KEPT_S = 360.0
"""A little more than the window of the figures: with hundreds of servers an hour of each is too much."""
ASKED_EVERY_S = 5.0
"""A Prometheus is asked at most so often: it scrapes no faster."""
UNSEEN_S = 3.0
"""A row off the screen may be so old."""
KEY_OPTION = "--prometheus-key-env"
LONGEST_WAIT_S = 86400.0


def configure(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, (*SCREEN_SETTINGS, *APPLY_SETTINGS, *ARM_SETTINGS, *RULE_SETTINGS, *RECORD_SETTINGS))
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the rows once as JSON (docs/fleet.md)")
    form.add_argument("--once", action="store_true", help="print the rows once as a table")
    parser.add_argument(
        "--prometheus",
        metavar="URL",
        help="show the servers that this Prometheus scrapes through `specdash export`",
    )
    parser.add_argument(
        KEY_OPTION, metavar="NAME", help="environment variable that holds the bearer token for Prometheus"
    )
    parser.add_argument(
        "--wait",
        type=float,
        metavar="SECONDS",
        help="with --json or --once: watch for this long first, so that rates and averages are known",
    )


def run(args: argparse.Namespace) -> int:
    """Show or print them; printed: 0 where one of them answers, 4 where none does or there is none."""
    prints = args.json or args.once
    if args.wait is not None and not prints:
        raise UsageError("--wait needs --json or --once; the screen keeps watching anyway")
    wait_s = within("--wait", args.wait, 0.0, 0, LONGEST_WAIT_S)
    if args.prometheus_key_env is not None and args.prometheus is None:
        raise UsageError(f"{KEY_OPTION} needs --prometheus URL")
    settings = resolved_settings(args)
    rules = alert_rules(settings)
    if not prints:
        from specdash.cli.terminal_app import need_terminal

        need_terminal("fleet", "use `specdash fleet --json` or `--once` in scripts")
    window_s, refresh_s = WINDOWS_S[settings["window"].value], settings["refresh"].value
    fleet: Fleet | PrometheusFleet
    if args.prometheus is not None:
        key = resolve_api_key(args.prometheus_key_env, None, os.environ, KEY_OPTION)
        fleet = PrometheusFleet(normalise_url(args.prometheus, KEY_OPTION), key, max(refresh_s, ASKED_EVERY_S))
    else:
        targets, others = every_target(settings), machines(settings)
        if not targets and not others:
            raise UnreachableError(
                'no llama-server on this machine, and no [[target]] in config.toml; write one with name = "gpu1" and '
                'url = "http://gpu1:8080" (docs/servers.md)'
            )
        fleet = Fleet(targets, rules, refresh_s, window_s, others)
    if not prints:
        return _show(fleet, settings)
    from specdash.export import fleet as fleet_report
    from specdash.insight.fleet import worst_first

    with fleet:
        if isinstance(fleet, Fleet):
            await_answers(fleet.states, light=True)
        wait_until(wait_s)
        rows = worst_first(fleet.rows())
    document = fleet_report.to_json(rows, time.time(), window_s)
    print_answer(document, fleet_report.to_text(rows), as_json=args.json)
    return ExitCode.OK if any(row.answers for row in rows) else ExitCode.UNREACHABLE


def _show(fleet: Fleet | PrometheusFleet, settings: Mapping[str, Resolved]) -> int:
    """The screen; whichever server is opened has its dashboard, from which one comes back."""
    from specdash.cli.memory import return_memory
    from specdash.cli.signals import stopped_by_signals
    from specdash.cli.terminal_app import run_app
    from specdash.cli.watch import open_dashboard
    from specdash.tui.action_table import read_keys
    from specdash.tui.screens.fleet import FleetApp, FleetChoice

    choice, keys = FleetChoice(), read_keys(settings["keys"])
    return_memory()
    with stopped_by_signals(), fleet:
        while True:
            app = FleetApp(fleet.rows, choice, theme=settings["theme"].value, keys=keys)
            row = run_app(app)
            if row is None:
                return app.return_code or ExitCode.OK
            choice.selected = row.name
            if not is_over_ssh(row.url):
                target = fleet.target_of(row)
                open_dashboard(target, settings_for(target, settings), of_fleet=True)
                continue
            machine, server = machine_and_server(row.url)
            try:
                on.run(machine, ["--url", server] if server else [])
            except UnreachableError as error:
                if isinstance(fleet, Fleet):
                    fleet.machines[row.name] = replace(row, reason=str(error))


class Fleet:
    """The servers that are watched, and their rows."""

    def __init__(
        self,
        targets: Sequence[Target],
        rules: Sequence[Rule],
        interval_s: float,
        window_s: float,
        machines: Sequence[Target] = (),
    ) -> None:
        """`machines` have a row each, and are not asked."""
        from specdash.collect.fleet import FleetHub
        from specdash.insight.fleet import ELSEWHERE, FleetRow
        from specdash.insight.state import TargetState

        self.window_s = window_s
        self.machines = {
            row.label: FleetRow(row.label, row.url, None, ELSEWHERE, reason=on_words(row.url), group=row.group)
            for row in machines
        }
        kept_s = max(KEPT_S, window_s * 1.2)
        self.states = [
            TargetState(target, rules=rules, judged_every_s=JUDGED_EVERY_S, kept_s=kept_s) for target in targets
        ]
        self.hub = FleetHub([(state.target, state.apply) for state in self.states], interval_s=interval_s)
        self._drawn: dict[int, tuple[float, object, list[FleetRow]]] = {}
        """By place: when its rows were made, of what headline, and they."""

    def __enter__(self) -> Self:
        self.hub.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.hub.stop()

    def rows(self, seen: Collection[str] | None = None) -> list[FleetRow]:
        """The rows of now; with `seen` those that are not among them by name may be a few seconds old."""
        from specdash.insight.fleet import rows_of

        now, found = time.monotonic(), list(self.machines.values())
        for place, state in enumerate(self.states):
            headline, target = state.headline, state.target
            made, before, rows = self._drawn.get(place, (None, None, []))
            is_new = made is not None and headline == before and now - made < UNSEEN_S
            if seen is None or not is_new or any(row.name in seen for row in rows):
                # As the rules see it, in the window of the figures.
                picture = state.picture(now, time.time(), self.window_s, for_rules=True)
                rows = rows_of(picture, target.label, target.group)
                # Those that began together shall not all come due together.
                self._drawn[place] = now if made is not None else now - UNSEEN_S * (place % 3) / 3, headline, rows
            found += rows
        return found

    def target_of(self, row: FleetRow) -> Target:
        """The server of a row, of a router with the row's model."""
        names = {place: [drawn.name for drawn in rows] for place, (_, _, rows) in self._drawn.items()}
        target = next(self.states[place].target for place in names if row.name in names[place])
        return replace(target, model=row.router_model) if row.router_model is not None else target


class PrometheusFleet:
    """The rows of all servers that a Prometheus knows of. Raises as `collect.prometheus.newest` does when entered."""

    def __init__(self, url: str, key: str | None, interval_s: float) -> None:
        self.url = url
        self._key = key
        self._interval_s = interval_s
        self._rows: dict[str, FleetRow] = {}
        """By name, also those that Prometheus has no more."""
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self._look()
        if not self._rows:
            raise UnreachableError(f"Prometheus at {self.url} has no data from `specdash export` (docs/export.md)")
        threading.Thread(target=self._keep_looking, name="specdash-prometheus", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def rows(self, _: object = None) -> list[FleetRow]:
        """The newest rows."""
        return list(self._rows.values())

    def target_of(self, row: FleetRow) -> Target:
        """The server of a row, to be asked from here."""
        from specdash.core.target import Target

        return Target(row.url, origin=f"Prometheus at {self.url}")

    def _keep_looking(self) -> None:
        while not self._ended.wait(self._interval_s):
            try:
                self._look()
            except SpecdashError as error:
                self._lose(self._rows, str(error))

    def _look(self) -> None:
        from specdash.collect.prometheus import newest
        from specdash.export.from_prometheus import QUERY, rows_of_samples

        rows = {row.name: row for row in rows_of_samples(newest(self.url, QUERY, self._key))}
        gone = self._rows.keys() - rows.keys()
        self._rows = self._rows | rows
        self._lose(gone, "Prometheus no longer gets data about it; is its exporter running?")

    def _lose(self, names: Iterable[str], why: str) -> None:
        """Forget the figures of rows, which are not known any more."""
        from specdash.insight.fleet import FleetRow
        from specdash.insight.picture import BackendState

        lost = {name: self._rows[name] for name in names}
        self._rows = self._rows | {
            name: FleetRow(name, row.url, row.model, str(BackendState.UNKNOWN), reason=why)
            for name, row in lost.items()
        }

"""`specdash incident`: what happened, as one file that may be handed on. Without secrets, prompts or answers."""

from __future__ import annotations

import os
import sys
import time
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from specdash.cli.options import (
    add_settings,
    changed_rules,
    find_targets,
    look,
    print_answer,
    resolved_settings,
)
from specdash.core import paths
from specdash.core.changes import Role, is_secret
from specdash.core.config import RULE_SETTINGS, SERVICE_SETTINGS, TARGET_SETTINGS, WINDOWS_S
from specdash.core.errors import ExitCode, InputError, SpecdashError, UsageError
from specdash.core.log_places import program_and_name
from specdash.core.readings import ReadingStatus, Source
from specdash.core.records import EventKind, ProxyRecord, RunRecord
from specdash.core.target import Target, local_port
from specdash.export.incident.bundle import DEFAULT_SPAN_S, LONGEST_SPAN_S, IncidentSpan, Parts
from specdash.export.incident.redaction import Redactor, secret_values
from specdash.history.store import Store, target_name
from specdash.insight.charts import Metric
from specdash.insight.derive import of_alert
from specdash.system.text import size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from specdash.core.config import Resolved
    from specdash.core.records import Alert, TimelineEvent
    from specdash.export.incident.excerpt import Excerpt
    from specdash.insight.picture import Picture
    from specdash.insight.rules.catalogue import Rule

    Columns = Callable[[Metric, float, float, int], list[float | None]]
    Series = dict[Metric, tuple[tuple[float, float], ...]]

T = TypeVar("T")
LOOK_S = 2.0
"""How long the first answers of all endpoints may take; what has not answered by then is reported as it is."""
NO_SERVER = "http://127.0.0.1:8080"
"""What is looked at where no server is known at all."""
POINTS = 200
"""Columns of a series that are compared before and after."""
_NOW_S = 90.0
"""A span that ends so recently is about now."""
_ENDPOINTS = (Source.HEALTH, Source.PROPS, Source.METRICS, Source.SLOTS)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--last", metavar="LENGTH", help="how far to go back: 90s, 15m, 2h (default: 15m)")
    parser.add_argument("--since", metavar="MOMENT", help="from this moment: 02:00, -3h, 2026-03-01T02:00")
    parser.add_argument("--until", metavar="MOMENT", help="up to this moment (default: now)")
    parser.add_argument("--output", metavar="FILE", help="file to write, - for standard output (default: a new file)")
    parser.add_argument("--json", action="store_true", help="print the manifest as JSON (docs/incident.md)")
    add_settings(parser, (*TARGET_SETTINGS, *SERVICE_SETTINGS, *RULE_SETTINGS))


def run(args: argparse.Namespace) -> int:
    """Write one bundle, whether or not anything of the server can be seen."""
    from specdash.export.incident.bundle import assemble, refuse, store, store_as

    span = _span(args, time.time())
    output = args.output
    if output == "-" and (args.json or os.isatty(1)):
        raise UsageError("--output - writes a .tar.gz to standard output; redirect it to a file, and leave out --json")
    settings = resolved_settings(args)
    if output is not None and output != "-":
        refuse(Path(output))
    bundle = assemble(gather(target(settings, span.since), settings, span, up_to_now=args.until is None))
    if output == "-":
        sys.stdout.buffer.write(bundle.data)
        sys.stdout.buffer.flush()
        return ExitCode.OK
    path = store_as(bundle, Path(output)) if output is not None else store(bundle, paths.incidents_dir())
    manifest = bundle.manifest
    lines = [f"{path}  {size(len(bundle.data))}", f"state    {manifest['state']}"]
    lines += [f"cause    {manifest['cause']}"] if manifest["cause"] else []
    lines.append(f"inside   {', '.join(member['name'] for member in manifest['members'])}")
    lines += [f"missing  {entry['part']}: {entry['why']}" for entry in manifest["missing"]]
    lines.append("next     tar -xzf it, and paste summary.md into the ticket")
    print_answer({"path": str(path), **manifest}, lines, as_json=args.json)
    return ExitCode.OK


def _span(args: argparse.Namespace, now: float) -> IncidentSpan:
    from specdash.core.moments import parse_length, parse_moment

    if args.last is not None and args.since is not None:
        raise UsageError("--last and --since cannot be used together")
    until = parse_moment(args.until, now) if args.until is not None else now
    if args.since is not None:
        since = parse_moment(args.since, now)
    else:
        since = until - (parse_length(args.last) if args.last is not None else DEFAULT_SPAN_S)
    if until > now + 1:
        raise UsageError(f"--until {args.until}: is in the future")
    if not 1 <= until - since <= LONGEST_SPAN_S:
        raise UsageError(f"from --since to --until: {until - since:.0f} s, which must be from 1 second to 24 hours")
    return IncidentSpan(since, until)


def recent() -> IncidentSpan:
    """The span of `specdash incident` without options."""
    now = time.time()
    return IncidentSpan(now - DEFAULT_SPAN_S, now)


def write(parts: Parts, env: Mapping[str, str] = os.environ) -> Path:
    """Write the bundle to the usual place; where it is. Raises `NotWrittenError`."""
    from specdash.export.incident.bundle import assemble, store

    return store(assemble(parts), paths.incidents_dir(env))


def target(settings: Mapping[str, Resolved], since: float = inf) -> Target:
    """The server that is meant. Where none is named, one that crashed since `since` (Unix time); where none runs, the
    one that ran last, or was recorded last."""
    from specdash.collect.discover import ended_run

    found, last = find_targets(settings), ended_run()
    crashed = last is not None and last.crashed and (last.ended or 0.0) >= since
    if found and (settings["url"].value is not None or not crashed):
        return _with_last_run(found[0])
    recorded = _recorded_last()
    if last is not None and (recorded is None or last.ended is not None):
        origin = f"the server that ran last, which ended with {last.end or 'its runner'}"
        return _with_last_run(Target(last.url, origin=origin))
    return recorded or Target(NO_SERVER, origin="no server was found on this machine")


def _recorded_last() -> Target | None:
    try:
        with Store(paths.history_file()) as store:
            name = next(iter(store.targets()), None)
    except (SpecdashError, OSError, ValueError):
        return None
    url, _, model = (name or "").partition(" ")
    return Target(url, model=model or None, origin="the server that was recorded last") if url else None


def _with_last_run(target: Target) -> Target:
    """The target with what its last run left of itself, where nothing at all runs at its address now."""
    from specdash.collect.discover import ended_run
    from specdash.system.processes import listener_owners

    port = local_port(target.url)
    if port is None or target.pid is not None:
        return target
    last = ended_run(target.url)
    if last is None or listener_owners(port):
        return target
    return replace(
        target,
        log=target.log or last.log,
        engine=target.engine or last.engine,
        parameters=target.parameters or last.parameters,
        start_check=target.start_check or last.start_check,
    )


class _Missing:
    """What a bundle does not have. A bundle about trouble must not fail for more trouble."""

    def __init__(self) -> None:
        self.parts: list[tuple[str, str]] = []

    def attempt(self, part: str, get: Callable[[], T]) -> T | None:
        """What `get` returns; None, and a remark on `part`, where it fails."""
        try:
            return get()
        except (SpecdashError, OSError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self.parts.append((part, " ".join(why.split())))
        except Exception as error:  # noqa: BLE001
            self.parts.append((part, f"failed: {type(error).__name__}"))
        return None


def gather(
    target: Target,
    settings: Mapping[str, Resolved],
    span: IncidentSpan,
    *,
    picture: Picture | None = None,
    columns: Columns | None = None,
    up_to_now: bool = False,
    env: Mapping[str, str] = os.environ,
) -> Parts:
    """Everything that a bundle about `span` is made of. Takes seconds, and never fails: it lists what is missing.

    Without a `picture`, the server is looked at now. `columns` (see `TargetState.columns`) give the figures where there
    is no record. `up_to_now` lets the span end with the look at the server, so that what that finds is in it.
    """
    from specdash.backend.journal import read_records
    from specdash.export.incident.bundle import machine, versions
    from specdash.insight.rules.catalogue import shipped

    missing = _Missing()
    rules = missing.attempt("the user's thresholds", lambda: changed_rules(settings)) or shipped()
    if picture is None:
        window_s = WINDOWS_S["15m"]
        picture = missing.attempt("snapshot.json", lambda: look(target, rules, window_s, limit_s=LOOK_S, env=env))
    if up_to_now and picture is not None:
        span = replace(span, until=max(span.until, picture.wall))
    is_here = local_port(target.url) is not None
    records = _run_records(env) if is_here else ()
    envs = _env_files(target, settings, records, env, missing) if is_here else {}
    if not is_here:
        there = "it is on the server's own machine: `specdash incident --on USER@HOST` writes it there"
        missing.parts.append(("env files and run records", there))
    every_apply = missing.attempt("applies.json", lambda: read_records(paths.applies_file(env))) or ()
    plain = Redactor()
    changed = [(change.key, value) for apply in every_apply for change in apply.changes
               for value in (change.before, change.after) if value]  # fmt: skip
    # A value that a change does not show is not shown by a sentence about the change either.
    hidden = {value for key, value in changed if plain.setting(key, value) == "***" != value}
    redactor = Redactor(_secrets(target, envs.values(), picture, env) | hidden)
    process = picture.backend.process if picture is not None else None
    engine = (picture.backend.engine if picture is not None else None) or target.engine
    engine = engine or next((record["engine"] for record in _of_target(target, records, Role.BACKEND)), None)
    alerts, events, series = _recorded(target, span, picture, columns, env, missing)
    alerts = tuple(map(redactor.alert, alerts))
    parts = Parts(
        made=time.time(),
        span=span,
        url=redactor.text(target.url),
        redactor=redactor,
        picture=picture,
        alerts=alerts,
        cause=missing.attempt("likely cause", lambda: _cause(picture, alerts, rules, span)) or "",
        events=tuple(sorted((*map(redactor.event, events), *map(of_alert, alerts)), key=lambda event: event.at)),
        applies=tuple(redactor.apply(apply) for apply in every_apply if span.touches(apply.at, apply.ended_at)),
        rules={rule.id: rule for rule in rules},
        series=series,
        envs=envs,
        log=missing.attempt("log/llama-server.log", lambda: _log(target, settings, records, span)),
        versions=redactor.data(missing.attempt("versions.json", lambda: versions(engine)) or {}),
        machine=redactor.data(
            {**(missing.attempt("machine.json", machine) or {}), "command": process.command if process else None}
        ),
        run_records=records,
    )
    if picture is not None:
        if picture.gpu.unavailable:
            missing.parts.append(("GPU state", picture.gpu.unavailable))
        silent = (source for source in picture.backend.sources if source.source in _ENDPOINTS)
        missing.parts += [
            (f"/{source.source} of the server", source.reason)
            for source in silent
            if source.status is not ReadingStatus.KNOWN and source.reason
        ]
    return replace(parts, missing=tuple((part, redactor.text(why)) for part, why in missing.parts))


def _run_records(env: Mapping[str, str]) -> tuple[dict[str, Any], ...]:
    """The notes that backends and proxies left of themselves, those of backends that have ended after the others."""
    from specdash.collect.run_records import is_alive, notes
    from specdash.core.structs import json_of

    found: list[dict[str, Any]] = []
    for directory in (paths.run_records_dir(env), paths.ended_records_dir(env)):
        found += ({"kind": "backend", **json_of(it), "alive": is_alive(it)} for _, it in notes(directory, RunRecord))
    proxies = notes(paths.proxy_records_dir(env), ProxyRecord)
    return (*found, *({"kind": "proxy", **json_of(it), "alive": is_alive(it)} for _, it in proxies))


def _of_target(target: Target, records: Sequence[Mapping[str, Any]], role: Role) -> list[Mapping[str, Any]]:
    """The notes of the services of this server."""
    from specdash.collect.discover import concerns, place

    address = "url" if role is Role.BACKEND else "upstream"
    return [
        record
        for record in records
        if record["kind"] == str(role) and record.get(address) and concerns(record[address], place(target.url))
    ]


def _env_files(
    target: Target,
    settings: Mapping[str, Resolved],
    records: Sequence[Mapping[str, Any]],
    env: Mapping[str, str],
    missing: _Missing,
) -> dict[str, str]:
    """The text of each service's env file: the one that is named, that the service was started from, or the usual."""
    from specdash.backend.env_store import read_env
    from specdash.core.envfile import decode

    usual = {Role.BACKEND: paths.backend_env_file, Role.PROXY: paths.proxy_env_file}

    def text(role: Role) -> str:
        noted = next((record["env_file"] for record in _of_target(target, records, role) if record["env_file"]), None)
        named = settings[f"{role}_env_file"].value
        path = Path(named).expanduser() if named is not None else Path(noted) if noted else usual[role](env)
        snapshot = read_env(path)
        if not snapshot.exists:
            raise InputError(f"no env file is known: there is no {path}")
        return decode(snapshot.data)

    found = {str(role): missing.attempt(f"env/{role}.env", lambda role=role: text(role)) for role in Role}  # type: ignore[misc]
    return {role: file for role, file in found.items() if file is not None}


def _secrets(target: Target, envs: Iterable[str], picture: Picture | None, env: Mapping[str, str]) -> set[str]:
    """Every secret whose value is known, so that it is found wherever it got to."""
    found = {key for key in (target.api_key, target.proxy_key) if key}
    for text in envs:
        found |= secret_values(text)
    found |= {value for key, value in env.items() if value and is_secret(key)}
    process = picture.backend.process if picture is not None else None
    if process is not None:
        try:
            data = Path(f"/proc/{process.pid}/environ").read_bytes()
        except OSError:
            data = b""
        pairs = (entry.decode("utf-8", "replace").partition("=") for entry in data.split(b"\0"))
        found |= {value for key, _, value in pairs if value and is_secret(key)}
    return found


def _log(
    target: Target, settings: Mapping[str, Resolved], records: Sequence[Mapping[str, Any]], span: IncidentSpan
) -> Excerpt:
    from specdash.export.incident.excerpt import excerpt, excerpt_of

    left = (str(record["log"]) for record in _of_target(target, records, Role.BACKEND) if record["log"])
    log = target.log or settings["log"].value or next(left, None)
    if log is None:
        raise InputError("no log file: start specdash with --log FILE")
    if program_and_name(log) is None:
        return excerpt(Path(log), span)
    from specdash.collect.log_source import past

    chunk = next(past(log))
    if chunk.failure is not None:
        raise OSError(chunk.failure.detail)
    undated = "the log does not say when its last line was written: times are counted back from now"
    return excerpt_of(log, chunk.data, time.time(), span, (undated,))


def _recorded(
    target: Target,
    span: IncidentSpan,
    picture: Picture | None,
    columns: Columns | None,
    env: Mapping[str, str],
    missing: _Missing,
) -> tuple[tuple[Alert, ...], tuple[TimelineEvent, ...], Series]:
    """Alerts, other events and series of the span, from the record and from the screen.

    What was seen both ways is kept as it was recorded.
    """

    def from_record() -> tuple[Sequence[Alert], Sequence[TimelineEvent], Series]:
        with Store(paths.history_file(env)) as store:
            known = store.targets()
            name = next((name for name in (target_name(target), target.url) if name in known), None)
            if name is None:
                raise InputError(f"nothing is recorded about {target.url}")
            series = _series(lambda metric: store.points(name, metric, span.since, span.until, POINTS), span)
            return store.alerts(name, span.since, span.until), store.events(name, span.since, span.until), series

    alerts, events, series = missing.attempt("the record", from_record) or ((), (), {})
    found = {(alert.key, alert.raised): alert for alert in alerts}
    active = {alert.key for alert in alerts if alert.is_active}
    timeline = [*events]
    if picture is not None:
        for alert in (*picture.alerts.past, *picture.alerts.active):
            seen = (alert.key, alert.raised) in found or (alert.is_active and alert.key in active)
            if not seen and span.touches(alert.since, alert.ended):
                found[alert.key, alert.raised] = alert
        timeline += picture.timeline
        if columns is not None and abs(time.time() - span.until) < _NOW_S:
            at = picture.at
            series = {**_series(lambda metric: columns(metric, at, span.seconds, POINTS), span), **series}
    unique = {
        (round(event.at), event.kind, event.title): event
        for event in timeline
        if event.kind is not EventKind.ALERT and span.touches(event.at, event.ended or event.at)
    }
    return tuple(sorted(found.values(), key=lambda alert: alert.since)), tuple(unique.values()), series


def _series(columns: Callable[[Metric], list[float | None]], span: IncidentSpan) -> Series:
    found: Series = {}
    for metric in Metric:
        values = columns(metric)
        width = span.seconds / max(1, len(values))
        points = tuple((span.since + (at + 0.5) * width, value) for at, value in enumerate(values) if value is not None)
        if points:
            found[metric] = points
    return found


def _cause(picture: Picture | None, alerts: Sequence[Alert], rules: Sequence[Rule], span: IncidentSpan) -> str:
    """The likely cause, in one sentence: of what is wrong now, unless worse is over; then of all that was wrong."""
    from specdash.insight.rules.book import likely_cause

    worst = max((alert.severity.rank for alert in alerts if not alert.refuted), default=-1)
    active = [alert for alert in alerts if alert.is_active]
    is_now = any(alert.severity.rank >= worst and not alert.refuted for alert in active)
    found = likely_cause(active if is_now else alerts, rules)
    if is_now and picture is not None and span.until > picture.wall - _NOW_S:
        # The one on the screen, in the words of the record that saw it begin.
        found = next((alert for alert in active if alert.key == picture.alerts.cause_key), found)
    return f"{found.title}: {found.summary}" if found is not None else ""

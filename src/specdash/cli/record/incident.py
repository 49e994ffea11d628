"""`specdash incident`: what happened, as one file that may be handed on. Without secrets, prompts or answers."""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from specdash.cli.options import (
    add_settings,
    alert_rules,
    changed_rules,
    check_all_alone,
    find_targets,
    look,
    no_server,
    print_answer,
    print_json,
    resolved_settings,
    settings_for,
)
from specdash.core import paths
from specdash.core.changes import Role, is_secret
from specdash.core.config import RULE_SETTINGS, SERVICE_SETTINGS, TARGET_SETTINGS, WINDOWS_S
from specdash.core.errors import ExitCode, SpecdashError, UsageError
from specdash.core.log_places import program_and_name
from specdash.core.readings import ReadingStatus, Source
from specdash.core.records import EventKind, TimelineEvent
from specdash.core.target import Target, local_port
from specdash.export.incident.bundle import EnvPart, EnvVersion, Missing, Parts
from specdash.history.store import Store, target_name
from specdash.history.writer import copy_span
from specdash.insight.charts import Metric
from specdash.insight.derive import of_alert
from specdash.system.text import size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from specdash.control.deployment import Deployment, Service
    from specdash.core.changes import ApplyRecord
    from specdash.core.config import Resolved
    from specdash.core.proxy_events import ProxyEvent
    from specdash.core.records import Alert, TimelineEvent
    from specdash.export.incident.bundle import IncidentSpan
    from specdash.export.incident.redaction import Redactor
    from specdash.export.incident.summary import Excerpt
    from specdash.insight.picture import Picture
    from specdash.insight.rules.catalogue import Rule

    Columns = Callable[[Metric, float, float, int], list[float | None]]


# What the record and the screen know of the time that an incident bundle is about.

Series = dict[Metric, tuple[tuple[float, float], ...]]
"""(Unix time, value) of each metric."""
MOST_READINGS_S = 7200.0
"""Of a longer span, the extract has every reading of its end only."""
MOST_LOOKS = 4
"""Moments at which a source that is silent at the end is looked for."""
POINTS = 430
"""Columns of a series, whose medians the summary has."""


class RecordedSpan:
    """What is recorded of one target in one span."""

    def __init__(self, store: Store, name: str, span: IncidentSpan) -> None:
        self._store = store
        self.name = name
        self._span = span

    def alerts(self) -> tuple[Alert, ...]:
        """Those that held at any time of it."""
        return self._store.alerts(self.name, self._span.since, self._span.until)

    def events(self) -> tuple[TimelineEvent, ...]:
        """What happened, alerts left out."""
        found = self._store.events(self.name, self._span.since, self._span.until)
        return tuple(timeline_event for timeline_event in found if timeline_event.kind is not EventKind.ALERT)

    def series(self) -> Series:
        """Every series that has a value."""
        since, until = self._span.since, self._span.until
        return _series(lambda metric: self._store.points(self.name, metric, since, until, POINTS), self._span)

    def last(self, alerts: Sequence[Alert]) -> Mapping[Source, Any]:
        """What was last known of each source: at the end of the span, else before one of the newest alerts began."""
        moments = [self._span.until, *(alert.since for alert in reversed(alerts))][:MOST_LOOKS]
        found: dict[Source, Any] = {}
        for moment in moments:
            for _, reading in self._store.latest(self.name, moment):
                if reading.value is not None:
                    found.setdefault(reading.source, reading.value)
        return found


def name_in(store: Store, target: Target) -> str | None:
    """What the record calls the target, None when it has nothing of it."""
    known = store.targets()
    return next((name for name in (target_name(target), target.url) if name in known), None)


def last_target(store: Store) -> Target | None:
    """The server that was recorded last."""
    name = next(iter(store.targets()), None)
    if name is None:
        return None
    url, _, model = name.partition(" ")
    return Target(url, model=model or None, origin="the server that was recorded last")


def extract(history: Path, name: str, span: IncidentSpan, redactor: Redactor, path: Path) -> int:
    """Copy the span of the record at `history` to a new file, redacted; how many readings."""
    from specdash.export.incident.redaction import redacted

    with Store(history) as store:
        return copy_span(
            store,
            name,
            span.since,
            span.until,
            path,
            name=redactor.text(name),
            change=lambda value: redacted(value, redactor),
            readings_since=span.until - MOST_READINGS_S,
        )


def live_series(columns: Columns, picture: Picture, span: IncidentSpan) -> Series:
    """What the screen's charts hold."""
    return _series(lambda metric: columns(metric, picture.at, span.seconds, POINTS), span)


def all_alerts(picture: Picture | None, recorded: Sequence[Alert], span: IncidentSpan) -> tuple[Alert, ...]:
    """Recorded ones, and those that are active now: an alert seen both ways is kept as it was recorded."""
    found = {(alert.key, alert.raised): alert for alert in recorded}
    active = {alert.key for alert in recorded if alert.is_active}
    if picture is not None:
        for alert in (*picture.alerts.past, *picture.alerts.active):
            seen = (alert.key, alert.raised) in found or (alert.is_active and alert.key in active)
            if not seen and span.touches(alert.since, alert.ended):
                found[alert.key, alert.raised] = alert
    return tuple(sorted(found.values(), key=lambda alert: alert.since))


def all_events(
    picture: Picture | None, recorded: Sequence[TimelineEvent], alerts: Sequence[Alert], span: IncidentSpan
) -> tuple[TimelineEvent, ...]:
    """Everything that happened, each thing once, oldest first."""
    live = picture.timeline if picture is not None else ()
    kept = [timeline_event for timeline_event in (*recorded, *live) if timeline_event.kind is not EventKind.ALERT]
    unique = {
        (round(timeline_event.at), timeline_event.kind, timeline_event.title): timeline_event
        for timeline_event in kept
        if span.touches(timeline_event.at, timeline_event.ended or timeline_event.at)
    }
    return tuple(sorted([*unique.values(), *map(of_alert, alerts)], key=lambda timeline_event: timeline_event.at))


def cause(picture: Picture | None, alerts: Sequence[Alert], rules: Sequence[Rule]) -> str:
    """The likely cause, in one sentence: of what is wrong now, unless worse is over; then of all that was wrong."""
    from specdash.insight.rules.book import likely_cause

    def worst(some: Iterable[Alert]) -> int:
        return max((alert.severity.rank for alert in some if not alert.refuted), default=-1)

    active = [alert for alert in alerts if alert.is_active]
    is_now = bool(active) and worst(active) >= worst(alerts)
    found = likely_cause(active if is_now else alerts, rules)
    if is_now and picture is not None and picture.alerts.cause_key is not None:
        # The one on the screen, in the words of the record that saw it begin.
        found = next((alert for alert in active if alert.key == picture.alerts.cause_key), found)
    return f"{found.title}: {found.summary}" if found is not None else ""


def _series(columns: Callable[[Metric], list[float | None]], span: IncidentSpan) -> Series:
    width = span.seconds / POINTS
    found: Series = {}
    for metric in Metric:
        values = enumerate(columns(metric))
        known = tuple((span.since + (at + 0.5) * width, value) for at, value in values if value is not None)
        if known:
            found[metric] = known
    return found


# Gathers the parts of an incident bundle from everywhere. What cannot be had becomes a remark, never an error.

T = TypeVar("T")
_NOW_S = 90.0
"""A span that ends so recently is about now."""
_PROXY_BYTES = 8 * 1024 * 1024
_MOST_PROXY_EVENTS = 5000
_OWN_ENV = {Role.BACKEND: paths.backend_env_file, Role.PROXY: paths.proxy_env_file}
_ENDPOINTS = (Source.HEALTH, Source.PROPS, Source.METRICS, Source.SLOTS)
_NOT_FOUND = "no env file is known"
_BUILD = re.compile(r"b\d+(?:-[0-9a-f]+)?")


def recorded_target(env: Mapping[str, str]) -> Target | None:
    """The server that was recorded last, None without a record."""
    try:
        with Store(paths.history_file(env)) as store:
            return last_target(store)
    except (SpecdashError, OSError, ValueError):
        return None


def with_last_run(target: Target, env: Mapping[str, str]) -> Target:
    """The target with what its last run left of itself, where nothing at all runs at its address now."""
    from specdash.collect.discover import answers_like_llama_server, ended_run

    port = local_port(target.url)
    if port is None or target.pid is not None:
        return target
    last = ended_run(target.url, env)
    if last is None or answers_like_llama_server(port):
        return target
    return replace(
        target,
        log=target.log or last.log,
        engine=target.engine or last.engine,
        parameters=target.parameters or last.parameters,
        start_check=target.start_check or last.start_check,
    )


class Gathering:
    """One bundle's parts. `missing` grows as things are found not to be there."""

    def __init__(
        self,
        target: Target,
        settings: Mapping[str, Resolved],
        span: IncidentSpan,
        env: Mapping[str, str],
        *,
        is_elsewhere: bool = False,
    ) -> None:
        self.target = target
        self._is_elsewhere = is_elsewhere
        self.settings = settings
        self.span = span
        self.env = env
        self.missing: list[Missing] = []
        self.is_now = time.time() - span.until < _NOW_S

    def attempt(self, part: str, get: Callable[[], T]) -> T | None:
        """What `get` returns; None, with a remark on `part`, where it fails."""
        try:
            return get()
        except (SpecdashError, OSError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self.missing.append(Missing(part, " ".join(why.split())))
        except Exception as error:  # noqa: BLE001 - a bundle about trouble must not fail for more trouble
            self.missing.append(Missing(part, f"failed: {type(error).__name__}"))
        return None

    def of_its_machine(self, part: str, get: Callable[[], T]) -> T | None:
        """The same of what is read from the server's machine, where that is this one."""
        if not self._is_elsewhere:
            return self.attempt(part, get)
        self.missing.append(Missing(part, "it is on the server's own machine: run `specdash incident` there"))
        return None

    def _of_its_file(self, part: str, file: str | None, get: Callable[[], T]) -> T | None:
        """The same of a file of the server that is read here wherever the server is."""
        return self.attempt(part, get) if file is not None else self.of_its_machine(part, get)

    def parts(self, picture: Picture | None, columns: Columns | None) -> Parts:
        from specdash.export.incident.bundle import machine, run_records, versions
        from specdash.export.incident.redaction import Redactor

        deployment = None if self._is_elsewhere else self.attempt("services", self._deployment)
        envs = tuple(part for role in Role if (part := self._env_part(role, deployment)) is not None)
        applies = self.of_its_machine("applies.json", self._applies) or ()
        secrets = self._secrets(envs, picture) | _hidden(applies)
        redactor = Redactor(secrets)
        rules = self.attempt("runbooks", self.rules) or ()
        parts = Parts(
            made=time.time(),
            span=self.span,
            url=self.target.url,
            redactor=redactor,
            picture=picture,
            applies=tuple(apply for apply in applies if self.span.touches(apply.at, apply.ended_at)),
            rules={rule.spec.id: rule.spec for rule in rules},
            envs=envs,
            log=self._of_its_file("log/llama-server.log", self.target.log, self._log),
            proxy_events=self._of_its_file("proxy-events.jsonl", self.target.proxy_log, self._proxy_events) or (),
            versions=self.attempt("versions.json", partial(versions, picture)) or {},
            machine=self.of_its_machine("machine.json", machine) or {},
            run_records=self.of_its_machine("run-records.json", partial(run_records, self.env)) or (),
        )
        parts = self._with_history(parts, rules, columns)
        self._note_absences(picture)
        return replace(parts, missing=tuple(self.missing))

    def _deployment(self) -> Deployment:
        from specdash.control.deployment import find_deployment

        return find_deployment(self.settings, self.env)

    def rules(self) -> tuple[Rule, ...]:
        """The rules with the user's thresholds; those shipped where these cannot be read."""
        from specdash.insight.rules.catalogue import shipped

        return self.attempt("the user's thresholds", lambda: changed_rules(self.settings)) or shipped()

    def _applies(self) -> tuple[ApplyRecord, ...]:
        """All of them: the text about earlier ones must not show what they hid either."""
        from specdash.backend.journal import read_records

        return read_records(paths.applies_file(self.env))

    # Env files

    def _env_part(self, role: Role, deployment: Deployment | None) -> EnvPart | None:
        service = deployment.service(role) if deployment is not None else None
        return self.of_its_machine(f"env/{role}.env", lambda: self._env(role, service))

    def _env(self, role: Role, service: Service | None) -> EnvPart:
        from specdash.backend.env_store import Backups, read_env
        from specdash.core.envfile import decode
        from specdash.core.errors import InputError

        named = self.settings[f"{role}_env_file"].value
        if service is not None:
            path = service.env_file
        else:
            path = (
                Path(named).expanduser() if named is not None else self._recorded_env(role) or _OWN_ENV[role](self.env)
            )
        snapshot = read_env(path)
        if not snapshot.exists:
            raise InputError(f"{_NOT_FOUND}: there is no {path}")
        kept = Backups(paths.backups_dir(self.env))
        before = [
            EnvVersion(decode(kept.read(role, backup.number)), backup.at, backup.number)
            for backup in kept.list(role)
            if backup.original in (None, path.absolute(), snapshot.target)
            and self.span.since <= backup.at <= self.span.until
            and backup.existed
        ]
        return EnvPart(role, path, EnvVersion(decode(snapshot.data)), tuple(before))

    def _recorded_env(self, role: Role) -> Path | None:
        """The env file that a service says it was started from, one that runs or the last that did."""
        from specdash.export.incident.bundle import run_records

        for record in run_records(self.env):
            about = record["url"] if role is Role.BACKEND else record.get("upstream")
            if record["kind"] == str(role) and about and self._concerns(about) and record["env_file"]:
                return Path(record["env_file"])
        return None

    def _concerns(self, url: str) -> bool:
        from specdash.collect.discover import concerns, place

        return concerns(url, place(self.target.url))

    def _secrets(self, envs: Iterable[EnvPart], picture: Picture | None) -> set[str]:
        """Every secret whose value is known, so that it is found wherever it got to."""
        from specdash.export.incident.redaction import secret_values

        found = {name for name in (self.target.api_key, self.target.proxy_key) if name}
        for part in envs:
            for version in (*part.before, part.now):
                found |= secret_values(version.text)
        found |= {value for key, value in self.env.items() if value and is_secret(key)}
        process = picture.backend.process if picture is not None else None
        if process is not None and not self._is_elsewhere:
            found |= _secret_variables(process.pid)
        # A list of keys is one value of a setting, and each of them a secret.
        return found | {part.strip() for value in found for part in value.split(",") if part.strip()}

    # The log and the proxy's events

    def _log(self) -> Excerpt | None:
        from specdash.export.incident.summary import excerpt, excerpt_of

        log = self.target.log or self.settings["log"].value or self._last_log()
        if log is None:
            self.missing.append(Missing("log/llama-server.log", "no log file: start specdash with --log FILE"))
            return None
        if program_and_name(log) is None:
            return excerpt(Path(log), self.span)
        from specdash.collect.log_source import past

        chunk = next(past(log))
        if chunk.failure is not None:
            raise OSError(chunk.failure.detail)
        undated = "the log does not say when its last line was written: times are counted back from now"
        found = excerpt_of(log, chunk.data, time.time(), self.span)
        return replace(found, remarks=(*found.remarks, undated))

    def _last_log(self) -> str | None:
        """The log of a backend that ran at this address and is gone."""
        from specdash.export.incident.bundle import run_records

        records = (record for record in run_records(self.env) if record["kind"] == "backend" and record["log"])
        return next((str(record["log"]) for record in records if self._concerns(record["url"])), None)

    def _proxy_events(self) -> tuple[ProxyEvent, ...]:
        from specdash.core.proxy_events import from_json

        place = self.target.proxy_log
        if place is None:
            self.missing.append(Missing("proxy-events.jsonl", "no proxy is known in front of the server"))
            return ()
        if program_and_name(place) is not None:
            self.missing.append(Missing("proxy-events.jsonl", f"the proxy writes to {place}, which is not read here"))
            return ()
        with Path(place).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _PROXY_BYTES))
            lines = file.read(_PROXY_BYTES).splitlines()
        events = [event for line in lines if line.lstrip().startswith(b"{") and (event := from_json(line)) is not None]
        inside = tuple(event for event in events if self.span.since <= event.at <= self.span.until)
        if not inside:
            self.missing.append(Missing("proxy-events.jsonl", "the proxy wrote no event in this time"))
        return inside[-_MOST_PROXY_EVENTS:]

    # The record

    def _with_history(self, parts: Parts, rules: Sequence[Rule], columns: Columns | None) -> Parts:
        """The parts with what the record and the screen's charts know."""

        picture, span = parts.picture, self.span
        with ExitStack() as stack:
            found = self.attempt("history.db", lambda: self._recorded(stack))
            alerts: tuple[Alert, ...] = ()
            events: tuple[TimelineEvent, ...] = ()
            series: Series = {}
            last: Mapping[Source, Any] = {}
            if found is not None:
                alerts = self.attempt("recorded alerts", found.alerts) or ()
                events = self.attempt("recorded events", found.events) or ()
                series = self.attempt("recorded series", found.series) or {}
                last = self.attempt("last readings", partial(found.last, alerts)) or {}
        if columns is not None and picture is not None and self.is_now:
            series = {**live_series(columns, picture, span), **series}
        known = all_alerts(picture, alerts, span)
        now = picture if self.is_now else None
        history = paths.history_file(self.env)
        return replace(
            parts,
            alerts=known,
            cause=self.attempt("likely cause", lambda: cause(now, known, rules)) or "",
            events=all_events(picture, events, known, span),
            series=series,
            extract=partial(extract, history, found.name, span, parts.redactor) if found is not None else None,
            command=self._command(picture, last),
            versions={**parts.versions, **_engine(parts, last)},
        )

    def _recorded(self, stack: ExitStack) -> RecordedSpan | None:
        """What is recorded, for as long as `stack` is open."""
        store = stack.enter_context(Store(paths.history_file(self.env)))
        name = name_in(store, self.target)
        if name is None:
            self.missing.append(Missing("history.db", f"nothing is recorded about {self.target.url}"))
            return None
        if self.span.seconds > MOST_READINGS_S:
            hours = f"{MOST_READINGS_S / 3600:g} h"
            why = f"history.db has series of the whole time, and every reading of its last {hours} only"
            self.missing.append(Missing("earlier readings", why))
        return RecordedSpan(store, name, self.span)

    # What is not there

    def _command(self, picture: Picture | None, last: Mapping[Source, Any]) -> tuple[str, ...] | None:
        process = picture.backend.process if picture is not None else None
        process = process if process is not None else last.get(Source.PROCESS)
        if process is None or not process.command:
            self.missing.append(Missing("the backend's command line", "its process is not known on this machine"))
            return None
        return process.command

    def _note_absences(self, picture: Picture | None) -> None:
        if picture is None:
            return
        if picture.gpu.unavailable:
            self.missing.append(Missing("GPU state", picture.gpu.unavailable))
        elif not picture.gpu.gpus:
            self.missing.append(Missing("GPU state", "NVML shows no GPU"))
        silent: dict[str, list[str]] = {}
        for source in picture.backend.sources:
            if source.source in _ENDPOINTS and source.status is not ReadingStatus.KNOWN and source.reason:
                silent.setdefault(source.reason, []).append(f"/{source.source}")
        self.missing += [Missing(f"{', '.join(ones)} of the server", why) for why, ones in silent.items()]


def _hidden(applies: Iterable[ApplyRecord]) -> set[str]:
    """Values of changes that are not shown, so that a sentence about the change does not show them either."""
    from specdash.core.masking import MASK
    from specdash.export.incident.redaction import Redactor

    changes = [
        (change.key, value)
        for record in applies
        for change in record.changes
        for value in (change.before, change.after)
    ]
    plain = Redactor()
    return {value for key, value in changes if value and value != MASK and plain.setting(key, value) == MASK}


def _engine(parts: Parts, last: Mapping[Source, Any]) -> dict[str, Any]:
    """The engine and its build, from a server that is gone too."""
    props = last.get(Source.PROPS)
    started = (
        str(run_record["engine"])
        for run_record in parts.run_records
        if run_record["kind"] == "backend" and run_record["url"] == parts.url
    )
    build = props.build if props is not None else None
    engine = parts.versions.get("engine") or next(started, None) or (f"llama.cpp {build}" if build else None)
    return {"engine": engine, "llama_cpp_build": build or (engine and _build_in(engine))}


def _build_in(engine: str) -> str | None:
    """The build of llama.cpp that the engine's words name, None where they name none."""
    return next((word.strip("()") for word in engine.split() if _BUILD.fullmatch(word.strip("()"))), None)


def _secret_variables(pid: int) -> set[str]:
    """Secrets that a process of this user was started with."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return set()
    pairs = (entry.decode("utf-8", "replace").partition("=") for entry in data.split(b"\0"))
    return {value for key, _, value in pairs if value and is_secret(key)}


ALL_SCHEMA = "specdash.incidents/1"
LOOK_S = 2.0
"""How long the first answers of all endpoints may take; what has not answered by then is reported as it is."""
NO_SERVER = "http://127.0.0.1:8080"
"""What is looked at where no server is known at all."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--last", metavar="LENGTH", help="how far to go back: 90s, 15m, 2h (default: 15m)")
    parser.add_argument("--since", metavar="MOMENT", help="from this moment: 02:00, -3h, 2026-03-01T02:00")
    parser.add_argument("--until", metavar="MOMENT", help="up to this moment (default: now)")
    parser.add_argument("--output", metavar="FILE", help="file to write, - for standard output (default: a new file)")
    parser.add_argument("--all", action="store_true", help="a bundle for each server found here or in config.toml")
    parser.add_argument("--json", action="store_true", help="print the manifest as JSON (docs/incident.md)")
    add_settings(parser, (*TARGET_SETTINGS, *SERVICE_SETTINGS, *RULE_SETTINGS))


def run(args: argparse.Namespace) -> int:
    """Write one bundle, or one for each server, whether or not anything of the server can be seen."""
    from specdash.export.incident.bundle import assemble, store, store_as

    now = time.time()
    span = _span(args, now)
    output = args.output
    if output == "-" and (args.json or os.isatty(1)):
        raise UsageError("--output - writes a .tar.gz to standard output; redirect it to a file, and leave out --json")
    settings = resolved_settings(args)
    if args.all:
        return _write_all(args, settings, span)
    if output is not None and output != "-":
        _refuse(Path(output))
    parts = gather(target(settings, span.since), settings, span, up_to_now=args.until is None)
    bundle = assemble(parts)
    if output == "-":
        sys.stdout.buffer.write(bundle.data)
        sys.stdout.buffer.flush()
        return ExitCode.OK
    path = store_as(bundle, Path(output)) if output is not None else store(bundle, paths.incidents_dir())
    document = {"path": str(path), **bundle.manifest}
    print_answer(document, _told(path, bundle.manifest, len(bundle.data)), as_json=args.json)
    return ExitCode.OK


def _write_all(args: argparse.Namespace, settings: Mapping[str, Resolved], span: IncidentSpan) -> int:
    """A bundle for each, named by it; one that cannot be written costs the others nothing. 10 where one was not."""
    from specdash.cli.options import look_at_all
    from specdash.core.errors import NotWrittenError
    from specdash.export.incident.bundle import assemble, store

    directory = Path(args.output) if args.output is not None else paths.incidents_dir()
    if args.output is not None and not directory.is_dir():
        raise NotWrittenError(f"--output {args.output}: with --all it must be an existing directory")
    targets = _every_target(settings, span.since)
    rules, window_s = _rules_or_shipped(settings), WINDOWS_S["15m"]
    pictures = look_at_all(targets, rules, window_s)
    written: list[dict[str, Any]] = []
    worst = ExitCode.OK
    for target, picture in zip(targets, pictures, strict=True):
        own = settings_for(target, settings)
        parts = gather(
            target,
            own,
            span,
            picture=picture,
            up_to_now=args.until is None,
            is_elsewhere=local_port(target.url) is None,
        )
        bundle = assemble(parts, target.label)
        shown = {"name": target.label, "exit_code": int(ExitCode.OK), "problem": None, "bundle": None}
        written.append(shown)
        try:
            path = store(bundle, directory)
        except NotWrittenError as error:
            worst = error.exit_code
            shown |= {"exit_code": int(worst), "problem": str(error)}
            print(f"specdash: {target.label}: {error}", file=sys.stderr)
            continue
        shown["bundle"] = {"path": str(path), **bundle.manifest}
        if not args.json:
            print("\n".join([f"== {target.label}", *_told(path, bundle.manifest, len(bundle.data)), ""]))
    if args.json:
        print_json({"schema": ALL_SCHEMA, "servers": written})
    return worst


def _every_target(settings: Mapping[str, Resolved], since: float) -> list[Target]:
    """All servers, each with what its last run left; also one that crashed since then and is not there any more."""
    from specdash.collect.discover import ended_run, place

    check_all_alone(settings)
    targets, last = find_targets(settings), ended_run()
    crashed = last is not None and last.crashed and (last.ended or 0.0) >= since
    if last is not None and crashed and all(place(target.url) != place(last.url) for target in targets):
        targets.append(
            Target(last.url, origin=f"the server that ran last, which ended with {last.end or 'its runner'}")
        )
    if not targets:
        raise no_server()
    return [with_last_run(target, os.environ) for target in targets]


def _rules_or_shipped(settings: Mapping[str, Resolved]) -> tuple[Rule, ...]:
    """The rules with the user's thresholds; those shipped where these cannot be read, which each bundle notes."""
    from specdash.insight.rules.catalogue import shipped

    try:
        return alert_rules(settings)
    except SpecdashError:
        return shipped()


def _refuse(path: Path) -> None:
    """Report now what would be reported at the end."""
    from specdash.core.errors import NotWrittenError

    if path.exists():
        what = "is a directory; name a file in it" if path.is_dir() else "exists already; name another file"
        raise NotWrittenError(f"{path} {what}")
    if not path.absolute().parent.is_dir():
        raise NotWrittenError(f"{path}: there is no directory {path.parent}; make it, or name another one")


def _span(args: argparse.Namespace, now: float) -> IncidentSpan:
    from specdash.core.moments import parse_length, parse_moment
    from specdash.export.incident.bundle import DEFAULT_SPAN_S, LONGEST_SPAN_S, IncidentSpan

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


def target(settings: Mapping[str, Resolved], since: float = inf) -> Target:
    """The server that is meant. Where none is named, one that crashed since `since` (Unix time); where none runs, the
    one that ran last, or was recorded last."""
    from specdash.collect.discover import ended_run

    found, last = find_targets(settings), ended_run()
    is_named = settings["url"].value is not None
    crashed = last is not None and last.crashed and (last.ended or 0.0) >= since
    if found and (is_named or not crashed):
        return with_last_run(found[0], os.environ)
    recorded = recorded_target(os.environ)
    if last is not None and (recorded is None or last.ended is not None):
        origin = f"the server that ran last, which ended with {last.end or 'its runner'}"
        return with_last_run(Target(last.url, origin=origin), os.environ)
    return recorded or Target(NO_SERVER, origin="no server was found on this machine")


def gather(
    target: Target,
    settings: Mapping[str, Resolved],
    span: IncidentSpan,
    *,
    picture: Picture | None = None,
    columns: Columns | None = None,
    up_to_now: bool = False,
    is_elsewhere: bool = False,
    env: Mapping[str, str] = os.environ,
) -> Parts:
    """Everything that a bundle about `span` is made of. Takes seconds, and never fails: it lists what is missing.

    Without a `picture`, the server is looked at now. `columns` (see `TargetState.columns`) give the charts where there
    is no record. `up_to_now` lets the span end with the look at the server, so that what that finds is in it. Of one
    that `is_elsewhere` nothing is taken from this machine but what is named as its own. To be called in a thread of its
    own where a screen waits.
    """

    gathering = Gathering(target, settings, span, env, is_elsewhere=is_elsewhere)
    if picture is None:
        window_s = WINDOWS_S["15m"]
        picture = gathering.attempt(
            "snapshot.json", lambda: look(target, gathering.rules(), window_s, limit_s=LOOK_S, env=env)
        )
    if up_to_now and picture is not None:
        gathering.span = replace(span, until=max(span.until, picture.wall))
    return gathering.parts(picture, columns)


def write(parts: Parts, env: Mapping[str, str] = os.environ) -> Path:
    """Write the bundle to the usual place; where it is. Raises `NotWrittenError`."""
    from specdash.export.incident.bundle import write_bundle

    return write_bundle(parts, paths.incidents_dir(env))


def recent(seconds: float | None = None) -> IncidentSpan:
    """The span of the last `seconds` (default: those of `specdash incident`)."""
    from specdash.export.incident.bundle import DEFAULT_SPAN_S, IncidentSpan

    now = time.time()
    return IncidentSpan(now - (seconds if seconds is not None else DEFAULT_SPAN_S), now)


def _told(path: Path, manifest: Mapping[str, Any], length: int) -> list[str]:
    lines = [f"{path}  {size(length)}", f"state    {manifest['state']}"]
    if manifest["cause"]:
        lines.append(f"cause    {manifest['cause']}")
    lines.append(f"inside   {', '.join(member['name'] for member in manifest['members'])}")
    lines += [f"missing  {entry['part']}: {entry['why']}" for entry in manifest["missing"]]
    lines.append("next     tar -xzf it, and paste summary.md into the ticket; `specdash replay` opens history.db")
    return lines

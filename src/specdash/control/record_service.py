"""The recorder as a service, with either manager: optional, and apart from the services that may be changed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from specdash.control import installation
from specdash.control.supervised_installation import RECORDER
from specdash.control.supervisor_services import ServiceEntry, read_services
from specdash.control.systemctl import Systemctl
from specdash.control.units import RECORD_UNIT, record_unit
from specdash.core import paths
from specdash.core.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.control.installation import UnitChange
    from specdash.control.units import UnitFacts

STOP_TIMEOUT_S: Final = 10.0


def plan(env: Mapping[str, str], facts: UnitFacts) -> UnitChange:
    """The unit file. Raises `ServiceError` for a file there that specdash did not write."""
    return installation.change_of(env, RECORD_UNIT, record_unit(facts))


def install(env: Mapping[str, str], change: UnitChange, *, start: bool) -> None:
    """Write the unit and enable it. Raises `ServiceError` or `NotWrittenError`."""
    installation.install(env, (change,), ())
    systemctl = Systemctl(env)
    for action in ("enable", *(("restart",) if start else ())):
        answer = systemctl.run(action, RECORD_UNIT)
        if not answer.done:
            raise ServiceError(f"systemctl --user {action} {RECORD_UNIT}: {answer.reason}")


def entries(env: Mapping[str, str], others: tuple[ServiceEntry, ...] | None = None) -> tuple[ServiceEntry, ...]:
    """services.json as it will be: `others`, or what is there, with the recorder added or renewed."""
    kept = read_services(paths.services_file(env)) if others is None else others
    argv = (sys.executable, "-m", "specdash", "record")
    own = ServiceEntry(RECORDER, None, paths.config_file(env), argv=argv, stop_timeout=STOP_TIMEOUT_S)
    return (*(one for one in kept if one.name != RECORDER), own)

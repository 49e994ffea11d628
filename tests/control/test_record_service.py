"""The recorder as a service: there when asked for, and never taken for a service that may be changed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from specdash.control.services import installation
from specdash.control.services.deployment import find_deployment
from specdash.control.services.supervisor_services import ServiceEntry, describe, read_services, write_services
from specdash.control.services.units import (
    RECORD_UNIT,
    VERSION,
    UnitFacts,
    directives,
    record_unit,
    split_words,
    version_of,
)
from specdash.core import paths
from specdash.core.changes import Role
from specdash.core.config import SERVICE_SETTINGS, Resolved
from specdash.core.errors import InputError, ServiceError

if TYPE_CHECKING:
    from pathlib import Path

FACTS = UnitFacts("/opt/a b/python", "/b.env", "/p.env", ("127.0.0.1:4000",), {"XDG_STATE_HOME": "/srv/s t"})


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "c"), "XDG_STATE_HOME": str(tmp_path / "s")}


def test_the_unit_runs_the_recorder_and_nothing_of_the_services() -> None:
    text = record_unit(FACTS)
    found = {key: said for section, key, said in directives(text) if section == "Service"}
    assert version_of(text) == VERSION
    assert split_words(found["ExecStart"]) == ["/opt/a b/python", "-m", "specdash", "record"]
    assert "env-file" not in text
    assert found["Restart"] == "on-failure"


def test_a_unit_of_somebody_else_is_left_alone(env: dict[str, str]) -> None:
    path = installation.unit_directory(env) / RECORD_UNIT
    path.parent.mkdir(parents=True)
    path.write_text("[Service]\nExecStart=/bin/true\n")
    with pytest.raises(ServiceError, match="was not written by specdash"):
        installation.recorder_change(env, FACTS)


def test_our_unit_is_among_those_that_uninstall_removes(env: dict[str, str]) -> None:
    path = installation.unit_directory(env) / RECORD_UNIT
    path.parent.mkdir(parents=True)
    path.write_text(record_unit(FACTS))
    assert installation.installed(env) == ((path,), ())


def test_the_supervisor_gets_one_entry_however_often_it_is_installed(env: dict[str, str]) -> None:
    backend = ServiceEntry("specdash-backend", Role.BACKEND, paths.backend_env_file(env))
    write_services(paths.services_file(env), (backend,))
    for _ in range(2):
        installation.install_supervised(env, installation.recorder_entries(env))
    found = read_services(paths.services_file(env))
    assert [service_entry.name for service_entry in found] == ["specdash-backend", "specdash-record"]
    service = describe(found[1], env)
    assert service.argv == (sys.executable, "-m", "specdash", "record")
    assert service.reload_signal is None
    assert service.stop_timeout == installation.STOP_TIMEOUT_S


def test_the_recorder_is_never_taken_for_a_service_to_be_changed(env: dict[str, str]) -> None:
    installation.install_supervised(env, installation.recorder_entries(env))
    settings = {name: Resolved(None, "default") for name in SERVICE_SETTINGS}
    settings["manager"] = Resolved("supervisor", "test")
    deployment = find_deployment(settings, env)
    assert deployment.backend is None
    assert deployment.proxy is None


def test_uninstall_takes_the_recorder_away_too(env: dict[str, str]) -> None:
    installation.install_supervised(env, installation.recorder_entries(env))
    assert installation.uninstall_supervised(env) == ("specdash-record",)
    assert not paths.services_file(env).exists()


def test_an_entry_of_that_role_without_a_command_is_refused(env: dict[str, str]) -> None:
    with pytest.raises(InputError, match="must have an argv"):
        write_services(paths.services_file(env), (ServiceEntry("x", None, paths.config_file(env)),))

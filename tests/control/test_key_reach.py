"""Whether a change of an env file reaches the server of a unit that is not ours: judged before, and seen afterwards."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.control.plan import plan_apply, preview
from specdash.control.running import service_promise
from specdash.control.services.service_command import ServiceCommand, arrived, findings, running_values
from specdash.control.services.services import Deployment, ManagedService, ServiceState, ServiceStatus
from specdash.core.changes import Change, Role, changed_values, parse_assignments
from specdash.core.errors import Severity

if TYPE_CHECKING:
    from pathlib import Path

BEFORE = {"LLAMA_DRAFT_MAX": "4", "LLAMA_ARG_CTX_SIZE": "2048", "LLAMA_PORT": "8080"}
SERVER = "/opt/llama/llama-server"


class Manager:
    kind = "systemd"

    def status(self, name: str) -> ServiceStatus:
        return ServiceStatus(name, ServiceState.STOPPED)

    def bring_up(self) -> None: ...

    def start(self, name: str) -> None: ...

    stop = restart = reload = start

    def log_tail(self, name: str, lines: int = 20) -> tuple[str, ...]:
        return ()


@pytest.fixture
def env_file(tmp_path: Path) -> Path:
    file = tmp_path / "llama.env"
    file.write_text("".join(f"{key}={value}\n" for key, value in BEFORE.items()), encoding="utf-8")
    return file


@pytest.fixture
def unit(env_file: Path) -> ManagedService:
    command = ServiceCommand((SERVER, "-m", "/m.gguf"), "/units/llama.service", (env_file,))
    return ManagedService(Role.BACKEND, "llama.service", Manager(), env_file, False, "config.toml", command=command)


def with_words(unit: ManagedService, *words: str, **more: object) -> ManagedService:
    assert unit.command is not None
    return replace(unit, command=replace(unit.command, words=words or unit.command.words, **more))  # type: ignore[arg-type]


def judged(unit: ManagedService, word: str) -> tuple[Severity | None, str]:
    """How the change is judged, None where it is sure to have an effect; and the advice."""
    after = changed_values(BEFORE, parse_assignments([word], Role.BACKEND)[Role.BACKEND])
    key = word.lstrip("-").partition("=")[0]
    found = findings(unit, BEFORE, after, [Change(Role.BACKEND, key, BEFORE.get(key), after.get(key))])
    return (found[0].severity, found[0].fix) if found else (None, "")


READ: dict[str, tuple[tuple[str, ...], str]] = {
    "in braces": ((SERVER, "--spec-draft-n-max", "${LLAMA_DRAFT_MAX}"), "LLAMA_DRAFT_MAX=6"),
    "in braces within a word": ((SERVER, "--spec-draft-n-max=${LLAMA_DRAFT_MAX}"), "LLAMA_DRAFT_MAX=6"),
    "as a word": ((SERVER, "--spec-draft-n-max", "$LLAMA_DRAFT_MAX"), "LLAMA_DRAFT_MAX=6"),
    "split into words": ((SERVER, "$LLAMA_EXTRA_ARGS"), "LLAMA_EXTRA_ARGS=--parallel 2"),
    "removed": ((SERVER, "--spec-draft-n-max", "${LLAMA_DRAFT_MAX}"), "-LLAMA_DRAFT_MAX"),
    "behind a flag of an older build": ((SERVER, "--draft-max", "${LLAMA_DRAFT_MAX}"), "LLAMA_DRAFT_MAX=6"),
    "by llama-server itself": ((SERVER, "-m", "/m.gguf"), "LLAMA_ARG_CTX_SIZE=4096"),
    "its key, by llama-server itself": ((SERVER, "-m", "/m.gguf"), "LLAMA_API_KEY=abc"),
    "by the CUDA libraries": ((SERVER, "-m", "/m.gguf"), "CUDA_VISIBLE_DEVICES=1"),
    "behind another program": (("/usr/bin/nice", "-n", "5", SERVER, "${LLAMA_DRAFT_MAX}"), "LLAMA_DRAFT_MAX=6"),
}


@pytest.mark.parametrize("name", READ)
def test_what_the_unit_reads_is_let_through(name: str, unit: ManagedService) -> None:
    words, change = READ[name]
    assert judged(with_words(unit, *words), change) == (None, "")


UNREAD: dict[str, tuple[tuple[str, ...], str, str]] = {
    "not mentioned": ((SERVER, "-m", "/m.gguf"), "LLAMA_DRAFT_MAX=6", "--spec-draft-n-max ${LLAMA_DRAFT_MAX}"),
    "not expanded within a word": (
        (SERVER, "--spec-draft-n-max=$LLAMA_DRAFT_MAX"),
        "LLAMA_DRAFT_MAX=6",
        "${LLAMA_DRAFT_MAX}",
    ),
    "escaped": ((SERVER, "--alias", "$${LLAMA_DRAFT_MAX}"), "LLAMA_DRAFT_MAX=6", "ExecStart="),
    "outdone by a later argument": (
        (SERVER, "--spec-draft-n-max", "${LLAMA_DRAFT_MAX}", "--spec-draft-n-max", "3"),
        "LLAMA_DRAFT_MAX=6",
        "take the later --spec-draft-n-max out",
    ),
    "outdone by the command line": ((SERVER, "-c", "2048"), "LLAMA_ARG_CTX_SIZE=4096", "take it out of ExecStart="),
    "specdash's own": ((SERVER, "-m", "/m.gguf"), "LLAMA_STOP_TIMEOUT=9", "specdash backend run"),
    "a fixed number": ((SERVER, "--spec-draft-n-max", "4"), "LLAMA_DRAFT_MAX=6", "${LLAMA_DRAFT_MAX}"),
}


@pytest.mark.parametrize("name", UNREAD)
def test_what_the_unit_cannot_read_is_refused_with_the_line_to_write(name: str, unit: ManagedService) -> None:
    words, change, line = UNREAD[name]
    severity, fix = judged(with_words(unit, *words), change)
    assert severity is Severity.ERROR
    assert line in fix


def test_a_file_that_the_unit_does_not_load_is_refused(unit: ManagedService, env_file: Path) -> None:
    words = (SERVER, "--spec-draft-n-max", "${LLAMA_DRAFT_MAX}")
    severity, fix = judged(with_words(unit, *words, env_files=()), "LLAMA_DRAFT_MAX=6")
    assert (severity, fix) == (Severity.ERROR, f"add `EnvironmentFile=-{env_file}` to /units/llama.service")


def test_a_later_file_that_sets_the_same_key_is_named(unit: ManagedService, env_file: Path, tmp_path: Path) -> None:
    later = tmp_path / "later.env"
    later.write_text("LLAMA_DRAFT_MAX=2\n", encoding="utf-8")
    words = (SERVER, "--spec-draft-n-max", "${LLAMA_DRAFT_MAX}")
    severity, fix = judged(with_words(unit, *words, env_files=(env_file, later)), "LLAMA_DRAFT_MAX=6")
    assert severity is Severity.ERROR
    assert str(later) in fix
    assert judged(with_words(unit, *words, env_files=(later, env_file)), "LLAMA_DRAFT_MAX=6")[0] is None


def test_what_the_unit_unsets_is_refused_and_what_it_sets_itself_gives_way(unit: ManagedService) -> None:
    words = (SERVER, "--spec-draft-n-max", "${LLAMA_DRAFT_MAX}")
    assert "UnsetEnvironment=" in judged(with_words(unit, *words, unset=("LLAMA_DRAFT_MAX",)), "LLAMA_DRAFT_MAX=6")[1]
    kept = with_words(unit, *words, environment={"LLAMA_DRAFT_MAX": "3"})
    assert judged(kept, "LLAMA_DRAFT_MAX=6")[0] is None


SCRIPTS: dict[str, tuple[str, str, Severity]] = {
    "named": ('exec llama-server --spec-draft-n-max "${LLAMA_DRAFT_MAX:-16}"', "LLAMA_DRAFT_MAX=6", Severity.INFO),
    "not named": ("exec llama-server --spec-draft-n-max 4 -m /m.gguf", "LLAMA_DRAFT_MAX=6", Severity.ERROR),
    "only in a comment": ("# LLAMA_DRAFT_MAX\nexec llama-server -m /m", "LLAMA_DRAFT_MAX=6", Severity.ERROR),
    "only within another name": ('exec llama-server "$MY_LLAMA_DRAFT_MAX"', "LLAMA_DRAFT_MAX=6", Severity.ERROR),
    "by llama-server itself": ("exec llama-server -m /m.gguf", "LLAMA_ARG_CTX_SIZE=4096", Severity.INFO),
    "indirectly": ('for k in A B; do v="${!k}"; done; llama-server', "LLAMA_DRAFT_MAX=6", Severity.INFO),
    "by another script": ("exec /opt/llama/really.sh", "LLAMA_DRAFT_MAX=6", Severity.INFO),
    "by another program": ("exec python3 /opt/run", "LLAMA_DRAFT_MAX=6", Severity.INFO),
}


@pytest.mark.parametrize("way", ["file", "shell file", "shell text"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_read_and_what_it_cannot_use_is_refused(
    name: str, way: str, unit: ManagedService, tmp_path: Path
) -> None:
    text, change, severity = SCRIPTS[name]
    script = tmp_path / "start.bash"
    script.write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
    words = {"file": (str(script),), "shell file": ("/bin/sh", str(script)), "shell text": ("/bin/sh", "-c", text)}
    assert judged(with_words(unit, *words[way]), change)[0] is severity


def test_a_program_that_nobody_can_look_into_is_seen_after_the_restart(unit: ManagedService) -> None:
    assert judged(with_words(unit, sys.executable, "/opt/run.py"), "LLAMA_DRAFT_MAX=6")[0] is Severity.INFO


def test_the_plan_shows_what_this_unit_would_run_and_no_other_engine(unit: ManagedService, env_file: Path) -> None:
    running = with_words(unit, SERVER, "-m", "/m", "--port", "9090", "--spec-draft-n-max", "${LLAMA_DRAFT_MAX}")
    plan = plan_apply(Deployment(running), parse_assignments(["LLAMA_DRAFT_MAX=6"]), env={"HOME": str(env_file.parent)})
    shown = preview(plan, {})[0].arguments
    assert "- --spec-draft-n-max 4" in shown
    assert "+ --spec-draft-n-max 6" in shown
    assert not any("xllamacpp" in line for line in shown)
    promised = service_promise(running, BEFORE, {})
    assert (promised.url, promised.types) == ("http://127.0.0.1:9090", ())


def test_a_change_without_effect_is_refused_and_the_plan_says_that_nothing_changes(
    unit: ManagedService, env_file: Path
) -> None:
    plan = plan_apply(Deployment(unit), parse_assignments(["LLAMA_DRAFT_MAX=6"]), env={"HOME": str(env_file.parent)})
    assert plan.refused
    assert "unit-key" in {finding.rule for finding in plan.findings if finding.severity is Severity.ERROR}


def test_a_units_settings_are_those_of_its_command_line(unit: ManagedService) -> None:
    running = with_words(unit, SERVER, "-m", "/m.gguf", "--port=${LLAMA_PORT}", "--spec-type", "ngram-mod")
    values = running_values(running, BEFORE)
    assert values["LLAMA_BIN"] == SERVER
    assert values["LLAMA_ARG_CTX_SIZE"] == "2048"
    assert "LLAMA_DRAFT_MAX" not in values
    promised = service_promise(running, BEFORE, {})
    assert (promised.url, promised.types) == ("http://127.0.0.1:8080", ("ngram-mod",))


def test_a_secret_on_the_command_line_is_not_shown(unit: ManagedService, env_file: Path) -> None:
    running = with_words(unit, SERVER, "--api-key", "${LLAMA_API_KEY}")
    words = ["LLAMA_API_KEY=hush-hush-hush"]
    plan = plan_apply(Deployment(running), parse_assignments(words), env={"HOME": str(env_file.parent)})
    assert "hush" not in str(preview(plan, {}))


ARRIVED = [
    ("LLAMA_DRAFT_MAX", "4", "6", ("--spec-draft-n-max", "6"), {}, True),
    ("LLAMA_DRAFT_MAX", "4", "6", ("--spec-draft-n-max", "4"), {"LLAMA_DRAFT_MAX": "6"}, False),
    ("LLAMA_DRAFT_MAX", "4", "6", (), {"LLAMA_DRAFT_MAX": "6"}, False),
    ("LLAMA_DRAFT_MAX", "4", "6", ("--draft-max", "6"), {}, True),
    ("LLAMA_DRAFT_MAX", "4", None, (), {}, True),
    ("LLAMA_DRAFT_MAX", "4", None, ("--spec-draft-n-max", "4"), {}, False),
    ("LLAMA_ARG_CTX_SIZE", None, "4096", (), {"LLAMA_ARG_CTX_SIZE": "4096"}, True),
    ("LLAMA_ARG_CTX_SIZE", None, "4096", ("-c", "2048"), {"LLAMA_ARG_CTX_SIZE": "4096"}, False),
    ("LLAMA_ARG_CTX_SIZE", None, "4096", (), {}, False),
    ("LLAMA_DRAFT_P_MIN", "0.5", "0.80", ("--spec-draft-p-min", "0.8"), {}, True),
    ("LLAMA_EXTRA_ARGS", None, "--parallel 2 -lv 4", ("--parallel", "2", "-lv", "4"), {}, True),
    ("LLAMA_EXTRA_ARGS", None, "--parallel 2", (), {"LLAMA_EXTRA_ARGS": "--parallel 2"}, False),
    ("CUDA_VISIBLE_DEVICES", "0", "1", (), {"CUDA_VISIBLE_DEVICES": "1"}, True),
    ("CUDA_VISIBLE_DEVICES", "0", "1", (), {"CUDA_VISIBLE_DEVICES": "0"}, False),
    ("LLAMA_MODEL", "/a", "/b", ("-m", "/b"), {}, True),
    ("LLAMA_MODEL", "/a", "/b", ("-m", "/a"), {"LLAMA_MODEL": "/b"}, False),
]


@pytest.mark.parametrize(("key", "before", "after", "argv", "variables", "seen"), ARRIVED)
def test_what_a_process_runs_with_tells_whether_a_change_has_arrived(
    key: str, before: str | None, after: str | None, argv: tuple[str, ...], variables: dict[str, str], seen: bool
) -> None:
    assert arrived(Change(Role.BACKEND, key, before, after), (SERVER, *argv), variables) is seen


@given(before=st.integers(1, 64), after=st.integers(1, 64))
def test_a_value_that_is_put_onto_the_command_line_arrives_and_the_old_one_does_not(before: int, after: int) -> None:
    change = Change(Role.BACKEND, "LLAMA_DRAFT_MAX", str(before), str(after))
    assert arrived(change, (SERVER, "--spec-draft-n-max", str(after)), {})
    if before != after:
        assert not arrived(change, (SERVER, "--spec-draft-n-max", str(before)), {})

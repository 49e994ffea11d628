"""A plan is made for the engine at hand, from one reading of the env file."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from specdash.backend.launch import LaunchPlan, make_plan, plan_from_file
from specdash.core.errors import InputError
from support.engines import write_env
from support.help_engine import TODAY, help_engine

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def values(models: dict[str, Path], tmp_path: Path) -> dict[str, str]:
    return {
        "LLAMA_BIN": str(tmp_path / "llama-server"),
        "LLAMA_MODEL": str(models["target"]),
        "LLAMA_DRAFT_MODEL": str(models["draft"]),
        "LLAMA_SPEC_TYPE": "draft-simple",
        "LLAMA_DRAFT_MAX": "8",
    }


def planned(values: dict[str, str], build: str, tmp_path: Path, **more: str) -> LaunchPlan:
    help_engine(tmp_path / "llama-server", build)
    return make_plan({**values, **more})


def test_the_command_has_the_names_of_the_build(values: dict[str, str], tmp_path: Path) -> None:
    old = planned(values, "2026-02", tmp_path)
    assert " ".join(old.argv).endswith(f"-md {values['LLAMA_DRAFT_MODEL']} --draft-max 8")
    assert old.rendered == old.argv[1:]
    assert "--spec-draft-n-max" in planned(values, TODAY, tmp_path).argv


def test_what_is_left_out_is_a_warning(values: dict[str, str], tmp_path: Path) -> None:
    plan = planned(values, "2026-02", tmp_path, LLAMA_ARG_LOAD_MODE="mmap")
    assert "--load-mode" not in plan.argv
    assert plan.warnings == (
        (
            "LLAMA_ARG_LOAD_MODE=mmap is left out: llama-server 1234 (abcdef) has no --load-mode; "
            "remove it, or use a newer llama.cpp"
        ),
    )


def test_what_is_refused_is_an_error_that_counts_the_others(values: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no spec type ngram-mod; it knows .* \(and 1 more: --nonsense\)$"):
        planned(values, "2025-03", tmp_path, LLAMA_SPEC_TYPE="ngram-mod", LLAMA_EXTRA_ARGS="--nonsense")


def test_the_knobs_say_which_flag_they_move_in_this_build(values: dict[str, str], tmp_path: Path) -> None:
    chain = {"LLAMA_SPEC_TYPE": "ngram-cache,draft-simple"}
    found = {(key, name): flag for key, name, flag in planned(values, "2026-05", tmp_path, **chain).knobs}
    assert found["LLAMA_DRAFT_MAX", "draft-simple"] == "--spec-draft-n-max"
    assert found["LLAMA_DRAFT_MAX", "ngram-cache"] is None
    old = {(key, name): flag for key, name, flag in planned(values, "2025-03", tmp_path).knobs}
    assert old["LLAMA_DRAFT_MAX", "draft-simple"] == "--draft-max"


def test_the_defaults_in_force_are_those_that_the_build_states(values: dict[str, str], tmp_path: Path) -> None:
    assert dict(planned(values, "2026-05", tmp_path).speculation)["spec-draft-p-min"] == "0.75"
    assert dict(planned(values, TODAY, tmp_path).speculation)["spec-draft-p-min"] == "0"


def test_the_digest_is_of_the_bytes_that_were_read(values: dict[str, str], tmp_path: Path) -> None:
    help_engine(tmp_path / "llama-server")
    file = write_env(tmp_path / "backend.env", values)
    data = b"# a comment\n" + file.read_bytes()
    file.write_bytes(data)
    assert plan_from_file(str(file)).env_digest == hashlib.sha256(data).hexdigest()
    assert make_plan(values).env_digest is None


def test_file_and_digest_come_from_one_reading(
    values: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    help_engine(tmp_path / "llama-server")
    file = write_env(tmp_path / "backend.env", values)
    first, second = file.read_bytes(), file.read_bytes().replace(b"'8'", b"'9'")
    readings = iter([first, second])
    read_bytes = type(file).read_bytes
    monkeypatch.setattr(type(file), "read_bytes", lambda self: next(readings) if self == file else read_bytes(self))
    plan = plan_from_file(str(file))
    assert plan.env_digest == hashlib.sha256(first).hexdigest()
    assert plan.settings.value("spec-draft-n-max") == 8


def test_a_plan_without_an_env_file_has_no_digest(
    values: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    help_engine(tmp_path / "llama-server")
    for key, value in values.items():
        monkeypatch.setenv(key, value)
    assert plan_from_file(None).env_digest is None

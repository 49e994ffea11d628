"""A plan is made for the engine at hand, from one reading of the env file."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from specdash.backend.launch import make_plan, plan_from_file
from specdash.core.errors import InputError
from support.engines import write_env
from support.help_engine import help_engine

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


def test_the_command_is_what_is_rendered_and_has_the_defaults_in_force(values: dict[str, str], tmp_path: Path) -> None:
    help_engine(tmp_path / "llama-server")
    plan = make_plan(values)
    assert plan.rendered == plan.argv[1:]
    assert "--spec-draft-n-max" in plan.argv
    assert dict(plan.speculation)["spec-draft-p-min"] == "0"
    with pytest.raises(InputError, match=r"has no --nonsense.* \(and 1 more\)$"):
        make_plan({**values, "LLAMA_EXTRA_ARGS": "--nonsense --rubbish"})


def test_the_digest_is_of_the_bytes_that_were_read(values: dict[str, str], tmp_path: Path) -> None:
    help_engine(tmp_path / "llama-server")
    file = write_env(tmp_path / "backend.env", values)
    data = b"# a comment\n" + file.read_bytes()
    file.write_bytes(data)
    assert plan_from_file(str(file)).env_digest == hashlib.sha256(data).hexdigest()
    assert make_plan(values).env_digest is None

"""What an engine can do is asked of itself, bounded, and asked again when its files change."""

from __future__ import annotations

import functools
import itertools
import os
from pathlib import Path

import pytest

from specdash.backend import engines
from specdash.backend.binary import Engine, fit, from_help
from specdash.backend.engines import PACKAGE, find_engine
from specdash.backend.plan import Circumstances, plan
from specdash.backend.settings import settings_from_env
from specdash.core.errors import EngineMissingError
from specdash.core.parameter_catalogue import ENGINE, PASSED_ON, REMOVED_FLAGS
from specdash.core.speculation import SPEC_TYPES
from support.engines import llama_server_binary
from support.help_engine import OLD, TODAY, help_engine, help_text
from support.waiting import until

TYPES = {spec_kind.name for spec_kind in SPEC_TYPES}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return help_engine(tmp_path / "llama-server")


def probe(path: Path, **more: str) -> Engine:
    return find_engine(settings_from_env({"LLAMA_MODEL": "m.gguf", "LLAMA_BIN": str(path), **more}))


def script(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def test_the_help_names_flags_removed_flags_their_values_and_spec_types(program: Path) -> None:
    found = probe(program)
    assert (found.kind, found.version) == ("llama-server", "1234 (abcdef)")
    assert {"--spec-draft-n-max", "-md", "--spec-default", "--spec-synth-len", "-lcs", "--no-ui"} <= found.flags
    assert found.removed == set(REMOVED_FLAGS)
    assert not found.flags & found.removed
    assert set(found.spec_types) == TYPES


def test_a_second_look_starts_no_process(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = probe(program)
    monkeypatch.setattr("subprocess.Popen", None)
    assert probe(program) == first


@pytest.mark.parametrize("library", [False, True])
def test_a_new_build_in_the_same_place_is_asked_again(program: Path, library: bool) -> None:
    probe(program)
    before = program.stat()
    help_engine(program, OLD, version="5678 (fedcba)")
    if library:
        os.utime(program, ns=(before.st_atime_ns, before.st_mtime_ns))
        (program.parent / "libllama-common.so").write_text("new")
    found = probe(program)
    assert found.version == "5678 (fedcba)"
    assert "--spec-draft-sampling" not in found.flags


def test_the_loaders_variables_of_the_env_file_reach_the_engine_and_no_setting_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needy = help_engine(tmp_path / "needy")
    check = '#!/bin/sh\n[ "$LD_LIBRARY_PATH" = /opt/x ] && [ -z "$LLAMA_ARG_DRAFT_MAX" ] || exit 127'
    needy.write_text(needy.read_text().replace("#!/bin/sh", check))
    monkeypatch.setenv("LLAMA_ARG_DRAFT_MAX", "3")
    with pytest.raises(EngineMissingError, match="is no working llama-server"):
        probe(needy)
    assert "--ctx-size" in probe(needy, LD_LIBRARY_PATH="/opt/x").flags


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ("kill $!; echo 'version: 1 (x)'", "lists no arguments (version: 1 (x)); what it can do is unknown"),
        ("disown 2>/dev/null; exit 0", "no answer within 1 s"),
    ],
)
def test_an_engine_that_does_not_answer_is_an_error_in_bounded_time_and_leaves_no_process(
    runs: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines.ask, "__defaults__", (1.0,))
    note = tmp_path / "pid"
    version = '[ "$1" = --version ] && echo "version: 1 (x)" && exit'
    broken = script(tmp_path / "broken", f"#!/bin/bash\n{version}\nsleep 60 >&2 & echo $! > {note}\n{runs}\n")
    with pytest.raises(EngineMissingError) as caught:
        probe(broken)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    left = Path("/proc") / note.read_text().strip() / "stat"
    until(lambda: not (left.exists() and left.read_text().split()[2] != "Z"), 5)


@pytest.mark.parametrize("build", [OLD, TODAY])
def test_every_name_in_a_help_is_found_whatever_its_layout(build: str) -> None:
    starts = [line for line in help_text(build).splitlines() if line.startswith("-") and not line.startswith("-----")]
    texts = from_help(build, help_text(build)).texts
    assert [line for line in starts if line.partition(",")[0].split()[0] not in texts] == []
    assert all(texts.values())


def test_the_catalogue_has_only_flags_that_todays_build_lists() -> None:
    names = from_help(TODAY, help_text(TODAY)).texts.keys()
    for parameter in (*ENGINE, *PASSED_ON.values()):
        assert {*parameter.flags, *parameter.off_flags} <= names, parameter.name


@pytest.mark.engine
def test_the_package_has_the_attributes_and_spec_types_of_the_catalogue() -> None:
    import xllamacpp

    found = find_engine(settings_from_env({"LLAMA_MODEL": "m.gguf", "LLAMA_ENGINE": PACKAGE}))
    for path in found.flags:
        functools.reduce(getattr, path.split("."), xllamacpp.CommonParams())
    members = {member.name.lower().replace("_", "-") for member in xllamacpp.common_speculative_type}
    assert {f"common-speculative-type-{name}" for name in found.spec_types} <= members


@pytest.mark.llama_server
def test_the_real_binary_lists_what_the_recorded_help_says() -> None:
    found = probe(Path(llama_server_binary()))
    assert found.texts.keys() == from_help(TODAY, help_text(TODAY)).texts.keys()
    assert set(found.spec_types) == TYPES


NEWER = help_text(TODAY).replace("ngram-mod,ngram-cache", "ngram-mod,ngram-cache,draft-tree,suffix") + (
    "--moe-cache-mib N                       size of the cache of experts\n"
    "                                        (env: LLAMA_ARG_MOE_CACHE_MIB)\n"
)
"""The help of a build that has more than the catalogue."""


@pytest.fixture
def newer(tmp_path: Path) -> dict[str, str]:
    """A backend env with such a build."""
    (tmp_path / "help").write_text(NEWER, encoding="utf-8")
    words = f"case \"$1\" in --version) echo 'version: 9 (new)';; --help) cat {tmp_path / 'help'};; esac"
    path = script(tmp_path / "llama-server", f"#!/bin/sh\n{words}\n")
    return {"LLAMA_MODEL": "m.gguf", "LLAMA_BIN": str(path)}


def test_a_variable_that_the_engines_own_help_lists_is_known(newer: dict[str, str]) -> None:
    listed = {"LLAMA_ARG_MOE_CACHE_MIB": "512", "LLAMA_ARG_NO_MOE_CACHE_MIB": "1"}
    assert settings_from_env({**newer, **listed}).native == listed
    found = plan({**newer, **listed, "LLAMA_ARG_MOE_CASH": "1"}, Circumstances(None)).findings
    assert [finding.key for finding in found if finding.rule == "unknown-key"] == ["LLAMA_ARG_MOE_CASH"]


@pytest.mark.parametrize(
    ("chain", "passed"),
    [("draft-tree", "draft-tree"), ("suffix,ngram-mod,draft-tree", "ngram-mod,suffix,draft-tree")],
)
def test_a_spec_type_that_the_engines_own_help_lists_is_passed_on(
    newer: dict[str, str], chain: str, passed: str
) -> None:
    env = {**newer, "LLAMA_SPEC_TYPE": chain, "LLAMA_DRAFT_MODEL": "d.gguf", "LLAMA_DRAFT_MAX": "4"}
    words, lacks = fit(settings_from_env(env), probe(Path(newer["LLAMA_BIN"])))
    assert [lack for lack in lacks if lack.severity == "error"] == []
    given = dict(itertools.pairwise(words))
    assert (given["--spec-type"], given["--spec-draft-model"]) == (passed, "d.gguf")
    assert given.get("--spec-draft-n-max") == "4"

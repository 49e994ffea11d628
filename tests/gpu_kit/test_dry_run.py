"""The whole kit without a GPU: packed here, run as on the rented machine: no network, a bare environment."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from gpu.checks import all_checks, energy
from support.engines import llama_server_binary

ROOT = Path(__file__).parents[2]
PACK_S, RUN_S = 600, 900


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pack.sh makes; CI has packed it already, to build llama-server of it."""
    if packed := os.environ.get("SPECDASH_GPU_KIT"):
        return Path(packed)
    directory = tmp_path_factory.mktemp("kit")
    subprocess.run(
        [ROOT / "tools/gpu/pack.sh", "--to", directory, "--python", "{}.{}".format(*sys.version_info[:2])],
        env={**os.environ, "PYTHON": sys.executable, "HOME": str(Path("~root").expanduser())},
        check=True,
        timeout=PACK_S,
    )
    return directory


def imported(path: Path) -> set[str]:
    """Names of the packages that a file imports, anywhere in it."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    members = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.partition(".")[0] for name in plain | members}


def test_it_imports_nothing_that_its_wheels_do_not_hold() -> None:
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "requirements" / "run.txt").read_text(), re.MULTILINE)
    held = {
        package
        for package, homes in importlib.metadata.packages_distributions().items()
        if {re.sub(r"[-_.]+", "-", home).lower() for home in homes} & set(pinned)
    }
    ours = {"gpu", "specdash", "support", "benchmarks"}
    packing = ROOT / "tools" / "gpu" / "models.py"
    files = [*(ROOT / "tools" / "gpu").rglob("*.py"), ROOT / "benchmarks" / "speedup_ab.py"]
    files.remove(packing)
    assert len(files) > 15
    foreign = {str(path): imported(path) - held - ours - sys.stdlib_module_names for path in files}
    assert not {path: names for path, names in foreign.items() if names}


def without_network(*words: str | Path, cwd: Path, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run it where there is nothing but the loopback interface."""
    unshare = shutil.which("unshare")
    if os.geteuid() != 0 or unshare is None or not shutil.which("ip"):
        pytest.skip("a network namespace needs root, unshare and ip")
    shell = 'ip link set lo up && exec "$@"'
    return subprocess.run(
        [unshare, "-n", "sh", "-c", shell, "sh", *map(str, words)],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "HOME": str(cwd), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def working_tree(target: Path) -> Path:
    """The tracked files, as the rented machine gets them."""
    git = shutil.which("git") or "git"
    names = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, names.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


@pytest.mark.slow
@pytest.mark.llama_server
@pytest.mark.timeout(PACK_S + RUN_S)
def test_every_check_runs_without_network_and_gpu(kit: Path, tmp_path: Path) -> None:
    tree = working_tree(tmp_path / "tree")
    out = tmp_path / "out"
    done = without_network(
        "tools/gpu/run.sh", "--cpu", "--scale", "0.02", "--kit", kit, "--work", tmp_path / "work", "--out", out,
        "--llama-server", llama_server_binary(), "--minutes", str(RUN_S / 60 - 1),
        cwd=tree, timeout=RUN_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    whole: dict[str, Any] = json.loads((out / "results.json").read_text())
    # Without a GPU nothing counts its energy.
    assert {check["name"]: check["result"] for check in whole["checks"]} == {
        check.name: "skipped" if check is energy.CHECK else "passed" for check in all_checks()
    }
    assert all(check["ended"] for check in whole["checks"])
    # What comes back: at most 8 files of 16 MiB.
    files = [path for path in out.rglob("*") if path.is_file()]
    assert len(files) <= 8
    assert all(path.stat().st_size < 16 << 20 for path in files)


@pytest.mark.slow
@pytest.mark.llama_server
@pytest.mark.timeout(PACK_S)
def test_the_kit_holds_the_sources_of_the_cuda_backend_and_of_no_other(kit: Path) -> None:
    with tarfile.open(kit / "llama.cpp.tar.xz") as sources:
        names = sources.getnames()
    assert {"llama.cpp/ggml/src/ggml-cuda/ggml-cuda.cu", "llama.cpp/tools/server/server.cpp"} <= set(names)
    assert not [name for name in names if "/src/ggml-vulkan" in name or "/tests/" in name]


def test_an_option_that_is_not_there_gets_the_usage() -> None:
    for script in ("pack.sh", "run.sh"):
        done = subprocess.run([ROOT / "tools/gpu" / script, "--nonsense"], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "usage: tools/gpu/" in done.stderr

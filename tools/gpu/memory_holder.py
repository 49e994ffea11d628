"""Takes nearly all the memory of a GPU, as another program would: `python -m gpu.memory_holder --leave-mib 100`.

Says in one line what it holds, then waits until its input ends. `holding` does that from another program.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
SMALLEST = 2 * MIB
"""The driver's own granularity."""
OUT_OF_MEMORY = 2
START_S = 60.0
LIBRARY = "libcuda.so.1"


class CudaError(Exception):
    """The driver refused."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a holder has; `free` is what CUDA says is left, in bytes."""

    pid: int
    bytes: int
    free: int


class Cuda:
    """The few functions of the driver that take memory. `library` is libcuda, or what behaves like it."""

    def __init__(self, library: Any, device: int) -> None:
        self._library = library
        self._call("cuInit", 0)
        found = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(found), device)
        # The primary context, as every program of the CUDA runtime has; it ends with the process.
        self._context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), found)
        self._call("cuCtxSetCurrent", self._context)

    def free(self) -> int:
        """Bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def take(self, size: int) -> bool:
        """Whether so many bytes could be had."""
        at = ctypes.c_uint64()
        code = self._library.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size))
        if code not in (0, OUT_OF_MEMORY):
            raise CudaError(f"cuMemAlloc_v2 of {size} bytes failed with {code}")
        return not code

    def take_all_but(self, leave: int) -> int:
        """Take memory until at most `leave` bytes and a granule are free; the bytes taken."""
        held, size = 0, max(self.free() - leave, 0)
        while size >= SMALLEST:
            if self.take(size):
                held += size
                size = self.free() - leave
            else:
                # What is free is in pieces.
                size //= 2
            size = min(size, max(self.free() - leave, 0)) // SMALLEST * SMALLEST
        return held

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise CudaError(f"{name} failed with {code}")


@contextlib.contextmanager
def holding(leave_mib: int, device: int = 0) -> Iterator[Held]:
    """Another process holds the GPU's memory while this lasts. Raises CudaError where it cannot."""
    words = [sys.executable, "-m", "gpu.memory_holder", "--leave-mib", str(leave_mib), "--device", str(device)]
    tools = str(Path(__file__).parents[1])
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (tools, os.environ.get("PYTHONPATH"))))},
    )  # fmt: skip
    output: IO[str] = process.stdout  # type: ignore[assignment] # it is a pipe
    late = threading.Timer(START_S, process.kill)
    late.start()
    try:
        said = output.readline()
        late.cancel()
        if not said:
            _, error = process.communicate(timeout=10)
            raise CudaError(error.strip()[-500:] or f"it ended with {process.returncode}")
        yield Held(**json.loads(said))
    finally:
        late.cancel()
        process.kill()
        process.communicate()


def main(arguments: list[str] | None = None) -> int:
    """Hold until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m gpu.memory_holder", description=__doc__)
    parser.add_argument("--leave-mib", type=int, required=True, help="memory that stays free")
    parser.add_argument("--device", type=int, default=0, help="CUDA's number of the GPU")
    given = parser.parse_args(arguments)
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        print(f"no CUDA driver: {error}", file=sys.stderr)
        return 1
    try:
        cuda = Cuda(library, given.device)
        held = cuda.take_all_but(given.leave_mib * MIB)
        print(json.dumps({"pid": os.getpid(), "bytes": held, "free": cuda.free()}), flush=True)
    except CudaError as error:
        print(f"the CUDA driver refused: {error}", file=sys.stderr)
        return 1
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())

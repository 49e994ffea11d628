"""Prints the CMake options that tell llama.cpp's CUDA backend where cuBLAS and the driver's library are, one a line.

Where the toolkit has cuBLAS nothing is needed. PyTorch brings one as Python packages: its headers lie in
nvidia/cu13/include (CUDA 12: nvidia/cublas/include), its libraries without the names that a linker looks for.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path


def main() -> int:
    """Print them; 1 where there is no cuBLAS at all."""
    compiler = shutil.which("nvcc")
    toolkit = Path(compiler).resolve().parent.parent if compiler else Path("/usr/local/cuda")
    options = []
    if not list(toolkit.glob("targets/*/lib/stubs/libcuda.so")) and not list(toolkit.glob("lib64/stubs/libcuda.so")):
        # Its virtual memory needs the driver's library to link with.
        options.append("-DGGML_CUDA_NO_VMM=ON")
    if not list(toolkit.glob("include/cublas_v2.h")) and not list(toolkit.glob("targets/*/include/cublas_v2.h")):
        places = [Path(path) for path in {sysconfig.get_path("purelib"), *sys.path} if path]
        headers = [file for place in places for file in place.glob("nvidia/*/include/cublas_v2.h")]
        if not headers:
            sys.stderr.write(f"no cublas_v2.h in {toolkit} or in the Python package nvidia-cublas: install one\n")
            return 1
        include = headers[0].parent
        for name in ("cublas", "cublasLt"):
            library = next(iter(sorted((include.parent / "lib").glob(f"lib{name}.so*"))))
            options.append(f"-DCUDA_{name}_LIBRARY={library}")
        options += [f"-DCMAKE_{language}_FLAGS=-I{include}" for language in ("CUDA", "CXX")]
    sys.stdout.write("".join(f"{option}\n" for option in options))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A program `nvidia-smi` that prints what a test wants, in the form in which the real one does (driver 580)."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

PROGRAM = """#!{python}
import json, pathlib, sys
said = json.loads(pathlib.Path({file!r}).read_text())
for word in sys.argv[1:]:
    if word == "--help-query-gpu":
        print("List of valid properties to query for the switch \\"--query-gpu\\":\\n")
        for name in said["gpu"]:
            print(f'"{{name}}"\\nWhat it is.\\n')
    elif word.startswith("--query-gpu="):
        names = word.partition("=")[2].split(",")
        for name in names:
            if name not in said["gpu"]:
                print(f'Field "{{name}}" is not a valid field to query.\\n')
                sys.exit(2)
        print(", ".join(said["gpu"][name] for name in names))
    elif word.startswith("--query-compute-apps="):
        for row in said["apps"]:
            print(row)
"""
GPU = {
    "driver_version": "575.1",
    "name": "NVIDIA H200",
    "uuid": "GPU-1",
    "compute_cap": "9.0",
    "utilization.gpu": "75",
    "utilization.memory": "20",
    "memory.total": "81920",
    "memory.reserved": "1024",
    "memory.used": "10240",
    "memory.free": "70656",
    "power.draw": "250.50",
    "enforced.power.limit": "700.00",
    "temperature.gpu": "61",
    "clocks.sm": "1500",
    "clocks.mem": "1500",
    "clocks_event_reasons.active": "0x0000000000000004",
}
"""What it says of the GPU of `FaultyNvml`."""


def install(folder: Path, gpu: Mapping[str, str] = GPU, apps: Sequence[str] = ("10, 1024", "11, [N/A]")) -> Path:
    """Put the program into the folder, which is to be on PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "says.json"
    file.write_text(json.dumps({"gpu": dict(gpu), "apps": list(apps)}))
    program = folder / "nvidia-smi"
    program.write_text(PROGRAM.format(python=sys.executable, file=str(file)))
    program.chmod(0o755)
    return program

"""The devices of the installed xllamacpp, and CUDA's order of the GPUs: `python -m specdash.backend.embedded_facts`.

A process of its own: the import costs memory that is never given back, and a broken library must not take us with it.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any
from uuid import UUID


def devices(found: list[dict[str, Any]]) -> list[tuple[str, str, int, int]]:
    """The rows of `xllamacpp.get_device_info()` that are no CPU."""
    return [
        (entry["name"], entry["description"], entry["memory_total"], entry["memory_free"])
        for entry in found
        if getattr(entry["type"], "name", "") != "GGML_BACKEND_DEVICE_TYPE_CPU"
    ]


def cuda_order() -> list[str]:
    """The UUIDs of the GPUs in CUDA's order, asked of the driver; no memory of theirs is taken."""
    driver = ctypes.CDLL("libcuda.so.1")
    count, device, raw = ctypes.c_int(), ctypes.c_int(), (ctypes.c_ubyte * 16)()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    # The first knows the parts of a GPU that is shared out (MIG); drivers before 11.4 do not have it.
    uuid_of = getattr(driver, "cuDeviceGetUuid_v2", None) or driver.cuDeviceGetUuid
    found = []
    for number in range(count.value):
        if driver.cuDeviceGet(ctypes.byref(device), number) == 0 and uuid_of(raw, device) == 0:
            found.append(f"GPU-{UUID(bytes=bytes(raw))}")
        else:
            found.append("unknown")
    return found


def main() -> int:
    """Print with `--devices` the devices beside the CPU: name, description, bytes in all and free; with `--cuda` the
    UUIDs of the GPUs. 1 with one line when the package, or CUDA's driver, cannot be loaded."""
    try:
        if "--cuda" in sys.argv:
            print("\n".join(cuda_order()))
        else:
            import xllamacpp

            print(json.dumps(devices(xllamacpp.get_device_info())))
    except Exception as error:  # noqa: BLE001 - anything that a foreign library raises while it loads
        print(f"{type(error).__name__}: {error}".splitlines()[0])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What the installed xllamacpp can do, and CUDA's order of the GPUs: `python -m specdash.backend.embedded_facts`.

A process of its own: the import costs memory that nobody gets back, and a broken library must not take us with it.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any
from uuid import UUID

_DEPTH = 4


def attributes(owner: Any, prefix: str = "", depth: int = _DEPTH) -> list[str]:
    """Dotted paths of everything that can be set on `owner`, an object of the package."""
    found: list[str] = []
    for name in dir(owner):
        if name.startswith("_"):
            continue
        try:
            value = getattr(owner, name)
        except Exception:  # noqa: S112, BLE001 - a property that cannot be read is none that could be set
            continue
        if callable(value):
            continue
        found.append(prefix + name)
        if depth > 1 and type(value).__module__.startswith("xllamacpp") and not hasattr(value, "value"):
            found += attributes(value, f"{prefix}{name}.", depth - 1)
    return found


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
    """Print the facts, or with `--devices` the devices beside the CPU: name, description, bytes in all and free; with
    `--cuda` the UUIDs of the GPUs.

    1 with one line when the package, or CUDA's driver, cannot be loaded.
    """
    if "--cuda" in sys.argv:
        try:
            print("\n".join(cuda_order()))
        except (OSError, AttributeError) as error:
            print(f"{error}".splitlines()[0])
            return 1
        return 0
    try:
        import xllamacpp
    except Exception as error:  # noqa: BLE001 - whatever a foreign library raises while it loads
        print(f"{type(error).__name__}: {error}".splitlines()[0])
        return 1
    if "--devices" in sys.argv:
        print(json.dumps(devices(xllamacpp.get_device_info())))
        return 0
    enum = getattr(xllamacpp, "common_speculative_type", None)
    members = sorted(getattr(enum, "__members__", {}))
    print(json.dumps({"attributes": attributes(xllamacpp.CommonParams()), "spec_types": members}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""CUDA's order of the GPUs: `python -m specdash.backend.cuda_order` prints their UUIDs.

A process of its own: a broken library must not take us with it.
"""

from __future__ import annotations

import ctypes
from uuid import UUID


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


if __name__ == "__main__":
    print("\n".join(cuda_order()))

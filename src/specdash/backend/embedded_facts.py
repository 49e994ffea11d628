"""What the installed xllamacpp can do, printed as one JSON object: `python -m specdash.backend.embedded_facts`.

A process of its own: the import costs memory that nobody gets back, and a broken library must not take us with it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

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


def main() -> int:
    """Print the facts, or with `--devices` the devices beside the CPU: name, description, bytes in all and free.

    1 with one line when the package cannot be imported.
    """
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

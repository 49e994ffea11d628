"""`specdash config`: every setting with its value and where that comes from, the file's path, and its JSON Schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.cli.options import print_json, resolved_settings
from specdash.core import paths
from specdash.core.config import BY_NAME
from specdash.core.errors import ExitCode
from specdash.system.text import UNKNOWN, clean

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", choices=["show", "path", "schema"], help="the values, the path of the file, or its schema"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    if args.action == "path":
        print(paths.config_file())
        return ExitCode.OK
    if args.action == "schema":
        from specdash.core.config_model import config_schema

        print_json(config_schema())
        return ExitCode.OK
    resolved = resolved_settings(None)
    if args.json:
        print_json({name: {"value": setting.value, "origin": setting.origin} for name, setting in resolved.items()})
        return ExitCode.OK
    for name, setting in resolved.items():
        value = UNKNOWN if setting.value is None else setting.value
        if name == "target":
            value = ", ".join(table["name"] for table in setting.value) or UNKNOWN
        print(f"{name:<14} {clean(str(value)):<28} {setting.origin:<36} {BY_NAME[name].help}")
    return ExitCode.OK

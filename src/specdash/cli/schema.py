"""`specdash schema`: the JSON Schema of a document that a command prints, or of a file that people write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.errors import ExitCode, UsageError
from specdash.system.text import table

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="the schema to print (default: list them)")


def run(args: argparse.Namespace) -> int:
    """Print it, draft 2020-12."""
    from specdash.export.schemas import SCHEMAS, schema_text

    if args.name is None:
        print("\n".join(table([("NAME", "SCHEMA OF"), *((name, schema.title) for name, schema in SCHEMAS.items())])))
    elif args.name in SCHEMAS:
        print(schema_text(args.name), end="")
    else:
        raise UsageError(f"no schema {args.name!r}; one of: {', '.join(SCHEMAS)}")
    return ExitCode.OK

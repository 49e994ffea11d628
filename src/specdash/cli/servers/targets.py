"""`specdash targets`: the servers found on this machine and those of config.toml, one row each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from specdash.core.errors import ExitCode
from specdash.core.structs import json_of
from specdash.system.text import UNKNOWN, clean, table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from specdash.collect.targets import TargetLook

SCHEMA: Final = 1


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON (docs/servers.md)")


def run(args: argparse.Namespace) -> int:
    """List them; exit 0 when one of them answers, 4 when none does or none is found."""
    from specdash.cli.options import every_target, machines, no_server, print_answer, resolved_settings
    from specdash.collect.targets import TargetLook, look_at
    from specdash.core.target import on_words

    settings = resolved_settings(None)
    looks = look_at(every_target(settings))
    looks += [TargetLook(target, on_words(target.url), answers=False) for target in machines(settings)]
    if not (looks or args.json):
        raise no_server()
    print_answer(to_json(looks), to_text(looks), as_json=args.json)
    return ExitCode.OK if any(look.answers for look in looks) else ExitCode.UNREACHABLE


def to_json(looks: Sequence[TargetLook]) -> dict[str, Any]:
    """The servers as JSON, best first; unknown values are null."""
    targets: list[dict[str, Any]] = [
        {
            **json_of(look, "answers state engine model needs_key key_known"),
            "name": look.target.name or None,
            "url": look.target.url,
            "origin": look.target.origin,
            "pid": look.target.pid,
            "log": look.target.log,
        }
        for look in looks
    ]
    return {"schema": SCHEMA, "targets": targets}


def to_text(looks: Sequence[TargetLook]) -> list[str]:
    """A table: the first row is the server that commands take."""
    rows: list[Sequence[str]] = [("ADDRESS", "STATE", "MODEL", "ENGINE", "KEY", "FOUND BY")]
    for look in looks:
        key = {True: "known" if look.key_known else "needed", False: "none", None: UNKNOWN}[look.needs_key]
        cells = (look.target.url, look.state_words, look.model, look.engine, key, look.target.origin)
        rows.append([clean(cell or UNKNOWN, 60) for cell in cells])
    return table(rows)

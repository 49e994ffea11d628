"""`specdash keys`: the actions of the dashboard, their keys, and the ids by which config.toml gives them others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdash.core.errors import ExitCode
from specdash.system.text import table

if TYPE_CHECKING:
    import argparse

    from specdash.tui.action_table import Action

SCHEMA = 1


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON (docs/keys.md)")


def run(args: argparse.Namespace) -> int:
    """List them; exit 3 when [keys] in config.toml cannot be meant."""
    from specdash.cli.options import print_answer, resolved_settings
    from specdash.tui.action_table import ACTIONS, SHOWN, read_keys

    actions = read_keys(resolved_settings(None)["keys"]).actions
    keys = [_as_json(action, shipped) for action, shipped in zip(actions, ACTIONS, strict=True)]
    rows = [("ID", "KEYS", "SCREEN", "WHAT IT DOES")]
    for action in actions:
        shown = " ".join(SHOWN.get(key, key) for key in action.keys)
        rows.append((action.id, shown, " ".join(action.places) or "all", action.description))
    print_answer({"schema": SCHEMA, "keys": keys}, table(rows), as_json=args.json)
    return ExitCode.OK


def _as_json(action: Action, shipped: Action) -> dict[str, Any]:
    return {
        "id": action.id,
        "keys": list(action.keys),
        "default_keys": list(shipped.keys),
        "screens": list(action.places),
        "group": action.group,
        "what": action.title,
        "armed_only": action.armed_only,
    }

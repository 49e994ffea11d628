"""`specdash slots [list|save|restore|erase]`: what the slots hold, kept in files and put back."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from specdash.cli.options import add_settings, one_target, print_answer, resolved_settings, say
from specdash.core.errors import ExitCode
from specdash.core.structs import json_of
from specdash.system.text import UNKNOWN, plain, table

if TYPE_CHECKING:
    import argparse

    from specdash.core.readings import Slots

_ACTIONS = {
    "list": "list what each slot holds (the default)",
    "save": "save a slot to a file in the server's --slot-save-path",
    "restore": "load a saved file into a slot, replacing its contents",
    "erase": "clear a slot",
}


def configure(parser: argparse.ArgumentParser) -> None:
    import argparse

    _common(parser)
    parser.set_defaults(file=None, unchecked=False, yes=False, dry_run=False)
    actions = parser.add_subparsers(dest="action", metavar="{" + ",".join(_ACTIONS) + "}")
    for name, words in _ACTIONS.items():
        # What was given before the action must not be set back by its own default.
        left = argparse.SUPPRESS
        action = actions.add_parser(name, help=words, description=words, allow_abbrev=False, argument_default=left)
        _common(action)
        if name == "list":
            continue
        action.add_argument("slot", type=int, metavar="SLOT", help="the slot's number, starting at 0")
        if name != "erase":
            action.add_argument("file", metavar="FILE", help="the file's name, without a directory")
        if name == "restore":
            words = "also where slot files carry no context checkpoints and the memory is recurrent"
            action.add_argument("--unchecked", action="store_true", help=words)
        action.add_argument("--yes", "-y", action="store_true", help="do not ask")
        words = "say what would be done; exit code 7 if it would be refused"
        action.add_argument("--dry-run", action="store_true", help=words)


def _common(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, ("url", "api_key_env", "api_key_file", "model"))
    parser.add_argument("--json", action="store_true", help="print JSON (docs/prefix-cache.md)")


def run(args: argparse.Namespace) -> int:
    """List the slots, or change one; see `configure` and docs/prefix-cache.md."""
    from specdash.cli.changes.apply_run import confirm
    from specdash.control import slots

    target = one_target(resolved_settings(args))
    if args.action in (None, "list"):
        _, seen = slots.look(target)
        print_answer(*_listed(target.url, seen), as_json=args.json)
        return ExitCode.OK
    plan = slots.plan(target, slots.SlotAction(args.action), args.slot, args.file, unchecked=args.unchecked)
    for warning in plan.warnings:
        say(warning)
    if args.dry_run:
        print(plan.question)
    elif not confirm(plan.question, args.yes, f"slots {args.action}"):
        print("nothing was changed", file=sys.stderr)
    else:
        done = slots.carry_out(plan)
        print_answer(json_of(done), done.sentence, as_json=args.json)
    return ExitCode.OK


def _listed(url: str, seen: Slots | None) -> tuple[dict[str, Any], list[str]]:
    """The slots as JSON and as text; None of a server that sleeps."""
    rows = [("SLOT", "STATE", "HOLDS", "OF", "SPECULATIVE")]
    found = []
    for slot in seen.slots if seen is not None else ():
        found.append(
            {
                "id": slot.id,
                "busy": slot.is_processing,
                "tokens": slot.n_prompt_tokens,
                "context": slot.n_ctx,
                "speculative": slot.speculative,
            }
        )
        state, speculative = "busy" if slot.is_processing else "idle", {True: "yes", False: "no", None: UNKNOWN}
        rows.append(
            (str(slot.id), state, plain(slot.n_prompt_tokens), plain(slot.n_ctx), speculative[slot.speculative])
        )
    asleep = ["asleep, and not woken: its slots hold nothing"]
    text = [f"server  {url}", *(table(rows, indent="  ") if seen is not None else asleep)]
    return {"schema": 1, "url": url, "asleep": seen is None, "slots": found}, text

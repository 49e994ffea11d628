"""`specdash slots [list|save|restore|erase]`: what the slots hold, kept in files and put back."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from specdash.cli.options import add_settings, one_target, print_answer, resolved_settings, say
from specdash.core.errors import ExitCode, UsageError
from specdash.core.structs import json_of
from specdash.system.text import UNKNOWN, plain, table

if TYPE_CHECKING:
    import argparse

    from specdash.control.slots import SlotList
    from specdash.core.target import Target

_ACTIONS = {
    "list": "list what each slot holds (the default)",
    "save": "save a slot to a file in the server's --slot-save-path",
    "restore": "load a saved file into a slot, replacing its contents",
    "erase": "clear a slot",
}
_SETTINGS = ("url", "api_key_env", "api_key_file", "model")


def configure(parser: argparse.ArgumentParser) -> None:
    _common(parser)
    actions = parser.add_subparsers(dest="action", metavar="{" + ",".join(_ACTIONS) + "}")
    for name, words in _ACTIONS.items():
        argument_parser = actions.add_parser(name, help=words, description=words, allow_abbrev=False)
        # What was given before the action must not be set back by its own default.
        _common(argument_parser, suppress=True)
        if name == "list":
            continue
        argument_parser.add_argument("slot", metavar="SLOT", help="the slot's number, starting at 0")
        if name != "erase":
            argument_parser.add_argument("file", metavar="FILE", help="the file's name, without a directory")
        if name == "restore":
            argument_parser.add_argument(
                "--unchecked",
                action="store_true",
                help="also where slot files carry no context checkpoints and the memory is recurrent",
            )
        argument_parser.add_argument("--yes", "-y", action="store_true", help="do not ask")
        argument_parser.add_argument(
            "--dry-run", action="store_true", help="say what would be done; exit code 7 if it would be refused"
        )


def run(args: argparse.Namespace) -> int:
    """List the slots, or change one; see `configure` and docs/prefix-cache.md."""
    from specdash.control import slots

    target = one_target(resolved_settings(args))
    if args.action in (None, "list"):
        found = slots.list_slots(target)
        print_answer(to_json(found), to_text(found), as_json=args.json)
        return ExitCode.OK
    return _change(args, target)


def _change(args: argparse.Namespace, target: Target) -> int:
    from specdash.cli.changes.apply_run import confirm
    from specdash.control import slots

    plan = slots.plan(
        target,
        slots.SlotAction(args.action),
        _number(args.slot),
        getattr(args, "file", None),
        unchecked=getattr(args, "unchecked", False),
    )
    for warning in plan.warnings:
        say(warning)
    if args.dry_run:
        print(plan.question)
        return ExitCode.OK
    if not confirm(plan.question, args.yes, f"slots {args.action}"):
        print("nothing was changed", file=sys.stderr)
        return ExitCode.OK
    done = slots.carry_out(plan)
    print_answer(json_of(done), done.sentence, as_json=args.json)
    return ExitCode.OK


def to_json(found: SlotList) -> dict[str, Any]:
    """The list as JSON; unknown values are null."""
    return {"schema": 1, **json_of(found)}


def to_text(found: SlotList) -> str:
    lines = [f"server  {found.url}"]
    if found.asleep:
        lines.append("asleep, and not woken: its slots hold nothing")
    else:
        rows = [("SLOT", "STATE", "HOLDS", "OF", "SPECULATIVE")]
        rows += [
            (
                str(slot.id),
                "busy" if slot.busy else "idle",
                plain(slot.tokens),
                plain(slot.context),
                {None: UNKNOWN, True: "yes", False: "no"}[slot.speculative],
            )
            for slot in found.slots
        ]
        lines += table(rows, indent="  ")
    return "\n".join(lines)


def _common(parser: argparse.ArgumentParser, *, suppress: bool = False) -> None:
    add_settings(parser, _SETTINGS)
    parser.add_argument("--json", action="store_true", help="print JSON (docs/prefix-cache.md)")
    if suppress:
        import argparse

        for action in parser._actions:  # noqa: SLF001 - argparse has no other way to leave unset what is not given
            if action.dest in (*_SETTINGS, "json"):
                action.default = argparse.SUPPRESS


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 6:
        raise UsageError(f"slot {text!r}: must be a number from 0")
    return int(text)

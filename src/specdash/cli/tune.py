"""`specdash tune`: the fastest way to speculate, found by measuring on the real service (docs/tuner.md)."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.cli.options import MOST_SEED, add_settings, within
from specdash.core.config import APPLY_SETTINGS, SERVICE_SETTINGS
from specdash.core.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from specdash.tune.planning import TuneOptions

_EPILOG = (
    "Exit code 0: something better was found and confirmed; 14: nothing better was found, the original is untouched; "
    "1: nothing could be measured, or the run failed; 3, 4, 7: bad input, nobody answers, refused before anything was "
    "touched; 12: the service could not be put back; 130: stopped, and put back."
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = _EPILOG
    what = parser.add_argument_group("what is tuned")
    what.add_argument("--beside", action="store_true", help="engines of its own beside the service, left alone")
    what.add_argument("--env-file", metavar="FILE", help="with --beside: the settings (default: the service's)")
    what.add_argument("--engine", choices=("auto", "llama-server", "xllamacpp"), help="with --beside")
    what.add_argument("--allow-types", metavar="TYPES", help="also other spec types: all, or chains as ngram-mod,draft")
    what.add_argument("--objective", choices=("decode", "latency-p95", "per-watt"), default="decode")
    asked = parser.add_argument_group("what is asked")
    asked.add_argument("--workload", choices=("bundled", "live"), default="bundled", help="live: the traffic's shape")
    asked.add_argument("--prompts", metavar="FILE", help="your own prompts: JSON, JSON Lines, or texts")
    asked.add_argument("--transcript", metavar="FILE", help="calls of a recorded session")
    asked.add_argument("--each", type=int, metavar="N", help="prompts of a class (default: 6)")
    asked.add_argument("--tokens", type=int, metavar="N", help="tokens of each answer (default: 256)")
    asked.add_argument("--seed", type=int, metavar="N", help="of orders and draws (default: 1)")
    limits = parser.add_argument_group("limits")
    limits.add_argument("--restarts", type=int, metavar="N", help="most starts of the engine (default: 12)")
    limits.add_argument("--minutes", type=float, metavar="M", help="most minutes")
    limits.add_argument("--least-gain", type=float, metavar="SHARE", help="worth a change from here (default: 0.02)")
    limits.add_argument("--ttft", type=float, metavar="SHARE", help="growth of the first token's time (default: 0.05)")
    limits.add_argument("--free-vram", dest="free_mib", type=int, metavar="MIB", help="kept free (default: 256)")
    limits.add_argument("--allow-warnings", action="store_true", help="also with new warnings in the log")
    limits.add_argument("--busy-ok", action="store_true", help="do not wait for others, nor discard what they disturb")
    limits.add_argument("--no-check", dest="check_texts", action="store_false", help="do not compare texts at the end")
    limits.add_argument("--while-serving", action="store_true", help="step aside for users: see docs/tuner.md")
    doing = parser.add_argument_group("doing it")
    doing.add_argument("--dry-run", action="store_true", help="show the points and what it will cost, and end")
    doing.add_argument("--apply", action="store_true", help="apply what was confirmed to be better")
    doing.add_argument("--yes", "-y", action="store_true", help="do not ask")
    doing.add_argument("--force", action="store_true", help="cut off requests that do not end; with little memory, too")
    doing.add_argument("--status", action="store_true", help="how the run stands that was begun last")
    doing.add_argument("--resume", nargs="?", const="", metavar="DIR", help="go on with a run that was cut short")
    doing.add_argument("--abort", action="store_true", help="end a run that was cut short, and put the service back")
    doing.add_argument("--json", action="store_true", help="print JSON")
    add_settings(parser, (*APPLY_SETTINGS, *SERVICE_SETTINGS))


def run(args: argparse.Namespace) -> int:
    """See `_EPILOG` for the exit codes."""
    asked = [name for name in ("status", "abort", "dry_run") if getattr(args, name)]
    if args.resume is not None:
        asked.append("resume")
    if len(asked) > 1:
        raise UsageError(f"--{asked[0].replace('_', '-')} and --{asked[1].replace('_', '-')} exclude each other")
    if args.status:
        from specdash.cli.tune_view import status

        return status(as_json=args.json)
    if args.abort:
        from specdash.cli.tune_run import abort

        return abort(args)
    from specdash.cli.tune_run import tune

    return tune(args, options_from(args), Path(args.resume) if args.resume else None, os.environ)


def options_from(args: argparse.Namespace) -> TuneOptions:
    """What the command line asks for. Raises `UsageError`."""
    from specdash.tune.planning import TuneOptions

    for option, value, least, most in (
        ("--restarts", args.restarts, 3, 1000),
        ("--minutes", args.minutes, 0.1, 10_080),
        ("--least-gain", args.least_gain, 0.0, 10.0),
        ("--each", args.each, 2, 1000),
        ("--tokens", args.tokens, 16, 8192),
        ("--seed", args.seed, 0, MOST_SEED),
        ("--ttft", args.ttft, 0.0, 100.0),
        ("--free-vram", args.free_mib, 0, 10_000_000),
    ):
        within(option, value, None, least, most)
    given = {one.name: getattr(args, one.name) for one in fields(TuneOptions) if getattr(args, one.name) is not None}
    options = replace(TuneOptions(), **given)
    if options.while_serving and options.beside:
        raise UsageError("--while-serving is for the service itself; leave --beside out")
    if args.apply and options.env_file is not None:
        raise UsageError("--apply is for the service, and --env-file is not its settings; leave one of them out")
    if not options.beside and (options.env_file is not None or options.engine is not None):
        raise UsageError("--env-file and --engine are for engines of our own: add --beside, or leave them out")
    return options

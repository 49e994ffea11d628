"""`specdash repro-empty`: do answers become empty once their prompt comes from the cache?"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from specdash.cli.options import add_settings, one_target, resolved_settings, within
from specdash.cli.own_server import add_own_server, own_server
from specdash.cli.signals import stopped_by_signals
from specdash.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    import argparse

    from specdash.bench.repro_empty import Judgement, Pair, Reply
    from specdash.bench.repro_run import Plan

_SETTINGS = ("url", "api_key_env", "api_key_file", "model")
_SIDES = ("off", "on")
_EPILOG = (
    "Exit codes: 0 reproduced, 1 not reproduced, 14 nothing shown either way (answers are empty without the cache too, "
    "calls failed, or the cache was never used), 4 no server answers, 130 Ctrl-C."
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    from specdash.bench.repro_run import MAX_TOKENS, TOOL_CHARS, TURNS

    parser.epilog = _EPILOG
    add_settings(parser, _SETTINGS)
    add_own_server(parser)
    parser.add_argument("--turns", type=int, default=TURNS, metavar="N", help=f"calls on each side ({TURNS})")
    parser.add_argument(
        "--tool-chars", type=int, default=TOOL_CHARS, metavar="N", help=f"length of a tool's result ({TOOL_CHARS})"
    )
    parser.add_argument(
        "--max-tokens", type=int, default=MAX_TOKENS, metavar="N", help=f"longest answer in tokens ({MAX_TOKENS})"
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/prefix-cache.md)")


def run(args: argparse.Namespace) -> int:
    """Make the calls, print them side by side and what they show; see `_EPILOG` for the exit code."""
    _check(args)
    if args.env_file is None:
        if args.engine is not None or args.force:
            raise UsageError("--engine and --force go with --env-file, which starts a server")
        target = one_target(resolved_settings(args))
        return _measure(args, target.url, target.api_key, target.model)
    if args.url is not None:
        raise UsageError("--url and --env-file name two servers; give one of them")
    with stopped_by_signals(), own_server(args, "repro-empty", _say) as (url, key):
        return _measure(args, url, key, None)


def _check(args: argparse.Namespace) -> None:
    for option, value, least, most in (
        ("--turns", args.turns, 2, 100),
        ("--tool-chars", args.tool_chars, 1, 10_000_000),
        ("--max-tokens", args.max_tokens, 1, 100_000),
    ):
        within(option, value, value, least, most)


def _measure(args: argparse.Namespace, url: str, key: str | None, model: str | None) -> int:
    from specdash.bench.repro_empty import judge
    from specdash.bench.repro_run import ChatServer, make_plan, run

    made: dict[int, Pair] = {}
    show = _Progress()

    def keep(pair: Pair) -> None:
        made[pair.number] = pair
        show(pair)

    interrupted = False
    with ChatServer(url, key, model) as server:
        plan = make_plan(server, args.turns, args.tool_chars, args.max_tokens)
        if plan.left_out:
            _say(plan.left_out)
        if plan.flat:
            _say("the model's chat template knows no tools: tool calls and results go as text")
        try:
            run(server, plan, args.tool_chars, args.max_tokens, keep)
        except KeyboardInterrupt:
            interrupted = True
    pairs = tuple(made[number] for number in sorted(made))
    judgement = judge(pairs)
    if args.json:
        print(json.dumps(_to_json(args, url, plan, pairs, judgement, interrupted=interrupted), indent=1))
    else:
        print(f"server  {url}")
        print("\n".join(_table(pairs)))
        print("stopped before the end" if interrupted else judgement.sentence)
    return ExitCode.INTERRUPTED if interrupted else judgement.exit_code


class _Progress:
    """Says on stderr which call was made, where that is a terminal."""

    def __call__(self, pair: Pair) -> None:
        if not sys.stderr.isatty():
            return
        side = "off" if pair.on is None else "on"
        reply = pair.off if pair.on is None else pair.on
        if reply is not None:
            what = reply.error or reply.how_empty or "answered"
            _say(f"call {pair.number}, cache {side}: {what} ({reply.wall_s:.1f} s)")


def _to_json(
    args: argparse.Namespace, url: str, plan: Plan, pairs: tuple[Pair, ...], judgement: Judgement, *, interrupted: bool
) -> dict[str, Any]:
    return {
        "schema": 1,
        "server": url,
        "outcome": "interrupted" if interrupted else str(judgement.outcome),
        "because": judgement.sentence,
        "turns": args.turns,
        "tool_chars": args.tool_chars,
        "max_tokens": args.max_tokens,
        "left_out": plan.left_out,
        "flat": plan.flat,
        "calls": [
            {
                "number": pair.number,
                "prefix_chars": pair.chars,
                "prompt_tokens": pair.tokens,
                "reproduces": pair.reproduces,
                "cache_off": _reply_json(pair.off),
                "cache_on": _reply_json(pair.on),
            }
            for pair in pairs
        ],
    }


def _reply_json(reply: Reply | None) -> dict[str, Any] | None:
    return None if reply is None else {**asdict(reply), "empty": reply.is_empty, "how_empty": reply.how_empty}


def _table(pairs: tuple[Pair, ...]) -> list[str]:
    """One line a call, both sides beside each other, within 80 columns."""
    lines = [
        f"{'':14}|{'cache off':^31}|{'cache on':^31}",
        f"{'CALL':>4} {'CHARS':>8} |" + f" {'CACHED':>6} {'TTFT':>7} {'TOK':>4} {'FINISH':<10}|" * len(_SIDES),
    ]
    lines += [f"{pair.number:>4} {pair.chars:>8} |{_cells(pair.off)}|{_cells(pair.on)}|" for pair in pairs]
    lines = [line.rstrip("|").rstrip() for line in lines]
    for pair in pairs:
        for side, reply in zip(_SIDES, (pair.off, pair.on), strict=True):
            if reply is not None and (reply.error or reply.is_empty):
                lines.append(f"call {pair.number}, cache {side}: {reply.error or 'EMPTY: ' + reply.how_empty}")
    return lines


def _cells(reply: Reply | None) -> str:
    if reply is None:
        return f" {'':>6} {'':>7} {'':>4} {'not asked':<10}"
    if reply.error is not None:
        return f" {'':>6} {'':>7} {'':>4} {'FAILED':<10}"
    finish = f"EMPTY {reply.finish or ''}" if reply.is_empty else reply.finish or "--"
    counts = f" {_count(reply.cached_tokens):>6} {_time(reply.ttft_s):>7} {_count(reply.completion_tokens):>4}"
    return f"{counts} {finish[:10]:<10}"


def _count(value: int | None) -> str:
    return "--" if value is None else str(value)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "--"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _say(words: str) -> None:
    print(f"specdash: {words}", file=sys.stderr, flush=True)

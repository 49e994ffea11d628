"""`specdash repro-empty`: do answers become empty once their prompt comes from the cache?"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from specdash.cli.options import add_settings, one_target, resolved_settings, say, within
from specdash.cli.signals import stopped_by_signals
from specdash.core.errors import ExitCode
from specdash.core.structs import json_of
from specdash.system.text import UNKNOWN, plain, seconds

if TYPE_CHECKING:
    import argparse

    from specdash.bench.repro_empty import CallPair, Judgement, ReproPlan, ReproReply

_SETTINGS = ("url", "api_key_env", "api_key_file", "model")
_SIDES = ("off", "on")
_EPILOG = (
    "Exit codes: 0 reproduced, 1 not reproduced, 14 nothing shown either way (answers are empty without the cache too, "
    "calls failed, or the cache was never used), 4 no server answers, 130 Ctrl-C."
)


def configure(parser: argparse.ArgumentParser) -> None:
    from specdash.bench.repro_empty import MAX_TOKENS, TOOL_CHARS, TURNS

    parser.epilog = _EPILOG
    add_settings(parser, _SETTINGS)
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
    within("--turns", args.turns, None, 2, 100)
    within("--tool-chars", args.tool_chars, None, 1, 10_000_000)
    within("--max-tokens", args.max_tokens, None, 1, 100_000)
    target = one_target(resolved_settings(args))
    with stopped_by_signals():
        return _measure(args, target.url, target.api_key, target.model)


def _measure(args: argparse.Namespace, url: str, key: str | None, model: str | None) -> int:
    from specdash.bench.load.samples import EngineAddress
    from specdash.bench.repro_empty import ReproRun, judge

    made: dict[int, CallPair] = {}
    interrupted = False
    asking = ReproRun(EngineAddress(url, key, model), args.turns, args.tool_chars, args.max_tokens)
    plan = asking.plan()
    if plan.left_out:
        say(plan.left_out)
    if plan.flat:
        say("the model's chat template knows no tools: tool calls and results go as text")
    try:
        for pair in asking.calls(plan):
            made[pair.number] = pair
            _show(pair)
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


def _show(pair: CallPair) -> None:
    """Say which call was made, where standard error is a terminal."""
    side, reply = ("off", pair.off) if pair.on is None else ("on", pair.on)
    if reply is not None and sys.stderr.isatty():
        what = reply.error or reply.how_empty or "answered"
        say(f"call {pair.number}, cache {side}: {what} ({reply.wall_s:.1f} s)")


def _to_json(
    args: argparse.Namespace,
    url: str,
    plan: ReproPlan,
    pairs: tuple[CallPair, ...],
    judgement: Judgement,
    *,
    interrupted: bool,
) -> dict[str, Any]:
    return {
        "schema": 1,
        "server": url,
        "outcome": "interrupted" if interrupted else str(judgement.outcome),
        "because": judgement.sentence,
        **json_of(args, "turns tool_chars max_tokens"),
        **json_of(plan, "left_out flat"),
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


def _reply_json(reply: ReproReply | None) -> dict[str, Any] | None:
    return None if reply is None else {**json_of(reply), "empty": reply.is_empty, "how_empty": reply.how_empty}


def _table(pairs: tuple[CallPair, ...]) -> list[str]:
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


def _cells(reply: ReproReply | None) -> str:
    if reply is None:
        return f" {'':>6} {'':>7} {'':>4} {'not asked':<10}"
    if reply.error is not None:
        return f" {'':>6} {'':>7} {'':>4} {'FAILED':<10}"
    finish = f"EMPTY {reply.finish or ''}" if reply.is_empty else reply.finish or UNKNOWN
    first = seconds(reply.ttft_s)
    counts = f" {plain(reply.cached_tokens):>6} {first:>7} {plain(reply.completion_tokens):>4}"
    return f"{counts} {finish[:10]:<10}"

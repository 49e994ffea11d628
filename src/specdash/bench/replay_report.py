"""A replayed session for people and for programs. Neither holds any text of the session."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from specdash.bench.figures import percent
from specdash.bench.replay import SIDES
from specdash.export.curves_svg import Curve, Curves, draw_curves

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdash.bench.replay import Answer, Replay, Row, Side

SCHEMA = "specdash.bench-replay/1"


def as_json(made: Replay) -> dict[str, Any]:
    """Everything that was measured."""
    return {
        "schema": SCHEMA,
        "at": made.started_at,
        "duration_s": round(made.duration_s, 3),
        "outcome": "interrupted" if made.interrupted else "all failed" if made.all_failed else "measured",
        "engine": dict(made.engine),
        "session": dict(made.session),
        "sides": list(made.sides),
        "max_tokens": made.max_tokens,
        "context": made.context,
        "flat": made.flat,
        "tools": made.tools,
        "left_out": list(made.left_out),
        "notes": list(made.notes),
        "token_counts_from": [str(one) for one in made.counted_by()],
        "compared": len(made.pairs),
        "ttft_ratio": _rounded(made.ttft_ratio),
        "wall_ratio": _rounded(made.wall_ratio),
        "empties": made.empties,
        "empty_with_cache_only": list(made.suspects),
        **{side: asdict(made.total(side)) for side in made.sides},
        "growth": [asdict(one) for one in made.growth()],
        "calls": [row_json(row) for row in made.rows],
    }


def row_json(row: Row) -> dict[str, Any]:
    """One call."""
    return {
        "number": row.number,
        "line": row.line,
        "prefix_chars": row.chars,
        "prefix_turns": row.messages,
        "prompt_tokens": row.tokens,
        "ttft_ratio": _rounded(row.ttft_ratio),
        **{side: answer_json(answer) for side in SIDES if (answer := row.side(side)) is not None},
    }


def answer_json(answer: Answer) -> dict[str, Any]:
    """One answer, its text left out."""
    one = answer.sample
    return {
        "ttft_s": _rounded(answer.ttft_s, 6),
        "wall_s": _rounded(answer.wall_s, 6),
        "decode_tok_s": _rounded(answer.decode_rate),
        "prefill_tok_s": _rounded(one.prefill_rate),
        "prompt_tokens": one.prompt_tokens,
        "cached_tokens": one.cached_tokens,
        "tokens": answer.tokens,
        "tokens_from": None if answer.counted_by is None else str(answer.counted_by),
        "drafted": one.drafted,
        "accepted": one.accepted,
        "finish": one.finish,
        "empty": answer.is_empty,
        "flags": list(one.flags),
        "error": one.error or None,
    }


def table(made: Replay) -> list[str]:
    """One line a call, within 80 columns, and the calls with something wrong in words."""
    head = f"{'CALL':>4} {'CHARS':>7} {'TOKENS':>6}"
    over = " " * len(head)
    if "cold" in made.sides:
        over, head = over + f" |{'cold':^20}", head + f" |{'TTFT':>7}{'WALL':>7}{'TOK/S':>6}"
    if "warm" in made.sides:
        over, head = over + f" |{'warm':^27}", head + f" |{'CACHED':>7}{'TTFT':>7}{'WALL':>7}{'TOK/S':>6}"
    both = len(made.sides) == len(SIDES)
    lines = [(over + " |").rstrip() if both else over.rstrip(), head + (f" |{'TTFT x':>7}" if both else "")]
    lines += [_row(row, made.sides, both=both).rstrip() for row in made.rows]
    for row in made.rows:
        for side in made.sides:
            answer = row.side(side)
            if answer is not None and (answer.sample.failed or answer.is_empty):
                lines.append(f"call {row.number}, {side}: {answer.sample.error or 'EMPTY: nothing came'}")
    return lines


def summary(made: Replay) -> list[str]:
    """The totals in words."""
    totals = {side: made.total(side) for side in made.sides}
    lines = [f"{'':14}" + "".join(f"{side:>12}" for side in totals) + (f"{'ratio':>10}" if len(totals) == 2 else "")]
    lines.append(_line("sum of TTFT", [seconds(one.ttft_s) for one in totals.values()], times(made.ttft_ratio)))
    lines.append(_line("sum of wall", [seconds(one.wall_s) for one in totals.values()], times(made.wall_ratio)))
    lines.append(_line("decode tok/s", [_plain(one.decode_rate) for one in totals.values()]))
    lines.append(_line("from cache", [percent(one.cached_share) for one in totals.values()]))
    lines.append(_line("failed", [_of(one.failed, one) for one in totals.values()]))
    lines.append(_line("empty", [_of(one.empty, one) for one in totals.values()]))
    growth = made.growth()
    if growth:
        lines += ["", f"{'prefix, chars':>14}{'tokens':>9}{'calls':>7}{'cold TTFT':>12}{'warm TTFT':>12}{'ratio':>10}"]
        lines += [
            f"{one.chars:>14,.0f}{_plain(one.tokens, 0):>9}{one.calls:>7}{seconds(one.cold_ttft_s):>12}"
            f"{seconds(one.warm_ttft_s):>12}{times(one.ttft_ratio):>10}"
            for one in growth
        ]
    lines += [f"note: {words}" for words in made.notes]
    return lines


def markdown(made: Replay) -> str:
    """The report as a page."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(made.started_at))
    facts = {
        "server": made.engine.get("url"), "model": made.engine.get("model"), "build": made.engine.get("build"),
        "session": made.session.get("name"), "format": made.session.get("format"),
        "calls": f"{len(made.rows)} of {made.session.get('calls', len(made.rows))}",
        "context": made.context, "longest answer": f"{made.max_tokens} tokens",
        "stopped": "before the end" if made.interrupted else None,
    }  # fmt: skip
    rows = "".join(f"| {name} | {_cell(value)} |\n" for name, value in facts.items() if value is not None)
    picture = "\n![TTFT by prefix](ttft.svg)\n" if made.rows else ""
    return (
        f"# Replay, {when}\n\n| | |\n|---|---|\n{rows}\n```text\n" + "\n".join(summary(made)) + f"\n```\n{picture}\n"
        "Cold: the cache off, and every call with a beginning of its own. Warm: the cache on, in order. Sums are of\n"
        f"all answered calls, ratios of the {len(made.pairs)} calls that both sides answered.\n\n```text\n"
        + "\n".join(table(made))
        + "\n```\n"
    )


def plot(made: Replay) -> str:
    """Times to the first token over the length of the prompt."""
    counted = all(row.tokens is not None for row in made.rows)
    curves = []
    for side in made.sides:
        points = [
            (float((row.tokens or 0) if counted else row.chars), answer.ttft_s)
            for row in made.rows
            if (answer := row.side(side)) is not None and not answer.sample.failed and answer.ttft_s is not None
        ]
        curves.append(Curve(side, tuple(points)))
    over = "prompt, tokens" if counted else "prefix, characters"
    return draw_curves(Curves("Time to the first token", "s", over, tuple(curves)))


def seconds(value: float | None) -> str:
    """In the unit that fits."""
    if value is None:
        return "--"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} s"


def times(value: float | None) -> str:
    """A ratio."""
    return "--" if value is None else f"{value:.2f}x"


def _row(row: Row, sides: Iterable[str], *, both: bool) -> str:
    line = f"{row.number:>4} {row.chars:>7} {_plain(row.tokens, 0):>6}"
    for side in sides:
        answer, width = row.side(side), 20 if side == "cold" else 27
        line += " |" + ("" if answer is None else _cells(answer, side)).ljust(width)
    return line + (f" |{times(row.ttft_ratio):>7}" if both else "")


def _cells(answer: Answer, side: str) -> str:
    if answer.sample.failed:
        return "  FAILED"
    cached = f"{_plain(answer.sample.cached_tokens, 0):>7}" if side == "warm" else ""
    rate = "EMPTY" if answer.is_empty else _plain(answer.decode_rate)
    return f"{cached}{seconds(answer.ttft_s):>7}{seconds(answer.wall_s):>7}{rate:>6}"


def _line(name: str, values: list[str], ratio: str = "") -> str:
    shown = ratio if len(values) == 2 else ""
    return (f"{name:<14}" + "".join(f"{value:>12}" for value in values) + f"{shown:>10}").rstrip()


def _plain(value: float | None, digits: int = 1) -> str:
    if value is None:
        return "--"
    return f"{value:.0f}" if digits == 0 or value >= 1000 else f"{value:.{digits}f}"


def _of(count: int, side: Side) -> str:
    return f"{count} of {side.calls}"


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|")


def _rounded(value: float | None, digits: int = 4) -> float | None:
    return None if value is None else round(value, digits)

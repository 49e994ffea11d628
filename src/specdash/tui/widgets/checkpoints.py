"""How rejected tokens are taken back, and what that costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.speculation import Rollback
from specdash.tui.formatting import UNKNOWN, clean, compact, count, decimal, percent, seconds, size, window
from specdash.tui.spans import line_width
from specdash.tui.widgets.part import TextPart, marked_bar, sentences

if TYPE_CHECKING:
    from specdash.insight.drafter_picture import CheckpointCounts, CheckpointsPicture
    from specdash.tui.spans import Line, Span
    from specdash.tui.view import View

_MIB = 1024**2
_DEAR = 0.1
"""Share of decode time lost to replays from which on it is coloured."""
_NAME = 15


class CheckpointsPanel(TextPart):
    """Counts of checkpoints, replays, the time they cost, and the gain that is left."""

    def __init__(self) -> None:
        super().__init__("Checkpoints", id="checkpoints")

    def key_figure(self, view: View) -> Line:
        """The memory and how rejected tokens are taken back."""
        one = view.picture.views.checkpoints
        memory = (str(one.memory) if one.memory is not None else UNKNOWN, "text bold" if one.memory else "dim")
        if one.rollback is Rollback.CUT:
            return (memory, (": cut from the KV cache, costs nothing", "dim"))
        if one.rollback is Rollback.STATE:
            return (memory, (": states are kept, nothing is replayed", "dim"))
        if one.rollback is Rollback.CHECKPOINT:
            return (memory, (f": {one.rollback}", "warn bold" if (one.lost_share or 0) >= _DEAR else "text"))
        return (memory, (f": {clean(one.because, 200)}" if one.because else "", "dim"))

    def aside(self, view: View) -> Line:
        """The time lost."""
        one = view.picture.views.checkpoints
        if one.rollback is not Rollback.CHECKPOINT or one.lost_share is None:
            return ()
        role = "warn bold" if one.lost_share >= _DEAR else "text bold"
        return ((percent(one.lost_share), role), (" of decode lost", "dim"))

    def least(self, view: View) -> int:
        """See `Part`."""
        return 8 if view.picture.views.checkpoints.rollback is Rollback.CHECKPOINT else 4

    def content(self, view: View, width: int, height: int) -> list[Line]:
        """What is known beyond the title; nothing for an attention model whose checkpoints nobody saw."""
        del height
        one = view.picture.views.checkpoints
        has_counts = any(map(_seen, (one.context, one.speculative)))
        if one.rollback is not Rollback.CHECKPOINT and not has_counts and not one.full_reprocessed:
            return sentences(clean(one.because, 400), width, 2) if one.rollback is Rollback.STATE else []
        lines = sentences(clean(one.verdict, 400), width, 2, "text bold")
        if one.rollback is Rollback.CHECKPOINT:
            lines += _lengths(one, width, ascii_only=view.glyphs.ascii_only)
            lines.append(_replays(one, view.picture.window_s, width))
        lines += _table(one)
        if one.full_reprocessed:
            text = f"{count(one.full_reprocessed)} prompts processed from the start again, for want of a checkpoint"
            lines += sentences(text, width, 2, "warn")
        return lines + sentences(clean(one.because, 400), width, 2)


def _seen(counts: CheckpointCounts) -> bool:
    return bool(counts.created or counts.restored or counts.erased)


def _lengths(one: CheckpointsPicture, width: int, *, ascii_only: bool) -> list[Line]:
    """Mean accepted length as printed, above the one that counts replays."""
    known = [value for value in (one.mean_accepted_length, one.effective_length) if value is not None]
    longest = max(known, default=1.0) or 1.0
    rows: tuple[tuple[str, float | None, str], ...] = (
        ("as printed", one.mean_accepted_length, "machine"),
        ("effective", one.effective_length, "gain"),
    )
    room = max(width - _NAME - 20, 8)
    lines: list[Line] = []
    for name, value, role in rows:
        share = value / longest if value is not None else None
        figure: Span = (f"{decimal(value):>6}", f"{role} bold" if value is not None else "dim")
        tail = " tok a step" if role == "machine" else " tok a decode"
        drawn = marked_bar(share, None, room, role, ascii_only=ascii_only)
        lines.append(((f"{name:<{_NAME}}", "dim"), *drawn, figure, (tail, "dim")))
    return lines


def _replays(one: CheckpointsPicture, window_s: float, width: int) -> Line:
    """`replays 57 in 213 steps   412 tokens again   1.24 s lost in 5m`; from counters, the most there can have been."""
    label: Span = (f"{'replays':<{_NAME}}", "dim")
    if not one.basis:
        return (label, (UNKNOWN, "dim"), ("  LLAMA_TRACE=1 tells of them", "dim"))
    when = "since the start" if one.held else f"in {window(window_s)}"
    line: Line = (
        label,
        (f"at most {compact(one.replays)}" if one.basis == "counters" else compact(one.replays), "text bold"),
        (f" in {compact(one.steps)} steps", "dim"),
    )
    lost: Line = (("   ", "dim"), (seconds(one.lost_s), "text bold"), (f" lost {when}", "dim"))
    again: Line = (("   ", "dim"), (compact(one.replayed_tokens), "text"), (" tokens again", "dim"))
    if one.replayed_tokens is None:
        again = ()
    return (*line, *again, *lost) if line_width((*line, *again, *lost)) <= width else (*line, *lost)


def _table(one: CheckpointsPicture) -> list[Line]:
    """Created, restored, erased and size, of both kinds."""
    rows = (
        ("whole prompts", one.context, "log verbosity 4 tells of them"),
        ("before drafts", one.speculative, "log verbosity 5 tells of them"),
    )
    lines: list[Line] = [((f"{'':<{_NAME}}{'created':>9}{'restored':>10}{'erased':>8}{'size':>11}", "dim"),)]
    for name, counts, hint in rows:
        if not _seen(counts):
            lines.append(((f"{name:<{_NAME}}", "dim"), (f"{UNKNOWN:>9}", "dim"), (f"   {hint}", "dim")))
            continue
        bytes_ = counts.size_mib * _MIB if counts.size_mib is not None else None
        figures = f"{compact(counts.created):>9}{compact(counts.restored):>10}{compact(counts.erased):>8}"
        lines.append(((f"{name:<{_NAME}}", "dim"), (figures, "text"), (f"{size(bytes_):>11}", "dim")))
    return lines

"""Whether the server speculates, in one bar that is read in two seconds; and with what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.records import Drafting
from specdash.core.speculation import SPEC_TYPES, Rollback, spec_type
from specdash.insight.picture import BackendState
from specdash.insight.speedup.verdict import verdict
from specdash.system.text import MIB, UNKNOWN, age, clean, compact, duration, number, percent, plain, seconds, size
from specdash.tui.spans import BLANK, GLYPHS, Line, fit, line_width, wrap
from specdash.tui.widgets.panel import PLENTY, LinesWidget, TextPart, marked_bar, sentences
from specdash.tui.widgets.speculation.verdict import WITHOUT_SPECULATION, how_to, verdict_role

if TYPE_CHECKING:
    from specdash.core.speculation import PublishedAcceptance
    from specdash.insight.picture import CheckpointCounts, CheckpointsPicture, DrafterPicture
    from specdash.tui.spans import Line, Span
    from specdash.tui.view import View


ROLES = {
    Drafting.READY: "accent",
    Drafting.OFF: "dim",
    Drafting.FAILED: "warn",
    Drafting.UNKNOWN: "dim",
}
_WORDS = {
    Drafting.YES: "SPECULATING",
    Drafting.READY: "READY, nothing drafted yet",
    Drafting.OFF: "SPECULATION IS OFF",
    Drafting.FAILED: WITHOUT_SPECULATION,
    Drafting.UNKNOWN: "NOT KNOWN YET: DOES IT SPECULATE?",
}
_BAR_LINES = 2
_LABEL = 9


class DraftingBar(LinesWidget):
    """The state, its cause, the next step, the types in force and their parameters."""

    def __init__(self) -> None:
        super().__init__(id="drafting")
        self.tall = False
        """Whether there is room for a bar of three lines and for what each type is."""

    def show(self, view: View) -> None:
        """Draw this view."""
        self.set_lines(drafting_lines(view, self.size.width or self.app.size.width, tall=self.tall))


def drafting_glyph(state: Drafting) -> str:
    """A shape per state, so that colour is never the only difference."""
    shapes = {
        Drafting.YES: GLYPHS.live,
        Drafting.READY: GLYPHS.stale,
        Drafting.OFF: GLYPHS.note,
        Drafting.FAILED: GLYPHS.alert,
    }
    return shapes.get(state, GLYPHS.unknown)


def drafting_lines(view: View, width: int, *, tall: bool) -> list[Line]:
    """The bar; below it what to do, the types and their parameters."""
    drafting = view.picture.views.drafting
    state, because = drafting.state, clean(drafting.because, 400)
    # What ails a server that is away stands in the header.
    if state is Drafting.UNKNOWN and not because and view.picture.backend.state is BackendState.LIVE:
        because = clean(view.picture.backend.reason, 400)
    # That it drafts is no praise: the colour is the verdict's.
    role = f"banner.{verdict_role(view) if state is Drafting.YES else ROLES[state]}"
    words = f"{drafting_glyph(state)} {_WORDS[state]}"
    if state is Drafting.YES:
        words = f"{verdict(view.picture).headline}  {words}"
    names = _chain(view)
    if state in (Drafting.YES, Drafting.READY) and names:
        words += f"  {names}"
    if state is Drafting.FAILED and because:
        words += f" because {because}"
    checked = f"checked {age(drafting.checked_age_s)} ago" if drafting.checked_age_s is not None else ""
    texts = wrap(words, width - 2, _BAR_LINES)
    if len(texts) == 1 and checked and len(texts[0]) + len(checked) + 4 <= width:
        texts[0] = texts[0] + " " * (width - 2 - len(texts[0]) - len(checked)) + checked
    if tall:
        texts = ["", *texts, ""]
    lines: list[Line] = [((" " + fit(text, width - 1), role),) for text in texts]
    judged = verdict(view.picture)
    if state is Drafting.YES and judged.better:
        better = f"{judged.better[:1].upper()}{judged.better[1:]} ({how_to(judged, view.keys)})"
        lines += _labelled("better", better, "text bold", width, 1 + tall)
    # On a small terminal what to do takes the place of how it is known.
    if because and state is not Drafting.FAILED and (tall or not (judged.better and state is Drafting.YES)):
        lines += _labelled("because", because, "dim", width, 1 + tall)
    if drafting.fix:
        lines += _labelled("do", clean(drafting.fix, 400), "text bold", width, 2)
    lines += _in_force(view, width, tall=tall)
    return [*lines, BLANK] if tall else lines


def _labelled(label: str, text: str, role: str, width: int, most: int) -> list[Line]:
    parts = wrap(text, width - _LABEL - 2, most)
    return [((f" {label if index == 0 else '':<{_LABEL}}", "accent"), (part, role)) for index, part in enumerate(parts)]


def _chain(view: View) -> str:
    return ", ".join(clean(name, 24) for name in view.picture.backend.speculation.types or ())


def _in_force(view: View, width: int, *, tall: bool) -> list[Line]:
    """The parameters, and where there is room what each type does and when it pays, in the engine's order."""
    speculation = view.picture.backend.speculation
    known = [found for name in speculation.types or () if (found := spec_type(name)) is not None]
    lines: list[Line] = []
    for index, item in enumerate(known if tall else ()):
        name = f"{index + 1} {item.name}" if len(known) > 1 else item.name
        pays = f". Pays when {item.pays_when}" if item.pays_when else ""
        label = fit(f" {name}", max(_LABEL + 1, len(name) + 3))
        for row, text in enumerate(wrap(item.meaning + pays, width - len(label) - 1, 2)):
            lines.append(((label if row == 0 else " " * len(label), "accent bold"), (text, "dim")))
    settings = [(key, value) for key, value in speculation.parameters if key != "spec-type"]
    if not settings:
        return lines
    line: Line = ((f" {'with':<{_LABEL}}", "accent"),)
    for key, value in settings:
        pair: Line = ((f"{_short(key)} ", "dim"), (f"{clean(value.rsplit('/', 1)[-1], 40)}  ", "text"))
        if line_width(line) + line_width(pair) > width and line_width(line) > _LABEL + 1:
            break
        line = (*line, *pair)
    return [*lines, line]


def _short(key: str) -> str:
    return clean(key, 40).removeprefix("spec-").removeprefix("draft-")


# How rejected tokens are taken back, and what that costs.

_DEAR = 0.1
"""Share of decode time lost to replays from which on it is coloured."""
_NAME = 15


class CheckpointsPanel(TextPart):
    """Counts of checkpoints, replays, the time they cost, and the gain that is left."""

    def __init__(self) -> None:
        super().__init__("Checkpoints", id="checkpoints")

    def key_figure(self, view: View) -> Line:
        """The memory and how rejected tokens are taken back."""
        checkpoints = view.picture.views.checkpoints
        memory = (plain(checkpoints.memory), "text bold" if checkpoints.memory else "dim")
        if checkpoints.rollback is Rollback.CUT:
            return (memory, (": cut from the KV cache, costs nothing", "dim"))
        if checkpoints.rollback is Rollback.STATE:
            return (memory, (": states are kept, nothing is replayed", "dim"))
        if checkpoints.rollback is Rollback.CHECKPOINT:
            return (
                memory,
                (f": {checkpoints.rollback}", "warn bold" if (checkpoints.lost_share or 0) >= _DEAR else "text"),
            )
        return (memory, (f": {clean(checkpoints.because, 200)}" if checkpoints.because else "", "dim"))

    def aside(self, view: View) -> Line:
        """The time lost."""
        checkpoints = view.picture.views.checkpoints
        if checkpoints.rollback is not Rollback.CHECKPOINT or checkpoints.lost_share is None:
            return ()
        role = "warn bold" if checkpoints.lost_share >= _DEAR else "text bold"
        return ((percent(checkpoints.lost_share), role), (" of decode lost", "dim"))

    def least(self, view: View) -> int:
        """See `Part`."""
        return 8 if view.picture.views.checkpoints.rollback is Rollback.CHECKPOINT else 4

    def content(self, view: View, width: int, height: int) -> list[Line]:
        """What is known beyond the title; nothing for an attention model whose checkpoints no one saw."""
        checkpoints = view.picture.views.checkpoints
        has_counts = any(map(_seen, (checkpoints.context, checkpoints.speculative)))
        if checkpoints.rollback is not Rollback.CHECKPOINT and not has_counts and not checkpoints.full_reprocessed:
            return (
                sentences(clean(checkpoints.because, 400), width, 2) if checkpoints.rollback is Rollback.STATE else []
            )
        lines = sentences(clean(checkpoints.verdict, 400), width, 2, "text bold")
        if checkpoints.rollback is Rollback.CHECKPOINT:
            lines += _lengths(checkpoints, width)
            lines.append(_replays(checkpoints, view.picture.window_s, width))
        lines += _table(checkpoints)
        if checkpoints.full_reprocessed:
            count = number(checkpoints.full_reprocessed)
            text = f"{count} prompts processed from the start again, because no checkpoint was available"
            lines += sentences(text, width, 2, "warn")
        return lines + sentences(clean(checkpoints.because, 400), width, 2)


def _seen(counts: CheckpointCounts) -> bool:
    return bool(counts.created or counts.restored or counts.erased)


def _lengths(picture: CheckpointsPicture, width: int) -> list[Line]:
    """Mean accepted length as printed, above the one that counts replays."""
    known = [value for value in (picture.mean_accepted_length, picture.effective_length) if value is not None]
    longest = max(known, default=1.0) or 1.0
    rows: tuple[tuple[str, float | None, str], ...] = (
        ("as printed", picture.mean_accepted_length, "machine"),
        ("effective", picture.effective_length, "gain"),
    )
    room = max(width - _NAME - 20, 8)
    lines: list[Line] = []
    for name, value, role in rows:
        share = value / longest if value is not None else None
        figure: Span = (f"{number(value, 2):>6}", f"{role} bold" if value is not None else "dim")
        tail = " tok a step" if role == "machine" else " tok a decode"
        drawn = marked_bar(share, None, room, role)
        lines.append(((f"{name:<{_NAME}}", "dim"), *drawn, figure, (tail, "dim")))
    return lines


def _replays(picture: CheckpointsPicture, window_s: float, width: int) -> Line:
    """`replays 57 in 213 steps   412 tokens again   1.24 s lost in 5m`; from counters, the most there can have been."""
    label: Span = (f"{'replays':<{_NAME}}", "dim")
    if not picture.basis:
        return (label, (UNKNOWN, "dim"), ("  needs LLAMA_TRACE=1", "dim"))
    when = "since the start" if picture.held else f"in {duration(window_s, short=True)}"
    line: Line = (
        label,
        (
            f"at most {compact(picture.replays)}" if picture.basis == "counters" else compact(picture.replays),
            "text bold",
        ),
        (f" in {compact(picture.steps)} steps", "dim"),
    )
    lost: Line = (("   ", "dim"), (seconds(picture.lost_s), "text bold"), (f" lost {when}", "dim"))
    again: Line = (("   ", "dim"), (compact(picture.replayed_tokens), "text"), (" tokens again", "dim"))
    if picture.replayed_tokens is None:
        again = ()
    return (*line, *again, *lost) if line_width((*line, *again, *lost)) <= width else (*line, *lost)


def _table(picture: CheckpointsPicture) -> list[Line]:
    """Created, restored, erased and size, of both kinds."""
    rows = (
        ("whole prompts", picture.context, "needs log verbosity 4"),
        ("before drafts", picture.speculative, "needs log verbosity 5"),
    )
    lines: list[Line] = [((f"{'':<{_NAME}}{'created':>9}{'restored':>10}{'erased':>8}{'size':>11}", "dim"),)]
    for name, counts, hint in rows:
        if not _seen(counts):
            lines.append(((f"{name:<{_NAME}}", "dim"), (f"{UNKNOWN:>9}", "dim"), (f"   {hint}", "dim")))
            continue
        bytes_ = counts.size_mib * MIB if counts.size_mib is not None else None
        figures = f"{compact(counts.created):>9}{compact(counts.restored):>10}{compact(counts.erased):>8}"
        lines.append(((f"{name:<{_NAME}}", "dim"), (figures, "text"), (f"{size(bytes_):>11}", "dim")))
    return lines


# The drafter: how far into a draft the target follows it, against what was published and against the break-even.

MEASURED = "measured"
_COLUMN = 30
_GAP = 3
_WIDE_COLUMN = 52
_USUAL_ROWS = 16
_ROOMY = 90
_LEAST_BAR = 8
_TYPE = 15
_THICK = 3
Row = tuple[str, float, float | None]
"""Position or span of positions, counted from 1, the mean share, and the mean published one."""


class DrafterPanel(TextPart):
    """Acceptance by draft position."""

    def __init__(self) -> None:
        super().__init__("Drafter", id="drafter")

    def key_figure(self, view: View) -> Line:
        """The type, and its acceptance."""
        drafter = view.picture.views.drafter
        if drafter.type is None:
            is_known = view.picture.views.drafting.state is not Drafting.UNKNOWN
            return ((UNKNOWN, "dim"), ("  nothing drafts" if is_known else "  waiting for the server", "dim"))
        name: Line = ((clean(drafter.type, 24), "accent bold"),)
        if drafter.acceptance is None:
            why = "nothing drafts" if _is_off(view) else "nothing drafted yet"
            return (*name, (f"  {UNKNOWN}", "dim"), (f"  {why}", "dim"))
        return (*name, (f"  {percent(drafter.acceptance, 1)}", "acceptance bold"), (" accepted", "dim"))

    def aside(self, view: View) -> Line:
        """Over which time."""
        drafter = view.picture.views.drafter
        if not drafter.per_position_basis or drafter.acceptance is None:
            return ()
        is_lifetime = drafter.per_position_basis == "lifetime"
        when = "since the start" if is_lifetime else f"last {duration(view.picture.window_s, short=True)}"
        return ((f"all types of the chain, {when}" if drafter.of_chain else when, "dim"),)

    def least(self, view: View) -> int:
        """See `Part`."""
        return 8

    def content(self, view: View, width: int, height: int) -> list[Line]:
        """Lengths, clamps, all positions together, then bar by bar; what to make of it."""
        picture = view.picture.views.drafter
        if not picture.per_position and (picture.type is None or _is_off(view)):
            return _choice(width)
        upper = [*length_lines(picture, width), *_clamp_lines(picture, width)]
        if picture.acceptance is not None:
            upper.append(_overall(picture, width))
        usual = _usual_rows(picture, width)
        legend = _legend(picture, width)
        verdict = sentences(clean(picture.verdict, 400), width, 3, "text bold")
        if height - len(upper) - len(legend) - len(verdict) < usual:
            legend = legend[:1]
        room = height - len(upper) - len(legend) - len(verdict)
        if room < usual:
            # What others measured gives way to what to make of one's own.
            legend, room = [], room + len(legend)
        while room < usual and len(verdict) > 2:
            verdict, room = sentences(clean(picture.verdict, 400), width, len(verdict) - 1, "text bold"), room + 1
        basis = _basis(picture, width)
        if room >= usual + len(basis) and (height >= PLENTY or room > usual + len(basis) + 1):
            verdict, room = [*verdict, *basis], room - len(basis)
        bars = position_lines(picture, width, usual if height >= PLENTY else room)
        if bars and room >= len(bars) + 2 and height < PLENTY:
            bars = [BLANK, *bars, BLANK]
        return [*upper, *bars, *legend, *verdict]


def _choice(width: int) -> list[Line]:
    """Where nothing drafts and there is room: what a server can speculate with."""
    if width < _ROOMY:
        return []
    lines: list[Line] = [(("what there is to speculate with, by LLAMA_SPEC_TYPE", "dim"),)]
    for item in SPEC_TYPES:
        needs = "Needs a draft model. " if item.needs_draft_model else "Needs no model. "
        needs = "Needs a model with them. " if item.needs_heads else needs
        text = f"{item.meaning[:1].upper()}{item.meaning[1:]}. {needs}Pays when {item.pays_when}."
        for row, part in enumerate(wrap(text, width - _TYPE, 3)):
            lines.append(((fit("" if row else item.name, _TYPE), "accent bold"), (part, "dim")))
    return lines


def _is_off(view: View) -> bool:
    return view.picture.views.drafting.state in (Drafting.OFF, Drafting.FAILED)


def _basis(picture: DrafterPicture, width: int) -> list[Line]:
    """What the break-even rests on, where it is not measured."""
    if picture.break_even_acceptance is None or picture.break_even_basis in ("", MEASURED):
        return []
    return sentences(f"break-even: {clean(picture.break_even_basis, 200)}", width, 2)


def _usual_rows(picture: DrafterPicture, width: int) -> int:
    """Lines of bars where there is room for all: one a position; on a narrow screen, where every line counts, less."""
    abreast = 1 if width >= _ROOMY else _abreast(width)
    return min(-(-len(without_empty_tail(picture.per_position)) // abreast), _USUAL_ROWS // abreast)


def _abreast(width: int) -> int:
    return max((width + _GAP) // (_COLUMN + _GAP), 1)


def length_lines(picture: DrafterPicture, width: int) -> list[Line]:
    """How long drafts are, were asked to be, and had best be."""
    spans: Line = ()
    if picture.effective_length is not None:
        spans = (("drafts ", "dim"), (str(picture.effective_length), "text bold"))
        if picture.asked_length is not None and picture.asked_length != picture.effective_length:
            block = f", block {picture.block_size}" if picture.block_size is not None else ""
            spans = (*spans, (" of ", "dim"), (f"{picture.asked_length} asked", "warn bold"), (block, "warn"))
        else:
            spans = (*spans, (" tokens", "dim"))
    elif picture.asked_length is not None:
        spans = (("drafts up to ", "dim"), (str(picture.asked_length), "text bold"))
    parts: list[Line] = [spans] if spans else []
    if picture.mean_accepted_length is not None:
        parts.append((("length ", "dim"), (number(picture.mean_accepted_length, 2), "text bold"), (" a step", "dim")))
    settled = picture.best_length == picture.effective_length
    # Another length only where it is what the verdict advises: two advices are none.
    if picture.best_length is not None and (settled or picture.best_length == picture.advised_length):
        gain = f" +{percent(picture.best_gain)}" if picture.best_gain and not settled else ""
        label: Line = (("best length ", "dim"), (str(picture.best_length), "good bold" if settled else "gain bold"))
        parts.append((*label, (gain, "gain")))
    return _flow(parts, width)


def _flow(parts: list[Line], width: int) -> list[Line]:
    """Parts side by side, in as many lines as it takes."""
    lines: list[Line] = []
    for part in parts:
        if lines and line_width(lines[-1]) + 3 + line_width(part) <= width:
            lines[-1] = (*lines[-1], ("   ", "text"), *part)
        else:
            lines.append(part)
    return lines


def _clamp_lines(picture: DrafterPicture, width: int) -> list[Line]:
    if (
        picture.effective_length is not None
        and picture.asked_length is not None
        and picture.effective_length < picture.asked_length
    ):
        # The line above says as much in fewer words.
        return []
    return [line for text in picture.clamps[:2] for line in sentences(clean(text, 300), width, 2, "warn")]


def _overall(picture: DrafterPicture, width: int) -> Line:
    """All drafted tokens together, with the break-even marked."""
    least = picture.break_even_acceptance
    basis = "" if picture.break_even_basis == MEASURED else " est."
    tail = f"break-even {percent(least)}{basis}" if least is not None else ""
    room = max(width - 4 - 7 - len(tail) - 2, _LEAST_BAR)
    pays = least is None or picture.acceptance is None or picture.acceptance >= least
    mark = "┃ "
    return (
        ("all ", "dim"),
        *marked_bar(picture.acceptance, least, room, "acceptance" if pays else "bad"),
        (f"{percent(picture.acceptance):>6} ", "text bold" if pays else "bad bold"),
        *(((mark, "gain"), (tail, "dim")) if tail else ()),
    )


def drawn_reference(picture: DrafterPicture) -> PublishedAcceptance | None:
    """The published curve that is marked beside the bars: the first that has positions."""
    return next((curve for curve in picture.references if curve.per_position), None)


def _legend(picture: DrafterPicture, width: int) -> list[Line]:
    """Whose curve is marked beside the bars; then, in their order, what else was published."""
    marked = drawn_reference(picture)
    ordered = sorted(picture.references, key=lambda curve: curve is not marked)
    lines: list[Line] = []
    for curve in ordered:
        figures = [f"length {number(curve.mean_accepted_length, 2)}"] if curve.mean_accepted_length is not None else []
        figures += [f"{percent(curve.acceptance)} accepted"] if curve.acceptance is not None else []
        source = [f"({clean(curve.source, 80)})"] if curve.source else []
        text = "  ".join([clean(curve.name, 80), *figures, *source])
        is_marked = curve is marked and bool(picture.per_position)
        lead = ("┃ published  " if is_marked else "  published  ") if not lines else " " * 13
        lines.append(((lead, "gain" if is_marked else "dim"), (fit(text, max(width - 13, 8)).rstrip(), "dim")))
    return lines


def position_lines(picture: DrafterPicture, width: int, height: int) -> list[Line]:
    """One bar a draft position, in as many columns as it takes; where even that does not do, neighbours share one."""
    shares = without_empty_tail(picture.per_position)
    if not shares or height < 1:
        return []
    most = _abreast(width)
    rows = rows_for(picture, height * most)
    columns = next((n for n in range(1, most + 1) if -(-len(rows) // n) <= height), most)
    cells = (width - _GAP * (columns - 1)) // columns
    deep = -(-len(rows) // columns)
    label = max(len(name) for name, _, _ in rows)
    drawn = [_bar_line(row, label, cells, picture.per_position_basis) for row in rows]
    lines: list[Line] = []
    for y in range(deep):
        line: Line = ()
        for x in range(columns):
            if x * deep + y < len(drawn):
                pad = " " * (x * (cells + _GAP) - line_width(line))
                line = (*line, (pad, "text"), *drawn[x * deep + y])
        lines.append(line)
    if columns == 1 and height >= _THICK * deep - 1 and height < PLENTY:
        lines = [half for line in lines for half in (line, _unlabelled(line), BLANK)][:-1]
    return lines


def _unlabelled(line: Line) -> Line:
    """The lower half of a thick bar: the same without words."""
    return tuple((text if "track" in role else " " * len(text), role) for text, role in line)


def without_empty_tail(shares: tuple[float, ...]) -> tuple[float, ...]:
    """Positions that no draft has reached say nothing; the first empty one stays, to show where it ends."""
    end = len(shares)
    while end > 1 and shares[end - 1] <= 0 and shares[end - 2] <= 0:
        end -= 1
    return shares[:end]


def rows_for(picture: DrafterPicture, most: int) -> list[Row]:
    """Every position, where `most` rows hold them; else neighbours together."""
    shares = without_empty_tail(picture.per_position)
    spans = [(at, at) for at in range(len(shares))]
    while len(spans) > most:
        spans = [(pair[0][0], pair[-1][1]) for pair in (spans[at : at + 2] for at in range(0, len(spans), 2))]
    curve = drawn_reference(picture)
    published = curve.per_position if curve is not None else ()
    rows: list[Row] = []
    for first, last in spans:
        own, theirs = shares[first : last + 1], published[first : last + 1]
        name = str(first + 1) if first == last else f"{first + 1}-{last + 1}"
        rows.append((name, sum(own) / len(own), sum(theirs) / len(theirs) if len(theirs) == len(own) else None))
    return rows


def _bar_line(row: tuple[str, float, float | None], label: int, width: int, basis: str) -> Line:
    name, share, published = row
    reference = f" {percent(published):>5}" if published is not None and width >= _WIDE_COLUMN else ""
    room = max(width - label - 1 - 6 - (6 if width >= _WIDE_COLUMN else 0), _LEAST_BAR)
    role = "machine" if basis == "lifetime" else "acceptance"
    return (
        (f"{name:>{label}} ", "dim"),
        *marked_bar(share, published, room, role),
        (f"{percent(share):>6}", "text"),
        (reference, "gain"),
    )

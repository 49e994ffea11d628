"""The verdict as the largest thing on a screen: whether speculation pays, why, what would be better, and the key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.records import Drafting
from specdash.insight.picture import Basis
from specdash.insight.speedup.verdict import VerdictKind, VerdictStep, interval, verdict
from specdash.tui.spans import Line, Span, fit, line_width, spread

if TYPE_CHECKING:
    from specdash.insight.picture import SpeedUpPicture
    from specdash.insight.speedup.verdict import Verdict
    from specdash.tui.action_table import KeyTable
    from specdash.tui.view import View

WITHOUT_SPECULATION = "RUNNING WITHOUT SPECULATION"
VERDICT_ROLES = {
    VerdictKind.PAYS: "good",
    VerdictKind.COSTS: "bad",
    VerdictKind.NO_DIFFERENCE: "accent",
    VerdictKind.UNCLEAR: "dim",
    VerdictKind.OFF: "dim",
}
"""The colour of a verdict, and of nothing else."""
_STEP_ACTIONS = {
    VerdictStep.CHANGE: "take",
    VerdictStep.TUNE: "tuner",
    VerdictStep.BASELINE: "baseline",
}
_ROOMY, _WIDE = 30, 100
"""Rows and columns of the terminal from which the words are three rows high."""
_LEAST_TEXT = 44
"""Columns that the reason beside them needs."""
_GAP = 3
_LETTERS = {
    "A": ".##. #..# #### #..# #..#",
    "C": ".### #... #... #... .###",
    "D": "###. #..# #..# #..# ###.",
    "E": "#### #... ###. #... ####",
    "F": "#### #... ###. #... #...",
    "G": ".### #... #.## #..# .###",
    "I": "### .#. .#. .#. ###",
    "L": "#... #... #... #... ####",
    "N": "#..# ##.# #.## #..# #..#",
    "O": ".##. #..# #..# #..# .##.",
    "P": "###. #..# ###. #... #...",
    "R": "###. #..# ###. #.#. #..#",
    "S": ".### #... .##. ...# ###.",
    "T": "##### ..#.. ..#.. ..#.. ..#..",
    "U": "#..# #..# #..# #..# .##.",
    "Y": "#...# .#.#. ..#.. ..#.. ..#..",
    "0": ".##. #..# #..# #..# .##.",
    "1": ".#. ##. .#. .#. ###",
    "2": "###. ...# .##. #... ####",
    "3": "###. ...# .##. ...# ###.",
    "4": "#..# #..# #### ...# ...#",
    "5": "#### #... ###. ...# ###.",
    "6": ".##. #... ###. #..# .##.",
    "7": "#### ...# ..#. .#.. .#..",
    "8": ".##. #..# .##. #..# .##.",
    "9": ".##. #..# .### ...# .##.",
    ".": ". . . . #",
    "'": "# # . . .",
    "×": "... #.# .#. #.# ...",
    "%": "##..# ##.#. ..#.. .#.## #..##",
    " ": ".. .. .. .. ..",
}
"""The letters of all verdicts, five half-rows high."""
_HALVES = {"..": " ", "#.": "▀", ".#": "▄", "##": "█"}


def verdict_role(view: View) -> str:
    """The verdict's colour; none while settings are only tried, whose verdict it is."""
    return "dim" if view.is_tried else VERDICT_ROLES[verdict(view.picture).kind]


def verdict_lines(view: View, width: int, height: int, *, brief: bool = False) -> list[Line]:
    """The band on a terminal of so many rows, and below it what to do, or why, unless `brief`; nothing where it runs
    without the speculation that was asked for, which the header says as loudly."""
    if view.picture.views.drafting.state is Drafting.FAILED:
        return []
    judged = verdict(view.picture)
    role = f"banner.{verdict_role(view)}"
    right = _rests_on(view.picture.speedup) if judged.rates else ""
    if height >= _ROOMY and width >= _WIDE and judged.because:
        letters, needs = large(judged.short.removesuffix(" YET")), judged.detail
        room = width - len(letters[0]) - _GAP - 2
        if room >= _LEAST_TEXT:
            texts = [needs or judged.rates, judged.because, _next(judged, view.keys)]
            texts[0] = f"{texts[0]:<{room - len(right)}}{right}" if len(texts[0]) + len(right) < room else texts[0]
            return [
                ((f" {row}{' ' * _GAP}{fit(text, room)} ", role),) for row, text in zip(letters, texts, strict=True)
            ]
    below = _next_line(judged, width, view.keys) if not brief or judged.better or how_to(judged, view.keys) else ()
    return [_headline(judged, right, width, role), *([below] if below else [])]


def large(words: str) -> tuple[str, str, str]:
    """Words three rows high, in half blocks."""
    letters = [_LETTERS[character].split() for character in words]
    rows = [".".join(letter[y] for letter in letters) for y in range(5)]
    rows = ["." * len(rows[0]), *rows]
    upper, middle, lower = (
        "".join(_HALVES[top + bottom] for top, bottom in zip(rows[y], rows[y + 1], strict=True)) for y in (0, 2, 4)
    )
    return upper, middle, lower


def badge(view: View) -> str:
    """What every screen says: that speculation costs; "" while it does not."""
    judged = verdict(view.picture)
    return f" {judged.headline} " if judged.kind is VerdictKind.COSTS and not view.is_tried else ""


def _headline(judged: Verdict, right: str, width: int, role: str) -> Line:
    """The words, the rates behind them and what they rest on, as much as fits."""
    words = f" {judged.headline}"
    for text in (f"   {judged.rates}", f"   {right} "):
        if text.strip() and len(words) + len(text) <= width:
            words = f"{words:<{width - len(text)}}{text}" if text.endswith(" ") else words + text
    return ((fit(words, width), role),)


def _rests_on(speedup: SpeedUpPicture) -> str:
    bounds = interval(speedup)
    basis = "" if speedup.basis is Basis.UNKNOWN else str(speedup.basis)
    return f"{basis} {bounds}×" if bounds else basis


def _next(judged: Verdict, keys: KeyTable) -> str:
    """What would be better, and the key or command for it."""
    better = f"{judged.better[:1].upper()}{judged.better[1:]}"
    return "  ".join(filter(None, (better, how_to(judged, keys))))


def _next_line(judged: Verdict, width: int, keys: KeyTable) -> Line:
    """The next step; before all else the reason where there is none, behind it where there is room."""
    step: list[Span] = []
    if judged.better:
        step.append((f" {judged.better[:1].upper()}{judged.better[1:]} ", "text bold"))
    if how := how_to(judged, keys):
        step.append((f" {how}", "accent bold"))
    if not step:
        return ((" " + fit(judged.because, width - 1), "text"),) if judged.because else ()
    reason: Span = (f"  {judged.because} ", "dim")
    return spread(step, (reason,) if judged.because and line_width(step) + len(reason[0]) < width else (), width)


def how_to(judged: Verdict, keys: KeyTable) -> str:
    """`V: take it to the settings`, or the command where no key does it; "" where nothing is to be done."""
    action = _STEP_ACTIONS.get(judged.step)
    if action is None:
        return judged.command
    words = {VerdictStep.CHANGE: "try it", VerdictStep.TUNE: "find what pays", VerdictStep.BASELINE: "measure it"}
    return f"{keys[action]}: {words[judged.step]}"

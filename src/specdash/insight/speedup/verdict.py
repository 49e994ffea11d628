"""The verdict on speculation in words, which screens, snapshot, check, status line, bundle and metrics share. Pure.

What it rests on is `insight.speedup.speedup`; docs/speedup.md explains both.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from specdash.core.readings import ReadingStatus
from specdash.core.records import Drafting
from specdash.core.speculation import NO_SPECULATION
from specdash.insight.picture import BackendState, Basis, Paying
from specdash.system.text import clean, percent, rate

if TYPE_CHECKING:
    from specdash.insight.picture import DrafterPicture, Picture, SpeedUpPicture
    from specdash.insight.rules.known import Fix

ENOUGH = 6
"""Requests that an interval needs."""
SAME = 0.05
"""An interval that stays so near to 1 is no difference worth a setting."""
WORTH = 0.02
"""A gain below it is no reason to change a draft length."""
WITHOUT: Fix = (("LLAMA_SPEC_TYPE", NO_SPECULATION),)
"""The setting that switches speculation off."""


class VerdictKind(StrEnum):
    """What is known of whether speculation pays."""

    PAYS = "pays"
    COSTS = "costs"
    NO_DIFFERENCE = "no difference"
    UNCLEAR = "can't tell yet"
    OFF = "not speculating"


class VerdictStep(StrEnum):
    """What to do next; a screen knows the key for it, a command line the command."""

    NONE = ""
    BASELINE = "baseline"
    """Measure decode without speculation."""
    CHANGE = "change"
    """Take `Verdict.fix` to the settings."""
    TUNE = "tune"
    """Let the tuner find what pays."""


COMMANDS = {VerdictStep.BASELINE: "specdash baseline record", VerdictStep.TUNE: "specdash tune"}


class Verdict(Struct, frozen=True):
    """Whether speculation pays, in words. Empty text is nothing to say."""

    kind: VerdictKind
    headline: str
    """`PAYS 1.6×`, `COSTS 23 %`, `CAN'T TELL YET (needs a baseline)`."""
    because: str = ""
    """One sentence: why."""
    rates: str = ""
    """`57 tok/s, 36 without speculation`."""
    better: str = ""
    """What would be better: `draft length 1 would be 54 % faster`."""
    gain: float | None = None
    """How much faster that would be: 0.54."""
    fix: Fix = ()
    """The settings that `better` means."""
    step: VerdictStep = VerdictStep.NONE

    @property
    def is_clear(self) -> bool:
        """Whether it says anything of the speed."""
        return self.kind in (VerdictKind.PAYS, VerdictKind.COSTS, VerdictKind.NO_DIFFERENCE)

    @property
    def short(self) -> str:
        """The headline without what it needs: `CAN'T TELL YET`."""
        return _DETAIL.split(self.headline, 1)[0]

    @property
    def detail(self) -> str:
        """What the short form leaves out: `needs a baseline`, `other programs take 71 % of the CPUs`."""
        return self.headline[len(self.short) :].lstrip(": (").removesuffix(")")

    @property
    def words(self) -> str:
        """All of it in a line: `COSTS 23 %. 41 % of draft tokens are accepted. Draft length 1 would be faster.`"""
        return " ".join(_sentence(text) for text in (self.headline, self.because, self.better) if text)

    @property
    def command(self) -> str:
        """The command that does the next step, "" for none."""
        if self.step is VerdictStep.CHANGE:
            return " ".join(["specdash apply", *(f"{key}={value}" for key, value in self.fix)])
        return COMMANDS.get(self.step, "")


_DETAIL = re.compile(r": | \(")
_AWAY = {
    BackendState.DOWN: "the server",
    BackendState.UNAUTHORIZED: "the API key",
    BackendState.LOADING: "the model, which is loading",
    BackendState.UNKNOWN: "an answer from the server",
}


def verdict(picture: Picture) -> Verdict:
    """The verdict of this moment."""
    speedup, drafting = picture.speedup, picture.views.drafting
    if picture.backend.state in _AWAY:
        return Verdict(VerdictKind.UNCLEAR, _unclear(_AWAY[picture.backend.state]))
    if drafting.state is Drafting.FAILED:
        return Verdict(VerdictKind.OFF, "NOT SPECULATING", _sentence(drafting.because), better=clean(drafting.fix, 300))
    if picture.backend.speculation.active is False:
        words = _sentence(drafting.because or "no speculation type is set")
        return Verdict(VerdictKind.OFF, "NOT SPECULATING", words, step=VerdictStep.TUNE)
    kind = kind_of(speedup)
    faster, gain, fix = advice(picture.speedup, picture.views.drafter)
    if kind is VerdictKind.UNCLEAR or speedup.value is None:
        found = _not_clear(picture)
        return replace(found, better=faster, gain=gain, fix=fix, step=VerdictStep.CHANGE) if fix else found
    return Verdict(
        kind,
        headline(kind, speedup.value),
        _because(speedup),
        rates(speedup),
        faster,
        gain,
        fix,
        VerdictStep.CHANGE if fix else VerdictStep.NONE,
    )


def kind_of(speedup: SpeedUpPicture) -> VerdictKind:
    """The kind of verdict on this speed-up; unclear while it is not known well enough."""
    if speedup.verdict is Paying.UNKNOWN:
        return VerdictKind.UNCLEAR
    return judged(speedup.low, speedup.high)


def judged(low: float | None, high: float | None) -> VerdictKind:
    """The one judgement of an interval: off 1, or all of it within 5 % of it; else it says nothing yet."""
    if low is None or high is None:
        return VerdictKind.UNCLEAR
    if low >= 1 - SAME and high <= 1 + SAME:
        return VerdictKind.NO_DIFFERENCE
    if low > 1:
        return VerdictKind.PAYS
    return VerdictKind.COSTS if high < 1 else VerdictKind.UNCLEAR


def headline(kind: VerdictKind, value: float) -> str:
    """The verdict in two words, with its figure where it has one."""
    if kind is VerdictKind.PAYS:
        return f"PAYS {ratio(value)}"
    return f"COSTS {percent(1 - value)}" if kind is VerdictKind.COSTS else kind.upper()


def ratio(value: float) -> str:
    """`1.6×`; with two decimals where one would hide the difference."""
    return f"{value:.1f}×" if value >= 1.15 else f"{value:.2f}×"


def interval(speedup: SpeedUpPicture) -> str:
    """`1.50 to 1.71`, "" where it is not known."""
    if speedup.low is None or speedup.high is None:
        return ""
    return f"{speedup.low:.2f} to {speedup.high:.2f}"


def rates(speedup: SpeedUpPicture) -> str:
    """Decode with and without speculation, "" where either is not known."""
    if speedup.decode_rate is None or speedup.baseline_rate is None:
        return ""
    return f"{rate(speedup.decode_rate)} tok/s, {rate(speedup.baseline_rate)} without speculation"


def _unclear(needs: str) -> str:
    return f"CAN'T TELL YET (needs {needs})"


def _not_clear(picture: Picture) -> Verdict:
    speedup, step = picture.speedup, VerdictStep.NONE
    has_log = picture.log.status is ReadingStatus.KNOWN
    if speedup.value is None:
        needs = picture.backend.speculation.unseen or "a finished request"
    elif speedup.requests == 0:
        needs = "a finished request" if has_log else "the server's log"
    elif speedup.requests < ENOUGH:
        missing = ENOUGH - speedup.requests
        needs = f"{missing} more request{'s' if missing > 1 else ''}"
    elif speedup.basis is Basis.ESTIMATED:
        needs, step = "a baseline", VerdictStep.BASELINE
    else:
        needs = "a new baseline" if speedup.needs_baseline else "more requests"
        step = VerdictStep.BASELINE if speedup.needs_baseline else VerdictStep.NONE
    bounds = interval(speedup)
    basis = ", an estimate" if speedup.basis is Basis.ESTIMATED else ""
    because = f"So far {bounds}×{basis}." if bounds else _sentence(speedup.why)
    better = "a baseline makes it clear" if step is VerdictStep.BASELINE else ""
    return Verdict(VerdictKind.UNCLEAR, _unclear(needs), because, better=better, step=step)


def _because(speedup: SpeedUpPicture) -> str:
    """Accepted against what is needed, both of the same requests; else what the figure rests on."""
    length, least, needed = speedup.mean_accepted_length, speedup.break_even_length, speedup.break_even_acceptance
    if length is None or least is None:
        return _sentence(speedup.why)
    if needed and least > 1:
        accepted = needed * (length - 1) / (least - 1)
        return f"{percent(accepted)} of draft tokens are accepted; {percent(needed)} would break even."
    if least > length:
        return f"A step yields {length:.1f} tokens and costs as much as {least:.1f}: no acceptance would pay for it."
    return f"A step yields {length:.1f} tokens and costs as much as {least:.1f}."


def advice(speedup: SpeedUpPicture, drafter: DrafterPicture) -> tuple[str, float | None, Fix]:
    """What would be faster: in words, by how much, and its settings; nothing where no change is known to pay.

    The one home of an advice on drafting, for the verdict, the drafter's sentence and alerts: no speculation where it
    costs, or a shorter draft; whichever gains most.
    """
    length, gain, now = drafter.best_length, drafter.best_gain, drafter.effective_length
    costs = kind_of(speedup) is VerdictKind.COSTS and speedup.value is not None and speedup.value > 0
    without = 1 / (speedup.value or 1.0) - 1 if costs else 0.0
    shorter = gain if length is not None and gain is not None and (now is None or length < now) else 0.0
    if costs and without >= shorter:
        return f"without speculation it would be {percent(without)} faster", without, WITHOUT
    if shorter >= WORTH:
        words = f"draft length {length} would be {percent(shorter)} faster"
        return words, shorter, (("LLAMA_DRAFT_MAX", str(length)),)
    return "", None, ()


def _sentence(text: str) -> str:
    words = clean(text, 300)
    return f"{words[:1].upper()}{words[1:]}{'' if words.endswith(('.', '!', '?')) else '.'}" if words else ""

"""Applies and the before/after card in the snapshot. The schema is documented in docs/snapshot.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdash.insight.experiment_picture import ApplyMark, ExperimentCard, Measure, Side
    from specdash.insight.picture import Picture

_UNITS = {"acceptance": (100.0, " %"), "decode": (1.0, " tok/s"), "prefill": (1.0, " tok/s"), "ttft": (1.0, " s")}


def applies_json(picture: Picture) -> list[dict[str, Any]]:
    """All applies, oldest first."""
    return [_mark(mark) for mark in picture.applies]


def experiment_json(card: ExperimentCard | None) -> dict[str, Any] | None:
    """The card, None where nothing was applied."""
    if card is None:
        return None
    return {
        "apply": _mark(card.mark),
        "profile": card.profile,
        "measures": {str(measure.name): _measure(measure) for measure in card.measures},
        "caveats": list(card.caveats),
    }


def experiment_rows(picture: Picture) -> list[tuple[str, str]]:
    """For people: the newest apply, and a line per measure of the card; nothing where nothing was applied."""
    rows: list[tuple[str, str]] = []
    if picture.applies:
        newest, count = picture.applies[-1], len(picture.applies)
        others = f"  ({count} in all)" if count > 1 else ""
        rows.append(("applies", f"{_name(newest)}  {newest.outcome}  {newest.age_s:.0f} s ago{others}"))
    if picture.experiment is not None:
        rows.append(("experiment", f"{_name(picture.experiment.mark)}, before and after"))
        rows += [(f"  {measure.name}", _told(measure)) for measure in picture.experiment.measures]
        rows += [("  caveat", caveat) for caveat in picture.experiment.caveats]
    return rows


def _mark(mark: ApplyMark) -> dict[str, Any]:
    return {
        "number": mark.number,
        "at": mark.wall,
        "age_seconds": mark.age_s,
        "kind": str(mark.kind),
        "outcome": str(mark.outcome),
        "text": mark.text,
    }


def _measure(measure: Measure) -> dict[str, Any]:
    return {
        "source": measure.source,
        "before": _side(measure.before),
        "after": _side(measure.after),
        "change": measure.change,
        "change_low": measure.low,
        "change_high": measure.high,
        "change_is_relative": measure.is_relative,
        "verdict": str(measure.verdict),
        "words": measure.words,
    }


def _side(side: Side) -> dict[str, Any]:
    return {"count": side.count, "value": side.value, "lower_quartile": side.lower, "upper_quartile": side.upper}


def _name(mark: ApplyMark) -> str:
    return f"{mark.kind} {mark.number}  {mark.text}"


def _told(measure: Measure) -> str:
    scale, unit = _UNITS[str(measure.name)]
    before, after = (_plain(side, scale) for side in (measure.before, measure.after))
    told = f"{before} -> {after}{unit}"
    if measure.change is not None and measure.low is not None and measure.high is not None:
        sign = " %" if measure.is_relative else " points"
        told += f"  {measure.change:+.1%} [{measure.low:+.1%}, {measure.high:+.1%}]".replace("%", "") + sign
    return f"{told}  {measure.words}  (n {measure.before.count}, {measure.after.count}; {measure.source})"


def _plain(side: Side, scale: float) -> str:
    if side.value is None:
        return "--"
    value = side.value * scale
    return f"{value:,.1f}" if value >= 10 else f"{value:.3g}"

"""Whether speculation pays, in the snapshot. The schema is documented in docs/snapshot.md."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from specdash.insight.speedup_picture import Basis

if TYPE_CHECKING:
    from specdash.insight.picture import Picture
    from specdash.insight.speedup_picture import GroupFigures, SpeedUpPicture, TypeFigures


def speedup_json(speedup: SpeedUpPicture) -> dict[str, Any]:
    """All of it; what is unknown is None."""
    return {
        "value": speedup.value,
        "low": speedup.low,
        "high": speedup.high,
        "basis": str(speedup.basis),
        "verdict": str(speedup.verdict),
        "why": speedup.why,
        "requests": speedup.requests,
        "decode_tokens_per_second": speedup.decode_rate,
        "baseline_tokens_per_second": speedup.baseline_rate,
        "mean_accepted_length": speedup.mean_accepted_length,
        "draft_share": speedup.draft_share,
        "break_even": {
            "mean_accepted_length": speedup.break_even_length,
            "acceptance": speedup.break_even_acceptance,
        },
        "baseline": asdict(speedup.baseline) if speedup.baseline is not None else None,
        "by_context": [_group(one) for one in speedup.by_context],
        "by_generated": [_group(one) for one in speedup.by_generated],
        "by_phase": [_group(one) for one in speedup.by_phase],
        "by_type": [_type(one) for one in speedup.by_type],
    }


def speedup_rows(picture: Picture) -> list[tuple[str, str]]:
    """For people: one line, and one of groups where they differ in anything."""
    speedup = picture.speedup
    if speedup.basis is Basis.UNKNOWN:
        return [("speed-up", f"--  {speedup.why}")]
    bounds = f" [{speedup.low:.2f}, {speedup.high:.2f}]" if speedup.low is not None and speedup.high is not None else ""
    told = f"x{speedup.value:.2f}{bounds} ({speedup.basis})  {speedup.verdict.upper()}  {speedup.why}"
    rows = [("speed-up", told)]
    if speedup.break_even_length is not None:
        length = f"{speedup.mean_accepted_length:.2f}" if speedup.mean_accepted_length is not None else "--"
        needed = (
            f"  acceptance {speedup.break_even_acceptance:.0%}" if speedup.break_even_acceptance is not None else ""
        )
        rows.append(("  break-even", f"mean length {speedup.break_even_length:.2f}, it is {length}{needed}"))
    for name, groups in (("  context", speedup.by_context), ("  work", speedup.by_phase)):
        if len(groups) > 1:
            rows.append((name, "  ".join(_short(one) for one in groups)))
    return rows


def _group(group: GroupFigures) -> dict[str, Any]:
    return asdict(group)


def _type(figures: TypeFigures) -> dict[str, Any]:
    return asdict(figures)


def _short(group: GroupFigures) -> str:
    speedup = f" x{group.speedup:.2f}" if group.speedup is not None else ""
    acceptance = f" {group.acceptance:.0%}" if group.acceptance is not None else ""
    return f"{group.name}:{speedup}{acceptance} (n {group.requests})"

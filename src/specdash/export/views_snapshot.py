"""The views of the speculation screen as JSON and as rows of text. The schema is documented in docs/snapshot.md."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from specdash.core.speculation import Rollback
from specdash.core.start_check import Drafting

if TYPE_CHECKING:
    from specdash.insight.drafter_picture import (
        CheckpointsPicture,
        DrafterPicture,
        PrefixCachePicture,
        RouterPicture,
        SpeculationViews,
    )
    from specdash.insight.picture import Picture

POSITIONS_SHOWN = 8


def views_json(views: SpeculationViews) -> dict[str, Any]:
    """One key a view; field names are those of `insight.drafter_picture`, and "" is None."""
    found: dict[str, Any] = _told(asdict(views))
    prefix, known = found["prefix_cache"], views.prefix_cache
    for row, request in zip(prefix["requests"], known.requests, strict=True):
        row["cached_share"] = request.cached_share
    for row, session in zip(prefix["sessions"], known.sessions, strict=True):
        row["cached_share"] = session.cached_share
    return found


def drafting_rows(picture: Picture) -> list[tuple[str, str]]:
    """For people: whether it drafts, and why not; no row where nothing is known."""
    drafting = picture.views.drafting
    if drafting.state is Drafting.UNKNOWN and not drafting.because:
        return []
    because = f"  {drafting.because}" if drafting.because else ""
    if drafting.state is Drafting.FAILED:
        because = f" because {drafting.because or 'of something that nothing here tells'}"
    rows = [("drafting", f"{drafting.state.upper()}{because}")]
    return [*rows, ("  fix", drafting.fix)] if drafting.fix else rows


def views_rows(picture: Picture) -> list[tuple[str, str]]:
    """For people: the other views; what is not known has no row."""
    views = picture.views
    return [
        *_drafter(views.drafter, says_costs=picture.speedup.break_even_length is None),
        *_checkpoints(views.checkpoints),
        *_prefix_cache(views.prefix_cache),
        *_router(views.router),
    ]


def _told(value: Any) -> Any:
    if isinstance(value, str):
        return value or None
    if isinstance(value, dict):
        return {key: _told(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_told(item) for item in value]
    return value


def _drafter(drafter: DrafterPicture, *, says_costs: bool) -> list[tuple[str, str]]:
    if drafter.type is None:
        return []
    length = "" if drafter.effective_length is None else f"draft length {drafter.effective_length}"
    if length and drafter.block_size is not None:
        length += f" of a block of {drafter.block_size}"
    rows = [("drafter", "  ".join(part for part in (drafter.type, length, drafter.verdict) if part))]
    if drafter.clamps:
        rows.append(("  clamped", "; ".join(drafter.clamps)))
    if says_costs and drafter.break_even_length is not None:
        needed = (
            f", acceptance {drafter.break_even_acceptance:.0%}" if drafter.break_even_acceptance is not None else ""
        )
        rows.append(
            ("  needs", f"{drafter.break_even_length:.2f} tokens a decode call{needed}  ({drafter.break_even_basis})")
        )
    near = next((one for one in drafter.references if one.distance is not None), None)
    if near is not None:
        curve = " ".join(f"{rate * 100:.0f}" for rate in near.per_position[:POSITIONS_SHOWN])
        rows.append(("  published", f"{curve} %  {near.name} ({near.source})"))
    return rows


def _checkpoints(checkpoints: CheckpointsPicture) -> list[tuple[str, str]]:
    rows = []
    if checkpoints.rollback is not None:
        rows.append(("rollback", f"{checkpoints.rollback}  {checkpoints.because}"))
        if checkpoints.rollback is Rollback.CHECKPOINT and checkpoints.verdict:
            rows.append(("  replays", f"{'since the start: ' if checkpoints.held else ''}{checkpoints.verdict}"))
    for name, counts in (("context", checkpoints.context), ("before drafts", checkpoints.speculative)):
        if counts.created or counts.restored or counts.erased:
            size = f", {counts.size_mib:.1f} MiB the latest" if counts.size_mib is not None else ""
            told = f"{counts.created} made, {counts.restored} restored, {counts.erased} erased{size}"
            rows.append(("checkpoints", f"{name}: {told}"))
    if checkpoints.full_reprocessed:
        rows.append(("checkpoints", f"{checkpoints.full_reprocessed} prompts read again from their start"))
    return rows


def _prefix_cache(prefix: PrefixCachePicture) -> list[tuple[str, str]]:
    if prefix.cached_share is None and prefix.lifetime_share is None and not prefix.entries:
        return []
    rows = [("prefix cache", prefix.verdict)]
    if prefix.entries and prefix.size_mib is not None:
        limit = f" of {prefix.limit_mib:,.0f}" if prefix.limit_mib is not None else ""
        rows.append(("  kept", f"{prefix.entries} prompts in the host's memory, {prefix.size_mib:,.1f}{limit} MiB"))
    return rows


def _router(router: RouterPicture) -> list[tuple[str, str]]:
    if not router.models:
        return [("router", f"--  {router.reason}")] if router.reason else []
    models = ", ".join(f"{'>' if one.watched else ''}{one.id} {one.status}" for one in router.models)
    return [("router", f"{models}  any: {router.any_means or 'no model is resident'}")]

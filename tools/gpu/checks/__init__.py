"""The checks, in the order in which they run: what matters most comes first, since a lease may end before the last."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu.report import Check


def all_checks() -> tuple[Check, ...]:
    """Every check; imported here, since one that fails to import shall not take the others with it."""
    from gpu.checks import (
        apply,
        counters,
        doctor,
        energy,
        fit,
        gpu_alerts,
        gpu_dashboard,
        nvml,
        same_text,
        speed,
        storm,
        tune,
    )

    return (
        nvml.CHECK,
        *doctor.CHECKS,
        *fit.CHECKS,
        counters.CHECK,
        apply.CHECK,
        speed.SPEEDUP,
        gpu_alerts.CHECK,
        energy.CHECK,
        storm.CHECK,
        same_text.CHECK,
        tune.CHECK,
        speed.SIZES_CHECK,
        gpu_dashboard.CHECK,
    )

"""What the commands that record have in common: a recorder as the settings want it, and the rules that are judged."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from specdash.core import paths

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.core.config import Resolved
    from specdash.core.target import Target
    from specdash.history.recorder import Recorder
    from specdash.insight.rules.catalogue import Rule


def recorder_for(
    target: Target, settings: Mapping[str, Resolved], env: Mapping[str, str] = os.environ
) -> Recorder | None:
    """A recorder that was not started yet; None when the settings want none."""
    if not settings["record"].value:
        return None
    from specdash.history.recorder import Recorder

    return Recorder(target, days=settings["history_days"].value, megabytes=settings["history_mb"].value, env=env)


def own_rules(settings: Mapping[str, Resolved]) -> tuple[Rule, ...] | None:
    """The rules with the user's thresholds, None where there are none: those shipped are loaded when they are needed.

    Raises `InputError` for a file that cannot be meant.
    """
    if settings["rules"].value is None and not paths.rules_file().exists():
        return None
    from specdash.cli.options import alert_rules

    return alert_rules(settings)

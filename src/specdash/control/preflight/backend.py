"""Every rule about a backend, in the order in which one depends on another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.control.preflight import (
    decisions,
    disk,
    drafts,
    engine,
    env_lines,
    files,
    listening,
    memory,
    models,
    pair,
    restart,
    sizes,
    speculation,
    synthetic,
    values,
)
from specdash.control.preflight.context import Findings
from specdash.control.preflight.subject import Subject
from specdash.core.changes import Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.control.preflight.context import PreflightContext
    from specdash.core.findings import Finding


def check(wanted: Mapping[str, str], context: PreflightContext) -> tuple[Finding, ...]:
    """The findings about a backend's wanted settings, errors first."""
    out = Findings({**(context.other or {}), **wanted})
    env_lines.check(wanted, context, out)
    runs = wanted if context.running is None else context.running
    read = values.read(runs, context, out)
    if read.settings is not None:
        bare = Subject(runs, context, read.settings, read.dropped)
        engine.check(bare, out)
        subject = decisions.check(files.check(bare, out), out)
        models.check(subject, out)
        speculation.check(subject, out)
        synthetic.check(subject, out)
        drafts.check(subject, out)
        sizes.check(subject, out)
        memory.check(subject, out)
        listening.check_backend(subject, out)
        if context.other is not None:
            pair.check(runs, context.other, context, out)
        disk.check(context, out, log=read.settings.log_file, key="LLAMA_LOG_FILE")
    else:
        disk.check(context, out)
    restart.check(Role.BACKEND, context, out)
    return out.sorted()

"""Checks of the wanted settings of one service, before anything of it is stopped.

`check` runs every rule and collects every finding; it never raises for bad values, stops nothing, and listens nowhere.
Each family of rules is one module. What llama.cpp itself would say is knowledge of `specdash.llama` and the backend;
here it becomes findings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.control.preflight.context import Findings, PreflightContext
from specdash.core.changes import Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.core.errors import Finding

__all__ = ["PreflightContext", "check"]


def check(role: Role, values: Mapping[str, str], context: PreflightContext) -> tuple[Finding, ...]:
    """What is to be said of `values`, the whole wanted settings of a service, errors first. Safe from any thread."""
    if role is Role.BACKEND:
        return _backend_findings(values, context)
    from specdash.control.preflight.proxy import proxy_findings

    return proxy_findings(values, context)


def _backend_findings(wanted: Mapping[str, str], context: PreflightContext) -> tuple[Finding, ...]:
    """Every rule about a backend, in the order in which one depends on another."""
    from specdash.control.preflight.machine import check_disk, check_listening
    from specdash.control.preflight.memory import check_engine, check_memory
    from specdash.control.preflight.models import check_decisions, check_draft, check_files, check_models
    from specdash.control.preflight.proxy import check_pair
    from specdash.control.preflight.settings import BackendSubject, check_env_lines, check_restart, read_values
    from specdash.control.preflight.speculation import check_sizes, check_speculation

    out = Findings({**(context.other or {}), **wanted})
    check_env_lines(wanted, context, out)
    read = read_values(wanted, context, out)
    if read.settings is not None:
        subject = BackendSubject(wanted, context, read.settings, read.dropped)
        check_engine(subject, out)
        subject = check_decisions(check_files(subject, out), out)
        check_models(subject, out)
        check_speculation(subject, out)
        check_draft(subject, out)
        check_sizes(subject, out)
        check_memory(subject, out)
        check_listening(subject, out)
        if context.other is not None:
            check_pair(wanted, context.other, context, out)
        check_disk(context, out, log=read.settings.log_file, key="LLAMA_LOG_FILE")
    else:
        check_disk(context, out)
    check_restart(Role.BACKEND, context, out)
    return out.sorted()

"""Checks of the wanted settings of one service, before anything of it is stopped.

`check` runs every rule and collects every finding; it never raises for bad values, stops nothing, and listens nowhere.
Each family of rules is one module. What llama.cpp itself would say is knowledge of `specdash.llama` and the backend;
here it becomes findings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.control.preflight.context import PreflightContext
from specdash.core.changes import Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.core.findings import Finding

__all__ = ["PreflightContext", "check"]


def check(role: Role, values: Mapping[str, str], context: PreflightContext) -> tuple[Finding, ...]:
    """What is to be said of `values`, the whole wanted settings of a service, errors first. Safe from any thread."""
    if role is Role.BACKEND:
        from specdash.control.preflight import backend

        return backend.check(values, context)
    from specdash.control.preflight import proxy

    return proxy.check(values, context)

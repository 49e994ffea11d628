"""What engines can do, without asking one: llama-server's recorded helps, and a package that has every attribute."""

from __future__ import annotations

from msgspec.structs import replace

from specdash.backend.binary import Engine, from_help
from specdash.backend.engines import PACKAGE
from specdash.core.parameter_catalogue import ENGINE
from specdash.core.speculation import SPEC_TYPES
from support.help_engine import OLD, TODAY, help_text

KNOWN = {build: from_help(build, help_text(build)) for build in (OLD, TODAY)}
BUILD = KNOWN[TODAY]
WHEEL = Engine(
    PACKAGE,
    "1",
    frozenset({parameter.attribute for parameter in ENGINE if parameter.attribute is not None} | {"speculative.types"}),
    spec_types=tuple(kind.name for kind in SPEC_TYPES),
)


def without(*flags: str, can: Engine = BUILD) -> Engine:
    """The same build, lacking these."""
    return replace(can, version="less", flags=can.flags - set(flags))


def engine(path: str = "/opt/llama-server", kind: str = "llama-server", version: str = "b1") -> Engine:
    """An engine of that kind, of which nothing is asked."""
    return Engine(kind, version, frozenset(), path=path, reason="named")

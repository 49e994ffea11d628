"""`specdash mcp`: what is known of a server, for agents, over the Model Context Protocol on standard input and output.

Read-only: no tool changes a setting, starts or stops anything, and none gives a secret. docs/scripting.md
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

from specdash import __version__
from specdash.cli.options import (
    add_settings,
    alert_rules,
    await_answers,
    collecting,
    one_target,
    resolved_settings,
)
from specdash.core.changes import Role
from specdash.core.config import RULE_SETTINGS, TARGET_SETTINGS, WINDOWS_S
from specdash.core.errors import ExitCode, InputError
from specdash.core.structs import json_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from mcp.server.mcpserver import MCPServer

    from specdash.insight.picture import Picture

INSTRUCTIONS = (
    "Facts about a llama.cpp server (llama-server) with speculative decoding, from the specdash dashboard: whether "
    "speculation pays, what is wrong and what mends it, why it is slow, and which settings there are. Everything is "
    "read-only: give the operator the commands that the answers name."
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, (*TARGET_SETTINGS, *RULE_SETTINGS, "refresh", "window"))


def run(args: argparse.Namespace) -> int:
    """Serve until standard input ends."""
    try:
        import mcp.server.mcpserver  # noqa: F401 - fails before anything is collected
    except ModuleNotFoundError:
        raise InputError(
            "`specdash mcp` needs the package mcp: run `pip install '.[mcp]'` in a checkout of specdash"
        ) from None
    settings = resolved_settings(args)
    rules = alert_rules(settings)
    window_s = WINDOWS_S[settings["window"].value]
    with collecting(one_target(settings), rules, interval_s=settings["refresh"].value) as state:
        await_answers([state])
        server_of(lambda: state.picture(time.monotonic(), time.time(), window_s)).run()
    return ExitCode.OK


def server_of(look: Callable[[], Picture]) -> MCPServer:
    """The server with its tools; `look` gives the picture of now."""
    from mcp.server.mcpserver import MCPServer
    from mcp.types import ToolAnnotations

    server = MCPServer("specdash", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING")
    for tool in TOOLS:
        server.tool(
            name=tool.__name__.lstrip("_"), description=tool.__doc__, annotations=ToolAnnotations(read_only_hint=True)
        )(_bound(tool, look))
    return server


def _bound(tool: Callable[..., dict[str, Any]], look: Callable[[], Picture]) -> Callable[..., dict[str, Any]]:
    if tool is _what_may_be_set:
        return tool

    def answer() -> dict[str, Any]:
        return tool(look())

    return answer


def _does_speculation_pay(picture: Picture) -> dict[str, Any]:
    """Whether speculative decoding makes this server faster: the verdict, the speed-up with its 95 % interval, why, and
    what would be better, with the command that would do it."""
    from specdash.export import snapshot

    speculation = snapshot.to_json(picture)["backend"]["speculation"]
    return {**snapshot.speedup_json(picture), "acceptance": speculation["acceptance"], "types": speculation["types"]}


def _what_is_wrong(picture: Picture) -> dict[str, Any]:
    """The active alerts with their evidence, the likely cause among them, and for each what it means, what to look at
    and what mends it."""
    from specdash.export import snapshot
    from specdash.insight.rules.catalogue import shipped

    specs = {rule.id: rule for rule in shipped()}
    document = snapshot.alerts_json(picture.alerts)
    alerts: list[dict[str, Any]] = [{**alert} for alert in document["active"]]
    for alert in alerts:
        if spec := specs.get(alert["rule"]):
            alert |= {"meaning": spec.meaning, "look_at": list(spec.checks), "remedy": spec.remedy}
    return {"cause": document["cause"], "active": alerts, "unjudged": document["unjudged"]}


def _why_slow(picture: Picture) -> dict[str, Any]:
    """What a request's time goes into: speeds of prefill and decode, waiting requests, slots, prompt cache, replays
    after checkpoint restores, GPU limits, memory, CPU, and the latest changes of settings."""
    from specdash.export import snapshot

    document = snapshot.to_json(picture)
    backend = document["backend"]
    return {
        "state": backend["state"],
        "reason": backend["reason"],
        "likely_cause": picture.alerts.cause or None,
        "verdict": document["speedup"]["verdict_text"],
        "prefill": backend["prefill"],
        "decode": backend["decode"],
        "requests": backend["requests"],
        "slots": backend["slots"],
        "prefix_cache": document["prefix_cache"],
        "checkpoints": document["checkpoints"],
        "gpu": document["gpu"],
        "host": document["host"],
        "latest_changes": document["applies"][-3:],
    }


def _snapshot(picture: Picture) -> dict[str, Any]:
    """Everything that is known, as `specdash snapshot --json` prints it (docs/snapshot.md)."""
    from specdash.export import snapshot

    return {**snapshot.to_json(picture)}


def _what_may_be_set(service: Literal["backend", "proxy"] = "backend") -> dict[str, Any]:
    """Every setting of a service, `backend` or `proxy`: what it means, what it may be, its default. To change one, the
    operator runs `specdash apply KEY=VALUE`, which checks, restarts, verifies and rolls back by itself."""
    from specdash.core.env_edit import all_keys

    role = Role(service)
    return {"service": service, "settings": [json_of(entry) | {"role": service} for entry in all_keys(role)]}


TOOLS: tuple[Callable[..., dict[str, Any]], ...] = (
    _does_speculation_pay,
    _what_is_wrong,
    _why_slow,
    _what_may_be_set,
    _snapshot,
)
"""What agents may ask; a tool's description is its docstring."""

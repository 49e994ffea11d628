"""The commands, declared once: help, dispatch, completion and docs read this table.

A command module offers `configure(parser)`, which adds its arguments, and `run(args)`, which returns an exit code. It
is imported only when the command is used, so that `specdash snapshot` never pays for the dashboard.
"""

from __future__ import annotations

from msgspec import Struct


class Command(Struct, frozen=True):
    """One subcommand: its name, where in this package it is implemented, and one line of help."""

    name: str
    place: str
    help: str

    @property
    def module(self) -> str:
        """The name to import it by."""
        return f"{__package__}.{self.place}"


COMMANDS: tuple[Command, ...] = (
    Command("watch", "watch", "open the dashboard on a running server (the default command)"),
    Command("demo", "demo", "run a real server on the bundled tiny model under load, and watch it"),
    Command("targets", "servers.targets", "list the servers found on this machine"),
    Command("fleet", "servers.fleet", "all servers at once: a row each, the worst first; open, sort, compare"),
    Command("snapshot", "picture.snapshot", "print what the dashboard knows, as text or JSON"),
    Command("export", "picture.export", "Prometheus metrics of the server, on a port or printed once"),
    Command("mcp", "picture.mcp", "let agents ask: a read-only MCP server on standard input and output"),
    Command("status", "picture.status", "print one line for a status bar: does speculation pay?"),
    Command("doctor", "doctor", "show what is reachable, and which server flags enable the missing panels"),
    Command("parse-log", "parse_log", "say everything a llama-server log file can tell"),
    Command("backend", "backend", "run or show the bundled llama.cpp backend"),
    Command("proxy", "proxy", "run, show, hold or resume the bundled Anthropic proxy"),
    Command("apply", "changes.apply", "change settings, restart, verify; roll back by itself when that fails"),
    Command("rollback", "changes.rollback", "go back to the settings before the last apply, or before apply N"),
    Command("applies", "changes.applies", "list the changes that were applied, and how each ended"),
    Command("preflight", "changes.preflight", "check settings before anything stops"),
    Command("env", "changes.env", "show and explain the env files of the services, and their versions"),
    Command("profile", "changes.profile", "named sets of settings: list and show"),
    Command("up", "up", "run the backend and the proxy in the foreground, and keep them running"),
    Command("services", "changes.services", "both as systemd services: install, start, stop, look at; adopt others"),
    Command("check", "check", "judge the server once, or for a while; exit codes as Nagios wants them"),
    Command("baseline", "baseline", "measure decode without speculation, to know what speculation gains"),
    Command("record", "record.record", "keep the record without a screen, as a service"),
    Command("history", "record.history", "query the record, and its size"),
    Command("replay", "record.replay", "the dashboard on the record: what happened before you looked"),
    Command("incident", "record.incident", "write a bundle of what happened, without secrets"),
    Command("gguf", "gguf", "what a GGUF file is, whether it is whole, and what it needs"),
    Command("verify", "bench.verify", "compare outputs with and without speculation, token by token"),
    Command("smoke", "smoke", "a few completions that show whether speculation works at all"),
    Command("repro-empty", "repro_empty", "growing prefixes, cache off and on: are answers empty?"),
    Command("slots", "slots", "list, save, restore and erase what the slots hold"),
    Command("bench", "bench.bench", "measure a running server, and trials of proxy and applies"),
    Command("autotune", "autotune", "UAP's formula for three knobs: a heuristic, not a measurement"),
    Command("simulate", "simulate", "UAP's simulation of that formula: a circular model"),
    Command("tune", "bench.tune", "find the fastest way to speculate by measuring, on the real service"),
    Command("config", "config", "show the configuration and where each value comes from"),
)
DEFAULT_COMMAND = "watch"
MACHINE_OPTIONS = ("--on", "--url", "--target")
"""The options of every command that may name another machine (`cli.on`)."""

"""The commands, declared once: help, dispatch, completion and docs read this table.

A command module offers `configure(parser)`, which adds its arguments, and `run(args)`, which returns an exit code. It
is
imported only when the command is used, so that `specdash snapshot` never pays for the dashboard.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand: its name, the module that implements it, and one line of help."""

    name: str
    module: str
    help: str


COMMANDS: tuple[Command, ...] = (
    Command("watch", "specdash.cli.watch", "open the dashboard on a running server (the default command)"),
    Command("demo", "specdash.cli.demo", "run a real server on the bundled tiny model under load, and watch it"),
    Command("snapshot", "specdash.cli.snapshot", "print what the dashboard knows, as text or JSON"),
    Command("doctor", "specdash.cli.doctor", "say what is reachable and which server flag would light which panel"),
    Command("parse-log", "specdash.cli.parse_log", "say everything a llama-server log file can tell"),
    Command("backend", "specdash.cli.backend", "run or show the bundled llama.cpp backend"),
    Command("proxy", "specdash.cli.proxy", "run, show, hold or resume the bundled Anthropic proxy"),
    Command("apply", "specdash.cli.apply", "change settings, restart, verify; roll back by itself when that fails"),
    Command("rollback", "specdash.cli.rollback", "go back to the settings before the last apply, or before apply N"),
    Command("applies", "specdash.cli.applies", "list the changes that were applied, and how each ended"),
    Command("recover", "specdash.cli.recover", "finish or roll back an apply that was cut short"),
    Command("preflight", "specdash.cli.preflight", "check settings before anything stops"),
    Command("env", "specdash.cli.env", "show, change and compare the env files of the services"),
    Command("profile", "specdash.cli.profile", "named sets of settings: list, show, save, compare"),
    Command("services", "specdash.cli.services", "install, start, stop and watch the backend and proxy services"),
    Command("check", "specdash.cli.check", "judge the server once, or for a while; exit codes as Nagios wants them"),
    Command("baseline", "specdash.cli.baseline", "measure decode without speculation, to know what speculation gains"),
    Command("record", "specdash.cli.record", "keep the record without a screen, as a service"),
    Command("history", "specdash.cli.history", "query the record, its size, and shrink it"),
    Command("replay", "specdash.cli.replay", "the dashboard on the record: what happened before you looked"),
    Command("incident", "specdash.cli.incident", "write a bundle of what happened, without secrets"),
    Command("gguf", "specdash.cli.gguf", "what a GGUF file is, whether it is whole, and what it needs"),
    Command("verify", "specdash.cli.verify", "compare outputs with and without speculation, token by token"),
    Command("smoke", "specdash.cli.smoke", "a few completions that show whether speculation works at all"),
    Command("repro-empty", "specdash.cli.repro_empty", "growing prefixes, cache off and on: are answers empty?"),
    Command("slots", "specdash.cli.slots", "list, save, restore and erase what the slots hold"),
    Command("bench", "specdash.cli.bench", "measure a running server, and trials of proxy and applies"),
    Command("autotune", "specdash.cli.autotune", "UAP's formula for three knobs: a heuristic, not a measurement"),
    Command("simulate", "specdash.cli.simulate", "UAP's simulation of that formula: a circular model"),
    Command("tune", "specdash.cli.tune", "find the fastest way to speculate by measuring, on the real service"),
    Command("config", "specdash.cli.config", "show the configuration and where each value comes from"),
)
DEFAULT_COMMAND = "watch"

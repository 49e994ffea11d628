"""`python -m gpu run …` runs the checks, `check NAME` one of them, `models DIR` writes the models of the kit,
`table RESULTS.json` puts results into docs/performance.md."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpu.kit import Kit
from gpu.runner import CHECKS, run_all, run_check


def main() -> int:
    """The exit code: of `run` 0 with no failure, 1 with one, 3 where time ran out first."""
    parser = argparse.ArgumentParser(prog="python -m gpu", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "check"):
        command = commands.add_parser(name)
        if name == "check":
            command.add_argument("name")
        command.add_argument("--kit", type=Path, required=True)
        command.add_argument("--work", type=Path, required=True)
        command.add_argument("--out", type=Path, required=True)
        command.add_argument("--llama-server", type=Path, required=True)
        command.add_argument("--cpu", action="store_true")
        command.add_argument("--scale", type=float, default=1.0)
        command.add_argument("--checks", default=CHECKS, help="module that names the checks")
        if name == "run":
            command.add_argument("--until", type=float, required=True, help="Unix time")
            command.add_argument("--only", default="")
            command.add_argument("--again", action="store_true")
    commands.add_parser("models").add_argument("directory", type=Path)
    commands.add_parser("table").add_argument("results", type=Path)
    given = parser.parse_args()
    if given.command == "models":
        from gpu.counts import write_counts
        from gpu.models import write_models

        write_models(given.directory)
        write_counts(given.directory)
        return 0
    if given.command == "table":
        from gpu.table import publish

        return publish(given.results)
    kit = Kit(
        given.kit.absolute(), given.work.absolute(), given.out.absolute(), given.llama_server.absolute(),
        given.cpu, given.scale,
    )  # fmt: skip
    if given.command == "check":
        return run_check(kit, given.name, given.checks)
    only = tuple(filter(None, given.only.split(",")))
    return run_all(kit, until=given.until, only=only, again=given.again, module=given.checks)


if __name__ == "__main__":
    sys.exit(main())

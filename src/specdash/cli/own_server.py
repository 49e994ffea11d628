"""A server of a backend env that a command starts for itself, beside what runs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator


def add_own_server(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--env-file", metavar="F", help="start a server of this backend env for it, beside what runs")
    parser.add_argument("--engine", choices=("auto", "llama-server", "xllamacpp"), help="overrides LLAMA_ENGINE")
    parser.add_argument("--force", action="store_true", help="start it also where memory seems not to suffice")


@contextmanager
def own_server(args: argparse.Namespace, name: str, say: Callable[[str], None]) -> Iterator[tuple[str, str | None]]:
    """Address and key of a server of `--env-file` on a free port, gone afterwards. `name` is who wants it."""
    from dataclasses import replace

    from specdash.backend.launch import free_port, read_env_file
    from specdash.bench.baseline_engine import own_engine
    from specdash.bench.verify_engines import own_candidate
    from specdash.cli.demo import private_directory

    with private_directory(f"specdash-{name}-") as directory:
        values = read_env_file(args.env_file)
        log = directory / "engine.log"
        own = own_candidate(values, args.env_file, engine=args.engine, parallel=None, log=log)
        if not args.force:
            own.check_memory()
        settings = own.plan.settings.with_value("port", free_port("127.0.0.1"), f"{name}, a free port")
        plan = replace(own.plan, settings=settings)
        say(f"starting {plan.engine.words} on {plan.settings.url}")
        with own_engine(plan) as place:
            yield place.url, place.key

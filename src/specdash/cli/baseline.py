"""`specdash baseline record|list`: measure decode without speculation, so that its gain is known."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from msgspec.structs import replace

from specdash.cli.options import add_actions, add_settings, print_json, resolved_settings, say, within
from specdash.cli.signals import stopped_by_signals
from specdash.core.config import SERVICE_SETTINGS
from specdash.core.errors import ExitCode, UsageError
from specdash.core.structs import json_of
from specdash.system.text import UNKNOWN, counted, number, table, timestamp

if TYPE_CHECKING:
    import argparse

    from specdash.backend.baseline import BaselineEffort
    from specdash.bench.load.samples import EngineAddress
    from specdash.core.records import Baseline

_ACTIONS = {
    "record": "measure and record a baseline for this model",
    "list": "list the recorded baselines",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parsers = add_actions(parser, _ACTIONS)
    _configure_record(parsers["record"])
    parsers["list"].add_argument("--json", action="store_true", help="print one JSON array")


def _configure_record(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        metavar="URL",
        help="measure on this server; if it speculates, with completions of two tokens, which cannot draft",
    )
    parser.add_argument(
        "--env-file", metavar="F", help="backend env file to start a server from (default: the service's)"
    )
    parser.add_argument("--engine", choices=("auto", "llama-server", "xllamacpp"), help="overrides LLAMA_ENGINE")
    parser.add_argument("--context", metavar="N,…", help="context lengths in tokens (default: 256,2048,8192)")
    parser.add_argument(
        "--concurrency", metavar="N,…", help="requests at the same time (default: 1, and the number of slots)"
    )
    parser.add_argument("--requests", type=int, metavar="N", help="rounds of each measurement (default: 5)")
    parser.add_argument("--tokens", type=int, metavar="N", help="tokens per answer (default: 96)")
    parser.add_argument(
        "--limit", type=float, metavar="SECONDS", help="stop starting measurements after this time (default: 300)"
    )
    parser.add_argument("--force", action="store_true", help="start it even if memory seems too small")
    parser.add_argument("--json", action="store_true", help="print the baselines as one JSON array")
    add_settings(parser, ("api_key_env", "api_key_file", *SERVICE_SETTINGS))


def run(args: argparse.Namespace) -> int:
    """Do what `args.action` says; see `configure` and docs/speedup.md."""
    return {"record": _record, "list": _list}[args.action](args)


def _record(args: argparse.Namespace) -> int:
    effort = _effort(args)
    if args.url is not None:
        from specdash.bench.load.samples import EngineAddress
        from specdash.collect.api_key import resolve_api_key
        from specdash.collect.discover import target_for_url
        from specdash.core.target import normalise_url

        settings = resolved_settings(args)
        key = resolve_api_key(settings["api_key_env"].value, settings["api_key_file"].value, os.environ)
        url = normalise_url(args.url)
        return _measure(EngineAddress(url, key), effort, args, target_for_url(url, os.environ).engine)
    with stopped_by_signals():
        return _beside(args, effort)


def _beside(args: argparse.Namespace, effort: BaselineEffort) -> int:
    from specdash.backend.launch import read_env_file
    from specdash.bench.engines import check_memory, own_engine, plan_beside
    from specdash.cli.demo import private_directory
    from specdash.core.paths import backend_env_file

    file = args.env_file or _service_file(args) or str(backend_env_file(os.environ))
    with private_directory("specdash-baseline-") as directory:
        values = read_env_file(file)
        plan = plan_beside(values, file, directory / "engine.log", "baseline", engine=args.engine, speculates=False)
        if not args.force:
            check_memory(values)
        say(f"starting {plan.engine.words} without speculation on {plan.settings.url}")
        with own_engine(plan) as place:
            return _measure(place, effort, args)


def _service_file(args: argparse.Namespace) -> str | None:
    from specdash.control.deployment import find_deployment

    service = find_deployment(resolved_settings(args)).backend
    return str(service.env_file) if service is not None and service.env_file.is_file() else None


def _measure(place: EngineAddress, effort: BaselineEffort, args: argparse.Namespace, engine: str | None = None) -> int:
    from specdash.backend.baseline import STEP_ROUNDS, MeasuredServer, add_baseline, gpu_names, measure
    from specdash.bench.report import RunningLine

    kept: list[Baseline] = []
    code, running, head = ExitCode.OK, RunningLine(), ""

    def show(cell: str) -> None:
        nonlocal head
        head = f"  {cell:<37}"
        running.show(head)

    def keep(baseline: Baseline) -> None:
        add_baseline(baseline, os.environ)
        kept.append(baseline)
        running.end()
        low, high = number(baseline.low, 1), number(baseline.high, 1)
        print(f"{head} {number(baseline.decode_rate, 1):>8} tok/s [{low}, {high}]", file=sys.stderr, flush=True)

    try:
        with MeasuredServer(place.url, place.key, engine=engine, gpu=gpu_names()) as server:
            if server.speculates:
                say(f"{server.url} speculates: measured by completions of two tokens, which cannot draft")
                rounds = effort.rounds if args.requests is not None else STEP_ROUNDS
                effort = replace(effort, rounds=rounds, tokens=2)
            report = measure(server, effort, keep, show)
        for line in report.left_out:
            say(f"not measured: {line}")
        code = ExitCode.OK if report.measured else ExitCode.BAD_INPUT
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
        running.end()
        say(f"stopped; {counted(len(kept), 'baseline')} kept")
    finally:
        running.end()
        if args.json:
            print_json(json_of(kept))
        elif kept:
            print("\n".join(_table(kept)))
    return code


def _effort(args: argparse.Namespace) -> BaselineEffort:
    from specdash.backend.baseline import CONTEXTS, LIMIT_S, ROUNDS, TOKENS, BaselineEffort

    return BaselineEffort(
        contexts=_numbers("--context", args.context, 1, 1 << 24) or CONTEXTS,
        concurrencies=_numbers("--concurrency", args.concurrency, 1, 256),
        rounds=within("--requests", args.requests, ROUNDS, 1, 100),
        tokens=within("--tokens", args.tokens, TOKENS, 8, 4096),
        limit_s=float(within("--limit", args.limit, LIMIT_S, 1, 86400)),
    )


def _numbers(option: str, text: str | None, least: int, most: int) -> tuple[int, ...]:
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and least <= int(part) <= most for part in parts):
        raise UsageError(f"{option} {text}: must be numbers from {least} to {most}, such as 256,2048")
    return tuple(sorted({int(part) for part in parts}))


def _list(args: argparse.Namespace) -> int:
    from specdash.backend.baseline import read_baselines

    found = read_baselines(os.environ)
    if args.json:
        print_json(json_of(found))
    elif not found:
        print("no baseline is recorded; `specdash baseline record` measures one")
    else:
        print("\n".join(_table(found)))
    return ExitCode.OK


def _table(baselines: list[Baseline] | tuple[Baseline, ...]) -> list[str]:
    ordered = sorted(
        baselines, key=lambda baseline: (baseline.model, baseline.engine, baseline.concurrency, baseline.context)
    )
    rows = [
        (
            baseline.model,
            baseline.engine or UNKNOWN,
            str(baseline.context),
            str(baseline.concurrency),
            number(baseline.decode_rate, 1),
            f"{number(baseline.low, 1)} to {number(baseline.high, 1)}",
            str(baseline.requests),
            baseline.method,
            timestamp(baseline.at, seconds=False),
        )
        for baseline in ordered
    ]
    return table(
        [("model", "engine", "context", "at once", "tok/s", "95 % interval", "requests", "method", "recorded"), *rows]
    )

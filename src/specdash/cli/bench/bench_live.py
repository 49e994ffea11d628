"""`specdash bench live`: a running server measured on prompts (docs/measuring.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.cli.options import add_settings, one_target, resolved_settings, within
from specdash.cli.signals import stopped_by_signals
from specdash.core.errors import ExitCode, SpecdashError, UsageError

if TYPE_CHECKING:
    import argparse

    from specdash.bench.live import LiveReport
    from specdash.bench.load.contact import ServerDescription
    from specdash.bench.load.drive import MeasureOptions
    from specdash.bench.load.samples import BenchSample, EngineAddress, WorkloadPrompt
    from specdash.bench.report import Results
    from specdash.core.target import Target

RUNS = 5
MAX_TOKENS = 256
TIMEOUT_S = 600.0
_MOST_RUNS = 10_000
_MOST_TOKENS = 1_000_000
_MOST_AT_ONCE = 512
_MOST_RATE = 1000.0


def configure(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, ("url", "model", "log", "api_key_env", "api_key_file"))
    parser.add_argument("--runs", type=int, default=RUNS, metavar="N", help=f"of each prompt (default: {RUNS})")
    parser.add_argument(
        "--max-tokens", type=int, default=MAX_TOKENS, metavar="N", help=f"of each answer (default: {MAX_TOKENS})"
    )
    parser.add_argument(
        "--class", dest="kinds", action="append", default=[], metavar="CLASS",
        help="coding, pattern, prose, agentic, or a class of --prompts; may be repeated (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--prompts", metavar="FILE", help="your own: JSON Lines, JSON, or plain text (docs/measuring.md)"
    )
    load = parser.add_mutually_exclusive_group()
    load.add_argument("--concurrency", type=int, default=1, metavar="N", help="requests at a time (default: 1)")
    load.add_argument("--rate", type=float, metavar="R", help="requests a second, due whether or not others have ended")
    parser.add_argument("--constant", action="store_true", help="with --rate: evenly spaced, not as a Poisson process")
    parser.add_argument("--cache", choices=("on", "off"), default="off", help="may prompts be cached (default: off)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="default: 0")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of order, arrivals and sampling (default: 1)")
    parser.add_argument("--force-length", action="store_true", help="go on past the end of the text (ignore_eos)")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, metavar="S", help="longest silence (default: 600)")
    parser.add_argument("--out", metavar="DIR", help="results folder (default: one of its own in the state folder)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    from specdash.bench.load.contact import look
    from specdash.bench.load.samples import EngineAddress
    from specdash.bench.report import Results

    options = _options(args)
    prompts, source = _prompts(args)
    with stopped_by_signals():
        target = one_target(resolved_settings(args))
        place, engine = look(EngineAddress(target.url, target.api_key, target.model, target.log))
        with Results.new("live", args.out) as results:
            live = _measured(place, engine, prompts, source, options, results, target)
            return _told(live, results, as_json=args.json)


def _measured(
    place: EngineAddress,
    engine: ServerDescription,
    prompts: tuple[WorkloadPrompt, ...],
    source: str,
    options: MeasureOptions,
    results: Results,
    target: Target,
) -> LiveReport:
    from specdash.bench.compare.machine import MachineWatch
    from specdash.bench.live import LiveReport
    from specdash.bench.load.contact import again
    from specdash.bench.load.drive import Interrupted, measure
    from specdash.bench.report import StepProgress, sample_json

    progress = StepProgress(len(prompts) * options.runs)
    done = 0
    origin: float | None = None

    def noted(sample: BenchSample) -> None:
        nonlocal done, origin
        done += 1
        origin = origin if origin is not None else sample.intended_s
        results.add(sample_json(sample, origin))
        progress.show(done, f"{sample.prompt}, run {sample.run + 1}" + (f": {sample.error}" if sample.failed else ""))

    interrupted = False
    progress.show(0, "warming up")
    try:
        with MachineWatch() as machine:
            try:
                measured = measure(place, prompts, options, noted)
            except Interrupted as stopped:
                measured, interrupted = stopped.run, True
        engine = again(place, engine)
    except SpecdashError:
        results.discard()
        raise
    finally:
        progress.end()
    return LiveReport(
        measured, engine, options, prompts, machine, source, interrupted, target.parameters, engine_words=target.engine
    )


def _told(live: LiveReport, results: Results, *, as_json: bool) -> int:
    """Print and save; the exit code."""
    import sys

    from specdash.bench.live import report

    if not live.run.samples:
        results.discard()
        print("specdash: stopped before the first answer", file=sys.stderr)
        return ExitCode.INTERRUPTED
    found = report(live)
    found.save(results)
    found.lines.append(f"\nresults: {results.directory}")
    found.show(results, as_json=as_json)
    if results.trouble is not None:
        raise results.trouble
    if live.interrupted:
        return ExitCode.INTERRUPTED
    if not live.run.answered:
        raise SpecdashError(f"every request failed: {live.run.samples[-1].error}")
    return ExitCode.OK if live.run.complete else ExitCode.FAILED


def _prompts(args: argparse.Namespace) -> tuple[tuple[WorkloadPrompt, ...], str]:
    from specdash.bench.load.workloads import CLASSES, bundled, read_prompts

    if args.prompts is None:
        return bundled(args.kinds or CLASSES), "bundled"
    return read_prompts(args.prompts, args.kinds), "a file"


def _options(args: argparse.Namespace) -> MeasureOptions:
    from specdash.bench.load.drive import MeasureOptions

    rate = within("--rate", args.rate, None, 0.001, _MOST_RATE)
    if rate is None and args.constant:
        raise UsageError("--constant says how requests come at a rate: give --rate, too")
    return MeasureOptions(
        runs=within("--runs", args.runs, RUNS, 1, _MOST_RUNS),
        max_tokens=within("--max-tokens", args.max_tokens, MAX_TOKENS, 2, _MOST_TOKENS),
        temperature=within("--temperature", args.temperature, 0.0, 0.0, 100.0),
        seed=args.seed,
        concurrency=within("--concurrency", args.concurrency, 1, 1, _MOST_AT_ONCE),
        rate=rate,
        constant=args.constant,
        cache=args.cache == "on",
        force_length=args.force_length,
        positions=rate is None and args.concurrency == 1,
        silence_s=within("--timeout", args.timeout, TIMEOUT_S, 0.1, 86400.0),
    )

"""`specdash verify`: the same answers with and without speculation, token by token (docs/verify.md)."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.cli.options import add_settings, resolved_settings, within
from specdash.cli.signals import stopped_by_signals
from specdash.core.errors import ExitCode, InputError, SpecdashError, UsageError

if TYPE_CHECKING:
    import argparse

    from specdash.bench.verify_engines import Own, Running
    from specdash.bench.verify_run import Effort, Verification
    from specdash.cli.verify_view import Printer


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--env-file", metavar="FILE", help="the backend env of both engines (default: the service's)")
    parser.add_argument(
        "--set",
        action="extend",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="the candidate's settings; !KEY unsets",
    )
    parser.add_argument("--profile", metavar="NAME", help="the candidate's settings of a profile; --set wins over it")
    parser.add_argument(
        "--baseline", action="extend", nargs="+", default=[], metavar="KEY=VALUE", help="settings of the baseline, too"
    )
    parser.add_argument("--url", metavar="URL", help="a running server is the candidate")
    parser.add_argument("--baseline-url", metavar="URL", help="a running server without speculation is the baseline")
    parser.add_argument("--engine", choices=("auto", "llama-server", "xllamacpp"), help="overrides LLAMA_ENGINE")
    parser.add_argument("--prompts", metavar="FILE", help="your own prompts: JSON, JSON Lines, or texts between ---")
    parser.add_argument("--tokens", type=int, metavar="N", help="tokens of each answer (default: 256)")
    parser.add_argument("--parallel", type=int, metavar="N", help="requests at once (default: the number of slots)")
    parser.add_argument("--runs", type=int, metavar="N", help="how often the candidate answers each (default: 1)")
    parser.add_argument("--epsilon", type=float, metavar="NATS", help="largest gap of a near tie (default: 0.1)")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="the longest for one answer (default: 600)")
    parser.add_argument("--strict", action="store_true", help="near ties, and speculation that was not used, fail too")
    parser.add_argument("--no-context", action="store_true", help="show no text around a difference")
    parser.add_argument("--force", action="store_true", help="also where memory seems not to suffice")
    parser.add_argument("--json", action="store_true", help="print JSON (docs/verify.md)")
    add_settings(parser, ("api_key_env", "api_key_file", "manager", "backend_service", "backend_env_file"))


def run(args: argparse.Namespace) -> int:
    """Compare and print."""
    from specdash.bench.verify import Side
    from specdash.bench.verify_prompts import BUILT_IN, read_prompts
    from specdash.bench.verify_run import Verification
    from specdash.cli.verify_view import Printer, as_json, failed, text

    effort = _effort(args)
    limit = within("--timeout", args.timeout, 600.0, 1.0, 86400.0)
    prompts = read_prompts(args.prompts) if args.prompts is not None else BUILT_IN
    _check_words(args)
    with stopped_by_signals(), tempfile.TemporaryDirectory(prefix="specdash-verify-") as directory:
        baseline, candidate, notes = _sides(args, effort, Path(directory))
        printer = Printer()
        printer.say(f"baseline: {baseline.words}")
        printer.say(f"candidate: {candidate.words}")
        done = baseline.steady & candidate.steady
        verification = Verification(prompts, effort, printer, done)
        verification.report.notes += notes
        code = _carried_out(verification, baseline, candidate, limit, printer)
    words = {Side.BASELINE: baseline.words, Side.CANDIDATE: candidate.words}
    if args.json:
        print(as_json(verification, words, context=not args.no_context, strict=args.strict))
    else:
        print("\n".join(text(verification, context=not args.no_context, strict=args.strict)))
    if code is ExitCode.OK and failed(verification, strict=args.strict):
        return ExitCode.FAILED
    return code


def _carried_out(
    verification: Verification, baseline: Own | Running, candidate: Own | Running, limit: float, printer: Printer
) -> ExitCode:
    try:
        verification.run(lambda: baseline.open(limit), lambda: candidate.open(limit))
    except KeyboardInterrupt:
        printer.say("stopped; this is what was found so far")
        return ExitCode.INTERRUPTED
    except SpecdashError as error:
        if not verification.report.runs:
            printer.end()
            raise
        printer.say(str(error))
        return error.exit_code
    finally:
        printer.end()
    return ExitCode.OK


def _sides(args: argparse.Namespace, effort: Effort, directory: Path) -> tuple[Own | Running, Own | Running, list[str]]:
    """Baseline, candidate, and what is to be noted of the two."""
    from specdash.bench.verify_engines import Own, Running, unlike

    key = _key(args)
    running = Running(normalised(args.url), key, "the candidate") if args.url is not None else None
    if args.baseline_url is not None:
        baseline: Own | Running = Running(normalised(args.baseline_url), key, "the baseline")
    else:
        baseline = _own_baseline(args, effort, directory, running)
    candidate: Own | Running = running or _own_candidate(args, effort, directory)
    notes = unlike(baseline, candidate) if isinstance(baseline, Own) and isinstance(candidate, Own) else []
    if isinstance(candidate, Own) and candidate.synthetic:
        notes.append("the candidate's acceptance is synthetic (--spec-synth-*), which makes its text garbage by design")
    if not args.force:
        for one in (baseline, candidate):
            if isinstance(one, Own):
                one.check_memory()
    return baseline, candidate, notes


def _own_baseline(args: argparse.Namespace, effort: Effort, directory: Path, running: Running | None) -> Own:
    from specdash.backend.launch import read_env_file
    from specdash.bench.verify_engines import own_baseline

    file = _env_file(args, running)
    values = _changed(read_env_file(file), args.baseline, "--baseline")
    own = own_baseline(values, file, engine=args.engine, parallel=effort.parallel, log=directory / "baseline.log")
    if running is not None:
        _check_same_model(running, own, file)
    return own


def _own_candidate(args: argparse.Namespace, effort: Effort, directory: Path) -> Own:
    from specdash.backend.launch import read_env_file
    from specdash.bench.verify_engines import own_candidate
    from specdash.control.profiles import find_profile
    from specdash.core.changes import Role

    file = _env_file(args, None)
    values = read_env_file(file)
    if args.profile is not None:
        values = find_profile(args.profile, os.environ).changes.after(Role.BACKEND, values)
    values = _changed(values, args.set, "--set")
    return own_candidate(values, file, engine=args.engine, parallel=effort.parallel, log=directory / "candidate.log")


def _changed(values: dict[str, str], words: list[str], option: str) -> dict[str, str]:
    from specdash.core.changes import Role, parse_assignments

    try:
        return parse_assignments(words, Role.BACKEND).after(Role.BACKEND, values)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None


def _env_file(args: argparse.Namespace, running: Running | None) -> str:
    """The env file that is named, else the one a running server was started from, else the service's, else ours."""
    from specdash.collect.discover import recorded_env_file
    from specdash.control.deployment import find_deployment
    from specdash.core.paths import backend_env_file

    if args.env_file is not None:
        return str(args.env_file)
    if running is not None:
        recorded = recorded_env_file(running.url, os.environ)
        if recorded is not None:
            return recorded
    service = find_deployment(resolved_settings(args)).backend
    if service is not None and service.env_file.is_file():
        return str(service.env_file)
    file = backend_env_file(os.environ)
    if running is not None and not file.is_file():
        raise InputError(
            f"{running.url} left no record of its env file, so no baseline can be started beside it; name the file "
            "with --env-file, or a server without speculation with --baseline-url"
        )
    return str(file)


def _check_same_model(running: Running, own: Own, file: str) -> None:
    """A baseline of another model would differ by nature. Raises `InputError`, or what a server that does not answer
    raises."""
    with running.open(10.0) as server:
        told = Path(server.model).name
    wanted = own.plan.settings.model
    if wanted is not None and told and Path(wanted).name != told:
        raise InputError(
            f"{running.url} runs {told}, and {file} names {Path(wanted).name}: no baseline can be made of it; name the "
            "right file with --env-file, or a server without speculation with --baseline-url"
        )


def _key(args: argparse.Namespace) -> str | None:
    from specdash.collect.api_key import resolve_api_key
    from specdash.collect.discover import target_for_url

    settings = resolved_settings(args)
    key = resolve_api_key(settings["api_key_env"].value, settings["api_key_file"].value, os.environ)
    if key is None and args.url is not None:
        return target_for_url(normalised(args.url), os.environ).api_key
    return key


def normalised(url: str) -> str:
    """The address as all of specdash writes it."""
    from specdash.llama.address import normalise_url

    return normalise_url(url)


def _check_words(args: argparse.Namespace) -> None:
    if args.url is not None and (args.set or args.profile is not None):
        raise UsageError("--set and --profile are for an engine that specdash starts; leave --url out")
    if args.baseline_url is not None and args.baseline:
        raise UsageError("--baseline is for an engine that specdash starts; leave --baseline-url out")


def _effort(args: argparse.Namespace) -> Effort:
    from specdash.bench.verify import EPSILON
    from specdash.bench.verify_run import TOKENS, Effort

    return Effort(
        tokens=within("--tokens", args.tokens, TOKENS, 8, 8192),
        parallel=within("--parallel", args.parallel, None, 1, 256),
        runs=within("--runs", args.runs, 1, 1, 20),
        epsilon=within("--epsilon", args.epsilon, EPSILON, 0.0, 10.0),
    )

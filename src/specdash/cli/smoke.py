"""`specdash smoke`: a few completions that show whether speculation works at all (docs/smoke.md)."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from specdash.cli.options import add_settings, one_target, resolved_settings, within
from specdash.cli.signals import stopped_by_signals
from specdash.core.errors import ExitCode, SpecdashError
from specdash.core.start_check import Drafting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.bench.smoke import Check
    from specdash.bench.smoke_run import Effort, Smoke
    from specdash.core.target import Target


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_settings(parser, ("url", "model", "api_key_env", "api_key_file"))
    parser.add_argument("-n", dest="identical", type=int, metavar="N", help="identical prompts to send (default: 5)")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="tokens of each answer (default: 64)")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="the longest for one answer (default: 120)")
    parser.add_argument("--ubatch", type=int, metavar="N", help="the server's --ubatch-size (default: its env, or 512)")
    parser.add_argument(
        "--expect-speculation",
        action=argparse.BooleanOptionalAction,
        help="fail unless it speculates, or if it does (default: as it was started, where that is known)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/smoke.md)")


def run(args: argparse.Namespace) -> int:
    """Send, judge and print."""
    from specdash.bench.smoke import Status
    from specdash.bench.smoke_run import Smoke

    effort = _effort(args)
    target = one_target(resolved_settings(args))
    expected, because = _expectation(args, target)
    effort, code = _with_batch(args, effort, target), ExitCode.OK
    progress = _Progress()
    test = Smoke(
        target.url,
        effort,
        expected,
        because,
        target.api_key,
        target.model,
        process=lambda: _process(target),
        on_step=progress,
    )
    with test, stopped_by_signals():
        try:
            test.run()
        except KeyboardInterrupt:
            code = ExitCode.INTERRUPTED
        finally:
            progress.end()
        checks = test.checks
        if code is ExitCode.OK and any(check.status is Status.FAIL for check in checks):
            code = ExitCode.FAILED
        print(_as_json(test, checks, code) if args.json else "\n".join(_as_text(test, checks, code)))
    return code


def _as_text(test: Smoke, checks: list[Check], code: ExitCode) -> list[str]:
    from specdash.core.env_edit import printable

    seen = test.looks[-1].instance if test.looks else None
    facts = [test.url, *((test.model,) if test.model else ())]
    if seen is not None:
        facts += [one for one in (seen.model and os.path.basename(seen.model), seen.build) if one]  # noqa: PTH119
    lines = [printable("  ".join(facts)), ""]
    lines += [printable(f"{check.status}  {check.name:<12} {check.words}") for check in checks]
    ends = {ExitCode.OK: "PASS", ExitCode.FAILED: "FAIL", ExitCode.INTERRUPTED: "STOPPED: judged by what came so far"}
    return [*lines, "", ends[code]]


def _as_json(test: Smoke, checks: list[Check], code: ExitCode) -> str:
    completions = [
        {name: value for name, value in asdict(one).items() if name not in ("text", "reasoning")}
        | {"text_characters": len(one.text), "reasoning_characters": len(one.reasoning)}
        for one in test.completions
    ]
    told: dict[str, Any] = {
        "url": test.url,
        "model": test.model,
        "passed": code is ExitCode.OK,
        "stopped": code is ExitCode.INTERRUPTED,
        "checks": [
            {"name": one.name, "status": str(one.status), "words": one.words, "figures": one.figures} for one in checks
        ],
        "completions": completions,
        "instance": asdict(test.looks[-1].instance) if test.looks else None,
    }
    return json.dumps(told, indent=1, allow_nan=False)


def _expectation(args: argparse.Namespace, target: Target) -> tuple[bool | None, str]:
    """Whether it should speculate, and what says so."""
    if args.expect_speculation is not None:
        return args.expect_speculation, f"--{'' if args.expect_speculation else 'no-'}expect-speculation"
    check = target.start_check
    if check is not None and check.drafting is Drafting.FAILED:
        return True, f"since its start: {check.because}; {check.fix}"
    asked = dict(target.parameters).get("spec-type")
    if asked is not None:
        return asked != "none", f"started with spec-type {asked}"
    values = _recorded_env(target)
    if values is None:
        return None, ""
    from specdash.backend.model_files import detect
    from specdash.backend.settings import settings_from_env

    try:
        types = settings_from_env(values, detect=detect).spec_types
    except SpecdashError:
        return None, ""
    return bool(types), f"its env file asks for {','.join(types) or 'none'}"


def _with_batch(args: argparse.Namespace, effort: Effort, target: Target) -> Effort:
    from dataclasses import replace

    from specdash.backend.settings import settings_from_env

    if args.ubatch is not None:
        return replace(effort, batch=within("--ubatch", args.ubatch, 512, 1, 1 << 20))
    values = _recorded_env(target)
    try:
        found = settings_from_env(values).value("ubatch-size") if values is not None else None
    except SpecdashError:
        found = None
    return replace(effort, batch=found) if isinstance(found, int) and found > 0 else effort


def _recorded_env(target: Target) -> Mapping[str, str] | None:
    from specdash.backend.launch import read_env_file
    from specdash.collect.discover import recorded_env_file

    file = recorded_env_file(target.url, os.environ)
    try:
        return read_env_file(file) if file is not None else None
    except SpecdashError:
        return None


def _process(target: Target) -> tuple[int, float] | None:
    """Pid and start of the process that has the server's address now, where that is on this machine."""
    import psutil

    from specdash.collect.discover import target_for_url

    pid = target_for_url(target.url, os.environ).pid if target.pid is not None else None
    try:
        return (pid, psutil.Process(pid).create_time()) if pid is not None else None
    except psutil.Error:
        return None


def _effort(args: argparse.Namespace) -> Effort:
    from specdash.bench.smoke_run import IDENTICAL, LIMIT_S, TOKENS, Effort

    return Effort(
        identical=within("-n", args.identical, IDENTICAL, 1, 1000),
        tokens=within("--max-tokens", args.max_tokens, TOKENS, 8, 8192),
        limit_s=within("--timeout", args.timeout, LIMIT_S, 1.0, 86400.0),
    )


class _Progress:
    """The running completion on a terminal's stderr, in place."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()

    def __call__(self, words: str, done: int, planned: int) -> None:
        """Take one report."""
        if self._live:
            print(f"\r\x1b[K  {done + 1}/{planned}  {words}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Clear the line."""
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

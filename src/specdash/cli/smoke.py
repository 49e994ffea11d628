"""`specdash smoke`: a few completions that show whether speculation works at all (docs/verify.md)."""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING, Any

from specdash.cli.options import add_settings, one_target, resolved_settings, within
from specdash.cli.signals import stopped_by_signals
from specdash.core.errors import ExitCode, SpecdashError
from specdash.core.records import Drafting
from specdash.core.structs import json_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.bench.smoke import Check, Smoke, SmokeEffort
    from specdash.core.target import Target


def configure(parser: argparse.ArgumentParser) -> None:
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
    parser.add_argument("--json", action="store_true", help="print JSON (docs/verify.md)")


def run(args: argparse.Namespace) -> int:
    from specdash.bench.report import RunningLine
    from specdash.bench.smoke import Smoke, SmokeStatus

    effort = _effort(args)
    target = one_target(resolved_settings(args))
    expected, because = _expectation(args, target)
    effort, code = _with_batch(args, effort, target), ExitCode.OK
    running = RunningLine()
    test = Smoke(
        target.url,
        effort,
        expected,
        because,
        target.api_key,
        target.model,
        process=lambda: _process(target),
        on_step=lambda words, done, planned: running.show(f"  {done + 1}/{planned}  {words}"),
    )
    with stopped_by_signals():
        try:
            test.run()
        except KeyboardInterrupt:
            code = ExitCode.INTERRUPTED
        finally:
            running.end()
        checks = test.checks
        if code is ExitCode.OK and any(check.status is SmokeStatus.FAIL for check in checks):
            code = ExitCode.FAILED
        print(_as_json(test, checks, code) if args.json else "\n".join(_as_text(test, checks, code)))
    return code


def _as_text(test: Smoke, checks: list[Check], code: ExitCode) -> list[str]:
    from specdash.core.env_edit import printable

    seen = test.looks[-1].instance if test.looks else None
    facts = [test.url, *((test.model,) if test.model else ())]
    if seen is not None:
        facts += [name for name in (seen.model and os.path.basename(seen.model), seen.build) if name]  # noqa: PTH119
    lines = [printable("  ".join(facts)), ""]
    lines += [printable(f"{check.status}  {check.name:<12} {check.words}") for check in checks]
    ends = {ExitCode.OK: "PASS", ExitCode.FAILED: "FAIL", ExitCode.INTERRUPTED: "STOPPED: judged by what came so far"}
    return [*lines, "", ends[code]]


def _as_json(test: Smoke, checks: list[Check], code: ExitCode) -> str:
    document: dict[str, Any] = {
        **json_of(test, "url model"),
        "passed": code is ExitCode.OK,
        "stopped": code is ExitCode.INTERRUPTED,
        "checks": json_of(checks),
        "completions": [
            {name: value for name, value in json_of(completion).items() if name not in ("text", "reasoning")}
            | {"text_characters": len(completion.text), "reasoning_characters": len(completion.reasoning)}
            for completion in test.completions
        ],
        "instance": json_of(test.looks[-1].instance) if test.looks else None,
    }
    return json.dumps(document, indent=1, allow_nan=False)


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
    from specdash.backend.auto import settings_of

    try:
        types = settings_of(values, os.environ).spec_types
    except SpecdashError:
        return None, ""
    return bool(types), f"its env file asks for {','.join(types) or 'none'}"


def _with_batch(args: argparse.Namespace, effort: SmokeEffort, target: Target) -> SmokeEffort:
    from msgspec.structs import replace

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
    from specdash.collect.discover import target_for_url
    from specdash.system.processes import began

    pid = target_for_url(target.url, os.environ).pid if target.pid is not None else None
    started = began(pid) if pid is not None else None
    return (pid, started) if pid is not None and started is not None else None


def _effort(args: argparse.Namespace) -> SmokeEffort:
    from specdash.bench.smoke import IDENTICAL, LIMIT_S, TOKENS, SmokeEffort

    return SmokeEffort(
        identical=within("-n", args.identical, IDENTICAL, 1, 1000),
        tokens=within("--max-tokens", args.max_tokens, TOKENS, 8, 8192),
        limit_s=within("--timeout", args.timeout, LIMIT_S, 1.0, 86400.0),
    )

"""`specdash verify`: the same answers with and without speculation, token by token (docs/verify.md)."""

from __future__ import annotations

import json
import os
import tempfile
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.bench.report import StepProgress
from specdash.bench.verify import Agreement, SendMode, VerifiedAnswer, VerifySide, advice, cause
from specdash.bench.verify_run import context as before_difference
from specdash.cli.options import add_settings, print_answer, resolved_settings, within
from specdash.cli.signals import stopped_by_signals
from specdash.core.env_edit import printable
from specdash.core.errors import ExitCode, InputError, SpecdashError, UsageError
from specdash.core.structs import json_of
from specdash.core.target import normalise_url
from specdash.system.text import percent

if TYPE_CHECKING:
    import argparse

    from specdash.bench.verify import TokenDifference
    from specdash.bench.verify_run import EngineInPlace, OwnedEngine, Verification, VerifyEffort


# What `specdash verify` prints: progress, the report as text, and as JSON.

_SHOWN = 8
"""Differences that are printed in full."""
_CONTEXT_CHARACTERS = 72


class VerifyPrinter:
    """What came of a verification, as text and as JSON. `context` shows the text around a difference."""

    def __init__(self, verification: Verification, *, context: bool, strict: bool) -> None:
        self._found = verification
        self._report = verification.report
        self._texts: dict[Any, str] = {**verification.texts} if context else {}
        self._strict = strict

    @property
    def failed(self) -> bool:
        """Whether the outcome is a failure."""
        unused = self._speculates and not self._report.drafted
        return self._damaged or (self._strict and (self._report.verdict is not Agreement.IDENTICAL or unused))

    @property
    def _damaged(self) -> bool:
        bad = (None, Agreement.DAMAGED, Agreement.UNDECIDED)
        return self._report.verdict in bad or bool(self._report.stopped)

    @property
    def _speculates(self) -> bool:
        candidate = self._found.facts.get(VerifySide.CANDIDATE)
        return bool(candidate and candidate.speculates)

    def text(self) -> list[str]:
        report, at_once = self._report, self._found.at_once
        lines = []
        if self._found.tokens:
            sizes = [len(token) for token in self._found.tokens]
            lines.append(
                f"{len(sizes)} prompts of {min(sizes)} to {max(sizes)} tokens, {self._found.effort.tokens} tokens each"
                f", greedy{f', {at_once} at once in parallel' if at_once > 1 else ''}"
            )
        lines += [*self._table(), *self._differences()]
        if report.drafted:
            share = percent(report.accepted / report.drafted)
            lines.append(f"drafts: {report.accepted:,} of {report.drafted:,} tokens accepted ({share})")
        lines += [f"note: {note}" for note in report.notes]
        return [*lines, *(f"advice: {name}" for name in self._advice()), self._outcome()]

    def _advice(self) -> list[str]:
        slots = min((fact.slots for fact in self._found.facts.values()), default=0)
        return advice(self._report, slots=slots, speculates=self._speculates, done=self._found.done)

    def _table(self) -> list[str]:
        names = [prompt.name for prompt in self._found.prompts]
        width = max(map(len, names), default=0)
        lines = [""]
        for side, way in product(VerifySide, SendMode):
            found = [run for run in self._report.runs if run.side is side and run.way is way]
            if not found:
                continue
            lines.append(f"{side}, {way}{' (against its first answers)' if side is VerifySide.BASELINE else ''}")
            if all(run.verdict is Agreement.IDENTICAL for run in found):
                lines[-1] += f": {len(found)} of {len(found)} MATCH, {found[0].length} tokens each"
                continue
            for index in dict.fromkeys(run.prompt for run in found):
                same = [run for run in found if run.prompt == index]
                lines.append(f"  {names[index]:<{width}}  {'; '.join(dict.fromkeys(map(_words, same)))}")
        return [*lines, ""] if self._report.runs else []

    def _differences(self) -> list[str]:
        alike: dict[tuple[Any, ...], list[VerifiedAnswer]] = {}
        for run in self._report.runs:
            if run.differences:
                kind = (run.verdict is Agreement.BATCH_SHAPE, run.side is VerifySide.BASELINE, run.telling)
                alike.setdefault(kind, []).append(run)
        lines = []
        for _, runs in sorted(alike.items(), key=lambda item: item[0][:2])[:_SHOWN]:
            run = runs[0]
            names = list(dict.fromkeys(self._found.prompts[each.prompt].name for each in runs))
            ways = list(dict.fromkeys(str(each.way) for each in runs))
            lines.append(f"{', '.join(names)}: the {run.side} {'; '.join(ways)}: {run.verdict}")
            lines.append(f"  {cause(run, self._found.effort.epsilon)}")
            if run.telling is not None:
                lines += [f"  {words}" for words in self._difference(run.telling, run)]
            if len(run.differences) > 1:
                lines.append(f"  {len(run.differences)} differences, the first at token {run.matched + 1}")
            if run.verdict is Agreement.BATCH_SHAPE and run.checked < run.length:
                lines.append(f"  judged up to token {run.checked} of {run.length}: too many near ties to follow")
            lines.append("")
        if len(alike) > _SHOWN:
            lines += [f"and {len(alike) - _SHOWN} more kinds of differences; --json has them all", ""]
        return lines

    def _difference(self, difference: TokenDifference, run: VerifiedAnswer) -> list[str]:
        expected, got = self._token(difference.expected), self._token(difference.got)
        who = "candidate" if run.side is VerifySide.CANDIDATE else "this time"
        lines = [f"token {difference.at + 1}: baseline {expected}, {who} {got}"]
        if before := self._texts.get(before_difference(run.answer.tokens[: difference.at]), ""):
            lines.append(f"after: …{_quoted(before[-_CONTEXT_CHARACTERS:])}")
        if difference.expected is not None and difference.got is not None:
            lines.append(_preference(difference.gap))
        if difference.candidate_first is not None:
            own = self._token(difference.candidate_first)
            lines.append(f"the candidate, reading the same text as a prompt, takes {own}")
        return lines

    def _token(self, token: int | None) -> str:
        if token is None:
            return "(end)"
        text = self._texts.get((token,))
        return f"{token} {_quoted(text)}" if text is not None else f"{token}"

    def _outcome(self) -> str:
        report = self._report
        judged = report.of(VerifySide.CANDIDATE)
        done, verdict = len(judged), report.verdict
        if report.stopped:
            return f"STOPPED: {done} of {report.planned} answers of the candidate were judged"
        if verdict is None:
            return "NOTHING COMPARED"
        share = f"{sum(run.verdict is verdict for run in judged)} of {done} answers"
        words = {
            Agreement.IDENTICAL: f"IDENTICAL: all {done} answers of the candidate are the baseline's, token by token",
            Agreement.BATCH_SHAPE: f"BATCH-SHAPE EFFECTS ONLY: {share} differ, each at near ties alone",
            Agreement.UNDECIDED: f"UNDECIDED: {share} differ, but the baseline differs from itself as much",
            Agreement.DAMAGED: f"DAMAGED: {share} of the candidate differ by more than rounding explains",
        }[verdict]
        return f"{words}{' (a failure with --strict)' if self.failed and not self._damaged else ''}"

    def as_json(self, words: dict[VerifySide, str]) -> dict[str, Any]:
        """The report as one JSON object (docs/verify.md)."""
        report, found = self._report, self._found
        return {
            "verdict": report.verdict,
            "failed": self.failed,
            "stopped": report.stopped,
            **{
                str(side): {"words": words[side], **json_of(facts, "url model build slots speculates")}
                for side, facts in found.facts.items()
            },
            **json_of(found.effort, "tokens runs epsilon"),
            "parallel": found.at_once,
            "prompts": [
                {"name": prompt.name, "tokens": len(tokens)}
                for prompt, tokens in zip(found.prompts, found.tokens, strict=False)
            ],
            **json_of(report, "drafted accepted notes"),
            "results": [self._run_json(run) for run in report.runs],
            "advice": self._advice(),
        }

    def _run_json(self, run: VerifiedAnswer) -> dict[str, Any]:
        differences = [
            {
                "token": difference.at + 1,
                **json_of(difference, "expected got gap candidate_gap near_tie"),
                "candidate_takes": difference.candidate_first,
                "expected_text": self._texts.get((difference.expected,)),
                "got_text": self._texts.get((difference.got,)),
                "before": self._texts.get(before_difference(run.answer.tokens[: difference.at])),
            }
            for difference in run.differences
        ]
        return {
            **json_of(run, "side way round verdict matched as_baseline"),
            "tokens": run.length,
            "judged": run.checked,
            **json_of(run.answer, "drafted accepted cached"),
            "prompt": self._found.prompts[run.prompt].name,
            "cause": cause(run, self._found.effort.epsilon) or None,
            "differences": differences,
        }


def _words(run: VerifiedAnswer) -> str:
    if run.verdict is Agreement.IDENTICAL:
        return f"MATCH ({run.length} tokens)"
    return f"DIFFERS at token {run.matched + 1} of {run.length}: {run.verdict}"


def _preference(gap: float | None) -> str:
    if gap is None:
        return "the baseline prefers its token by more than the server lists"
    if gap < 0:
        return f"reading the same text as a prompt, the baseline prefers the other one, by {-gap:.3g} nats"
    return f"the baseline prefers its token by {gap:.3g} nats"


def _quoted(words: str) -> str:
    return json.dumps(printable(words.replace("\n", "\\n")), ensure_ascii=False).replace("\\\\", "\\")


def configure(parser: argparse.ArgumentParser) -> None:
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
    parser.add_argument("--force", action="store_true", help="start it even if memory seems too small")
    parser.add_argument("--json", action="store_true", help="print JSON (docs/verify.md)")
    add_settings(parser, ("api_key_env", "api_key_file", "backend_env_file"))


def run(args: argparse.Namespace) -> int:
    from specdash.bench.verify import BUILT_IN, VerifySide, read_prompts
    from specdash.bench.verify_run import Verification

    effort = _effort(args)
    limit = within("--timeout", args.timeout, 600.0, 1.0, 86400.0)
    prompts = read_prompts(args.prompts) if args.prompts is not None else BUILT_IN
    _check_words(args)
    with stopped_by_signals(), tempfile.TemporaryDirectory(prefix="specdash-verify-") as directory:
        baseline, candidate, notes = _sides(args, effort, Path(directory))
        printer = StepProgress(1.0)
        printer.say(f"baseline: {baseline.words}")
        printer.say(f"candidate: {candidate.words}")
        done = baseline.steady & candidate.steady
        verification = Verification(prompts, effort, printer.show, done)
        verification.report.notes += notes
        code = _carried_out(verification, baseline, candidate, limit, printer)
    words = {VerifySide.BASELINE: baseline.words, VerifySide.CANDIDATE: candidate.words}
    report = VerifyPrinter(verification, context=not args.no_context, strict=args.strict)
    print_answer(report.as_json(words) if args.json else None, report.text(), as_json=args.json)
    return ExitCode.FAILED if code is ExitCode.OK and report.failed else code


def _carried_out(
    verification: Verification,
    baseline: OwnedEngine | EngineInPlace,
    candidate: OwnedEngine | EngineInPlace,
    limit: float,
    printer: StepProgress,
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


def _sides(
    args: argparse.Namespace, effort: VerifyEffort, directory: Path
) -> tuple[OwnedEngine | EngineInPlace, OwnedEngine | EngineInPlace, list[str]]:
    """Baseline, candidate, and what is to be noted of the two."""
    from specdash.bench.verify_run import EngineInPlace, OwnedEngine, unlike

    key = _key(args)
    running = EngineInPlace(normalise_url(args.url), key, "the candidate") if args.url is not None else None
    if args.baseline_url is not None:
        baseline: OwnedEngine | EngineInPlace = EngineInPlace(normalise_url(args.baseline_url), key, "the baseline")
    else:
        baseline = _own_baseline(args, effort, directory, running)
    candidate: OwnedEngine | EngineInPlace = running or _own_candidate(args, effort, directory)
    notes = (
        unlike(baseline, candidate) if isinstance(baseline, OwnedEngine) and isinstance(candidate, OwnedEngine) else []
    )
    if isinstance(candidate, OwnedEngine) and candidate.synthetic:
        notes.append("the candidate's acceptance is synthetic (--spec-synth-*), which makes its text garbage by design")
    if not args.force:
        for side in (baseline, candidate):
            if isinstance(side, OwnedEngine):
                side.check_memory()
    return baseline, candidate, notes


def _own_baseline(
    args: argparse.Namespace, effort: VerifyEffort, directory: Path, running: EngineInPlace | None
) -> OwnedEngine:
    from specdash.backend.launch import read_env_file
    from specdash.bench.verify_run import own_server

    file = _env_file(args, running)
    values, log = _changed(read_env_file(file), args.baseline, "--baseline"), directory / "baseline.log"
    how = {"engine": args.engine, "parallel": effort.parallel}
    own = own_server(values, file, "the baseline", log, **how, speculates=False)
    if running is not None:
        _check_same_model(running, own, file)
    return own


def _own_candidate(args: argparse.Namespace, effort: VerifyEffort, directory: Path) -> OwnedEngine:
    from specdash.backend.launch import read_env_file
    from specdash.bench.verify_run import own_server
    from specdash.control.profiles import find_profile
    from specdash.core.changes import Role, changed_values

    file = _env_file(args, None)
    values = read_env_file(file)
    if args.profile is not None:
        values = changed_values(values, find_profile(args.profile, os.environ).values.get(Role.BACKEND, {}))
    values, log = _changed(values, args.set, "--set"), directory / "candidate.log"
    return own_server(values, file, "the candidate", log, engine=args.engine, parallel=effort.parallel)


def _changed(values: dict[str, str], words: list[str], option: str) -> dict[str, str]:
    from specdash.core.changes import Role, changed_values, parse_assignments

    try:
        return changed_values(values, parse_assignments(words, Role.BACKEND).get(Role.BACKEND, {}))
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None


def _env_file(args: argparse.Namespace, running: EngineInPlace | None) -> str:
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


def _check_same_model(running: EngineInPlace, own: OwnedEngine, file: str) -> None:
    """A baseline of another model would differ by nature. Raises `InputError`, or what a server that does not answer
    raises."""
    with running.open(10.0) as server:
        served = Path(server.model).name
    wanted = own.plan.settings.model
    if wanted is not None and served and Path(wanted).name != served:
        raise InputError(
            f"{running.url} runs {served}, and {file} names {Path(wanted).name}: no baseline can be made of it; name "
            "the right file with --env-file, or a server without speculation with --baseline-url"
        )


def _key(args: argparse.Namespace) -> str | None:
    from specdash.collect.api_key import resolve_api_key
    from specdash.collect.discover import target_for_url

    settings = resolved_settings(args)
    key = resolve_api_key(settings["api_key_env"].value, settings["api_key_file"].value, os.environ)
    if args.url is None:
        return key
    return key or target_for_url(normalise_url(args.url), os.environ).api_key


def _check_words(args: argparse.Namespace) -> None:
    if args.url is not None and (args.set or args.profile is not None):
        raise UsageError("--set and --profile are for an engine that specdash starts; leave --url out")
    if args.baseline_url is not None and args.baseline:
        raise UsageError("--baseline is for an engine that specdash starts; leave --baseline-url out")


def _effort(args: argparse.Namespace) -> VerifyEffort:
    from specdash.bench.verify import EPSILON
    from specdash.bench.verify_run import TOKENS, VerifyEffort

    return VerifyEffort(
        tokens=within("--tokens", args.tokens, TOKENS, 8, 8192),
        parallel=within("--parallel", args.parallel, None, 1, 256),
        runs=within("--runs", args.runs, 1, 1, 20),
        epsilon=within("--epsilon", args.epsilon, EPSILON, 0.0, 10.0),
    )

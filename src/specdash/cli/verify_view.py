"""What `specdash verify` prints: progress, the report as text, and as JSON."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from specdash.bench.verify import Run, Side, Verdict, Way, advice, cause
from specdash.bench.verify_run import context as before_difference
from specdash.core.env_edit import printable

if TYPE_CHECKING:
    from specdash.bench.verify import Difference
    from specdash.bench.verify_run import Step, Verification

_SHOWN = 8
"""Differences that are told in full."""
_CONTEXT_CHARACTERS = 72


class Printer:
    """Lines on stderr; on a terminal the running step is kept up to date in place."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._open = False

    def __call__(self, step: Step) -> None:
        """Take one report of progress."""
        if self._live:
            left = f"  {_duration(step.left_s)} left" if step.left_s is not None else ""
            print(f"\r\x1b[K  {step.share:4.0%}  {step.words[:60]}{left}", end="", file=sys.stderr, flush=True)
            self._open = True

    def say(self, words: str) -> None:
        """A line that stays."""
        self.end()
        print(f"specdash: {words}", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Clear the running line."""
        if self._open:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._open = False


def failed(verification: Verification, *, strict: bool) -> bool:
    """Whether the outcome is a failure."""
    report = verification.report
    if report.verdict in (None, Verdict.DAMAGED, Verdict.UNDECIDED) or report.stopped:
        return True
    return strict and (report.verdict is not Verdict.IDENTICAL or _unused(verification))


def text(verification: Verification, *, context: bool, strict: bool) -> list[str]:
    """The report as lines."""
    report = verification.report
    tokens = verification.effort.tokens
    lines = []
    if verification.tokens:
        sizes = [len(one) for one in verification.tokens]
        lines.append(
            f"{len(sizes)} prompts of {min(sizes)} to {max(sizes)} tokens, {tokens} tokens each, greedy"
            f"{f', {verification.at_once} at once in parallel' if verification.at_once > 1 else ''}"
        )
    lines += [*_table(verification), *_told_differences(verification, context=context)]
    if report.drafted:
        share = report.accepted / report.drafted
        lines.append(f"drafts: {report.accepted:,} of {report.drafted:,} tokens accepted ({share:.0%})")
    lines += [f"note: {one}" for one in report.notes]
    lines += [f"advice: {one}" for one in _advice(verification)]
    return [*lines, _outcome(verification, strict=strict)]


def _advice(verification: Verification) -> list[str]:
    facts = verification.facts
    slots = min((one.slots for one in facts.values()), default=0)
    candidate = facts.get(Side.CANDIDATE)
    return advice(
        verification.report, slots=slots, speculates=bool(candidate and candidate.speculates), done=verification.done
    )


def _unused(verification: Verification) -> bool:
    candidate = verification.facts.get(Side.CANDIDATE)
    return bool(candidate and candidate.speculates) and not verification.report.drafted


def _table(verification: Verification) -> list[str]:
    runs = verification.report.runs
    if not runs:
        return []
    names = [one.name for one in verification.prompts]
    width = max(len(name) for name in names)
    lines = [""]
    for side in Side:
        for way in Way:
            found = [run for run in runs if run.side is side and run.way is way]
            if not found:
                continue
            lines.append(f"{side}, {way}{' (against its first answers)' if side is Side.BASELINE else ''}")
            if all(run.verdict is Verdict.IDENTICAL for run in found):
                lines[-1] += f": {len(found)} of {len(found)} MATCH, {found[0].length} tokens each"
                continue
            for index in dict.fromkeys(run.prompt for run in found):
                same = [run for run in found if run.prompt == index]
                lines.append(f"  {names[index]:<{width}}  {'; '.join(dict.fromkeys(map(_words, same)))}")
    return [*lines, ""]


def _words(run: Run) -> str:
    if run.verdict is Verdict.IDENTICAL:
        return f"MATCH ({run.length} tokens)"
    return f"DIFFERS at token {run.matched + 1} of {run.length}: {run.verdict}"


def _told_differences(verification: Verification, *, context: bool) -> list[str]:
    alike: dict[tuple[Any, ...], list[Run]] = {}
    for run in verification.report.runs:
        if run.differences:
            alike.setdefault((run.verdict is Verdict.BATCH_SHAPE, run.side is Side.BASELINE, run.telling), []).append(
                run
            )
    lines = []
    for _, runs in sorted(alike.items(), key=lambda item: item[0][:2])[:_SHOWN]:
        run, one = runs[0], runs[0].telling
        names = list(dict.fromkeys(verification.prompts[each.prompt].name for each in runs))
        ways = list(dict.fromkeys(str(each.way) for each in runs))
        lines.append(f"{', '.join(names)}: the {run.side} {'; '.join(ways)}: {run.verdict}")
        lines.append(f"  {cause(run, verification.effort.epsilon)}")
        if one is not None:
            lines += [f"  {words}" for words in _difference(one, run, verification, context=context)]
        if len(run.differences) > 1:
            lines.append(f"  {len(run.differences)} differences, the first at token {run.matched + 1}")
        if run.verdict is Verdict.BATCH_SHAPE and run.checked < run.length:
            lines.append(f"  judged up to token {run.checked} of {run.length}: too many near ties to follow")
        lines.append("")
    if len(alike) > _SHOWN:
        lines += [f"and {len(alike) - _SHOWN} more kinds of differences; --json has them all", ""]
    return lines


def _difference(one: Difference, run: Run, verification: Verification, *, context: bool) -> list[str]:
    expected, got = (_token(token, verification, context) for token in (one.expected, one.got))
    who = "candidate" if run.side is Side.CANDIDATE else "this time"
    lines = [f"token {one.at + 1}: baseline {expected}, {who} {got}"]
    before = verification.texts.get(before_difference(run.answer.tokens[: one.at]), "")
    if context and before:
        lines.append(f"after: …{_quoted(before[-_CONTEXT_CHARACTERS:])}")
    if one.expected is not None and one.got is not None:
        lines.append(_preference(one.gap))
    if one.candidate_first is not None:
        own = _token(one.candidate_first, verification, context)
        lines.append(f"the candidate, reading the same text as a prompt, takes {own}")
    return lines


def _preference(gap: float | None) -> str:
    if gap is None:
        return "the baseline prefers its token by more than can be told"
    if gap < 0:
        return f"reading the same text as a prompt, the baseline prefers the other one, by {-gap:.3g} nats"
    return f"the baseline prefers its token by {gap:.3g} nats"


def _token(token: int | None, verification: Verification, context: bool) -> str:
    if token is None:
        return "(end)"
    said = verification.texts.get((token,))
    return f"{token} {_quoted(said)}" if context and said is not None else f"{token}"


def _quoted(words: str) -> str:
    return json.dumps(printable(words.replace("\n", "\\n")), ensure_ascii=False).replace("\\\\", "\\")


def _outcome(verification: Verification, *, strict: bool) -> str:
    report = verification.report
    done = len(report.of(Side.CANDIDATE))
    if report.stopped:
        return f"STOPPED: {done} of {report.planned} answers of the candidate were judged"
    verdict = report.verdict
    if verdict is None:
        return "NOTHING COMPARED"
    count = sum(run.verdict is verdict for run in report.of(Side.CANDIDATE))
    words = {
        Verdict.IDENTICAL: f"IDENTICAL: all {done} answers of the candidate are the baseline's, token by token",
        Verdict.BATCH_SHAPE: f"BATCH-SHAPE EFFECTS ONLY: {count} of {done} answers differ, each at near ties alone",
        Verdict.UNDECIDED: f"UNDECIDED: {count} of {done} answers differ, but the baseline differs from itself as much",
        Verdict.DAMAGED: f"DAMAGED: {count} of {done} answers of the candidate differ by more than rounding explains",
    }[verdict]
    refused = strict and failed(verification, strict=True) and not failed(verification, strict=False)
    return f"{words}{' (a failure with --strict)' if refused else ''}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def as_json(verification: Verification, words: dict[Side, str], *, context: bool, strict: bool) -> str:
    """The report as one JSON object (docs/verify.md)."""
    report, effort = verification.report, verification.effort
    sides = {
        str(side): {
            "words": words[side],
            "url": facts.url,
            "model": facts.model,
            "build": facts.build,
            "slots": facts.slots,
            "speculates": facts.speculates,
        }
        for side, facts in verification.facts.items()
    }
    told = {
        "verdict": str(report.verdict) if report.verdict is not None else None,
        "failed": failed(verification, strict=strict),
        "stopped": report.stopped,
        **sides,
        "tokens": effort.tokens,
        "parallel": verification.at_once,
        "runs": effort.runs,
        "epsilon": effort.epsilon,
        "prompts": [
            {"name": one.name, "tokens": len(tokens)}
            for one, tokens in zip(verification.prompts, verification.tokens, strict=False)
        ],
        "drafted": report.drafted,
        "accepted": report.accepted,
        "results": [_run_json(run, verification, context=context) for run in report.runs],
        "notes": report.notes,
        "advice": _advice(verification),
    }
    return json.dumps(told, indent=1, allow_nan=False)


def _run_json(run: Run, verification: Verification, *, context: bool) -> dict[str, Any]:
    return {
        "side": str(run.side),
        "way": str(run.way),
        "round": run.round,
        "prompt": verification.prompts[run.prompt].name,
        "verdict": str(run.verdict),
        "tokens": run.length,
        "matched": run.matched,
        "judged": run.checked,
        "drafted": run.answer.drafted,
        "accepted": run.answer.accepted,
        "cached": run.answer.cached,
        "as_baseline": str(run.as_baseline) if run.as_baseline is not None else None,
        "cause": cause(run, verification.effort.epsilon) or None,
        "differences": [_difference_json(one, run, verification, context=context) for one in run.differences],
    }


def _difference_json(one: Difference, run: Run, verification: Verification, *, context: bool) -> dict[str, Any]:
    texts = verification.texts if context else {}
    return {
        "token": one.at + 1,
        "expected": one.expected,
        "expected_text": texts.get((one.expected,)) if one.expected is not None else None,
        "got": one.got,
        "got_text": texts.get((one.got,)) if one.got is not None else None,
        "before": texts.get(before_difference(run.answer.tokens[: one.at])),
        "gap": one.gap,
        "candidate_gap": one.candidate_gap,
        "candidate_takes": one.candidate_first,
        "near_tie": one.near_tie,
    }

"""`specdash gguf FILE`: what a GGUF file is, whether it is whole, and what drafts for it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from specdash.cli.options import print_answer
from specdash.core.errors import ExitCode, InputError, UsageError

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the GGUF file; for a split model, the first part")
    parser.add_argument("--json", action="store_true", help="print one JSON object (docs/gguf.md)")
    parser.add_argument(
        "--check-instruct", action="store_true", help="exit 1 if it is a base model, 0 if the file does not say"
    )
    parser.add_argument("--draft", metavar="FILE", help="check whether this draft model fits; exit 1 if it does not")
    parser.add_argument("--spec-type", metavar="TYPES", help="what the draft is for (default: what it was made for)")


def run(args: argparse.Namespace) -> int:
    """Print what the file is; exit 3 for a file that cannot be used, 1 when a check that was asked for fails."""
    from specdash.export.gguf_report import facts_json, facts_text, labelled
    from specdash.llama.gguf import read_facts
    from specdash.llama.model_facts import describe

    kind = _one_type(args.spec_type)
    facts = read_facts(_path(args.file))
    draft = read_facts(_path(args.draft)) if args.draft is not None else None
    found = describe(facts, draft, draft_type=kind)
    if draft is not None:
        about = describe(draft)
        if about.refusal is not None and about.kind != "draft":
            raise InputError(f"draft {draft.path}: {about.refusal}")
    failures = []
    if args.check_instruct and found.tuning == "base":
        failures.append(f"it is a base model: {found.tuning_reasons[0]}")
    if found.pair is not None and not found.pair.fits:
        why = next(row.said for row in found.pair.misfits if row.severity == "error")
        failures.append(f"the draft does not fit: {why}")
    lines = facts_text(found)
    for failure in failures:
        lines += ["", *labelled("FAILED", failure)]
    print_answer({**facts_json(found), "failures": failures}, lines, as_json=args.json)
    if found.refusal is not None and found.kind != "draft":
        raise InputError(f"model {args.file}: {found.refusal}")
    return ExitCode.FAILED if failures else ExitCode.OK


def _path(text: str) -> str:
    return os.path.expanduser(text)  # noqa: PTH111 - the path stays as the user spelled it


def _one_type(chain: str | None) -> str | None:
    """The type of a chain that uses a draft model, None where it names none."""
    from specdash.core.speculation import is_auto, parse_chain

    if chain is None or is_auto(chain):
        return None
    try:
        types = parse_chain(chain, "--spec-type")
    except InputError as error:
        raise UsageError(str(error)) from None
    return next((kind.name for kind in types if kind.reads_draft_model), None)

"""`specdash gguf FILE`: what a GGUF file is, whether it is whole, what drafts for it, and what it needs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.cli.options import print_answer
from specdash.core.errors import ExitCode, InputError, UsageError
from specdash.system.data import json_of
from specdash.system.text import counted, percent, size

if TYPE_CHECKING:
    import argparse

    from specdash.backend.projection import Projection, ProjectionRequest
    from specdash.llama.gguf import GgufFacts
    from specdash.llama.model_facts import ModelFacts

_SIZES = {
    "ctx-size": "context in tokens, for all slots together (0: as trained)",
    "parallel": "slots",
    "cache-type-k": "type of the cached keys",
    "cache-type-v": "type of the cached values",
    "gpu-layers": "layers on the GPU",
    "ubatch-size": "physical batch",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the GGUF file; for a split model, the first part")
    parser.add_argument("--json", action="store_true", help="print one JSON object (docs/gguf.md)")
    parser.add_argument(
        "--check-instruct", action="store_true", help="exit 1 if it is a base model, 0 if the file does not say"
    )
    parser.add_argument("--draft", metavar="FILE", help="check whether this draft model fits; exit 1 if it does not")
    parser.add_argument(
        "--fit", action="store_true", help="find the largest context that fits in memory; exit 1 if none does"
    )
    parser.add_argument(
        "--free-mib", type=int, metavar="N", help="assume N MiB of free memory, for example of another machine"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--gpu", action="store_true", help="estimate for GPU memory (default: if this machine has a GPU)"
    )
    where.add_argument("--cpu", action="store_true", help="estimate for main memory")
    parser.add_argument("--spec-type", metavar="TYPES", help="speculation to include (default: what fits, on a GPU)")
    for name, text in _SIZES.items():
        parser.add_argument(f"--{name}", metavar="N" if "type" not in name else "TYPE", help=text)
    parser.add_argument("--env-file", metavar="F", help="backend env file to take other sizes from (default: yours)")


def run(args: argparse.Namespace) -> int:
    """Print what the file is; exit 3 for a file that cannot be used, 1 when a check that was asked for fails."""
    from specdash.llama.gguf import read_facts
    from specdash.llama.model_facts import describe

    wish, source = _wish(args)
    facts = read_facts(_path(args.file))
    draft = read_facts(_path(args.draft)) if args.draft is not None else None
    named = _one_type(args.spec_type)
    model_facts = describe(facts, draft, draft_type=named)
    _check_draft_kind(draft)
    projections = None
    if model_facts.kind in ("model", "draft"):
        try:
            projections = _projections(facts, draft, wish, args)
        except InputError as error:
            if args.env_file is not None or not wish.env:
                raise
            # Nobody named the file: it must not keep anybody from looking at a model.
            source = f"the defaults, for {wish.env_file} cannot be used: {error}"
            projections = _projections(facts, draft, replace(wish, env={}), args)
    failures = _failures(model_facts, projections, args)
    answer = (model_facts, projections, source, failures)
    print_answer(_as_json(*answer), _as_text(*answer), as_json=args.json)
    if model_facts.refusal is not None and model_facts.kind != "draft":
        raise InputError(f"model {args.file}: {model_facts.refusal}")
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


def _wish(args: argparse.Namespace) -> tuple[ProjectionRequest, str]:
    """What is asked for, and where the sizes come from."""
    from specdash.backend.launch import read_env_file
    from specdash.backend.projection import ProjectionRequest
    from specdash.core.parameter_catalogue import BY_NAME
    from specdash.core.paths import backend_env_file

    sizes = {name: text for name in _SIZES if (text := getattr(args, name.replace("-", "_"))) is not None}
    for name, text in sizes.items():
        try:
            BY_NAME[name].parse(text, f"--{name}")
        except InputError as error:
            raise UsageError(str(error)) from None
    if args.free_mib is not None and args.free_mib < 1:
        raise UsageError(f"--free-mib {args.free_mib}: use 1 or more")
    file = Path(args.env_file).expanduser() if args.env_file is not None else backend_env_file(os.environ)
    known = args.env_file is not None or file.is_file()
    fallback = "the defaults"
    try:
        env = read_env_file(file) if known else {}
    except InputError as error:
        if args.env_file is not None:
            raise
        known, env, fallback = False, {}, f"the defaults, for {error}"
    given = ", ".join(f"--{name} {text}" for name, text in sizes.items())
    source = " and ".join(filter(None, [given, str(file) if known else fallback]))
    on_gpu = True if args.gpu else False if args.cpu else None
    return ProjectionRequest(file, env, sizes, args.spec_type, args.free_mib, on_gpu), source


def _check_draft_kind(draft: GgufFacts | None) -> None:
    from specdash.llama.model_facts import describe

    if draft is None:
        return
    found = describe(draft)
    if found.refusal is not None and found.kind != "draft":
        raise InputError(f"draft {draft.path}: {found.refusal}")


def _projections(
    facts: GgufFacts, draft: GgufFacts | None, wish: ProjectionRequest, args: argparse.Namespace
) -> tuple[Projection, int | None]:
    """What the sizes take, and the largest context that fits where that is asked for."""
    from specdash.backend.projection import at_context, largest, project

    projection = project(facts, draft, wish)
    if not args.fit:
        return projection, None
    fits = largest(facts, draft, projection)
    if fits and args.ctx_size is None:
        projection = at_context(facts, draft, projection, fits)
    elif not fits:
        projection = at_context(facts, draft, replace(projection, context=0), 256 * projection.load.slots.sequences)
    return projection, fits


def _failures(
    model_facts: ModelFacts, found: tuple[Projection, int | None] | None, args: argparse.Namespace
) -> list[str]:
    """Each check that was asked for and failed, in words."""

    failures = []
    if args.check_instruct and model_facts.tuning == "base":
        failures.append(f"it is a base model: {model_facts.tuning_reasons[0]}")
    if model_facts.pair is not None and not model_facts.pair.fits:
        failures.append(
            f"the draft does not fit: {next(row.said for row in model_facts.pair.misfits if row.severity == 'error')}"
        )
    if found is None or found[1] != 0:
        return failures
    plan = found[0]
    if plan.estimate is None:
        failures.append("the file's header does not say how large a context is")
    elif plan.free_bytes is None:
        failures.append("the amount of free memory is unknown; give it with --free-mib")
    else:
        failures.append(
            f"nothing fits: {size(plan.needed or 0, exact=True)} are needed with {plan.context} tokens of context, and "
            f"{size(int(plan.free_bytes * plan.headroom), exact=True)} may be used ({percent(plan.headroom)} of "
            f"{size(plan.free_bytes, exact=True)} free)"
        )
    return failures


def _as_json(
    model_facts: ModelFacts, found: tuple[Projection, int | None] | None, source: str, failures: list[str]
) -> dict[str, Any]:
    from specdash.export.gguf_report import estimate_json, facts_json

    answer = facts_json(model_facts)
    answer["failures"] = failures
    if found is not None:
        plan, fits = found
        answer["projection"] = {
            "sizes_from": source,
            **json_of(plan, _PROJECTION),
            "largest_ctx_size": fits,
            "memory": estimate_json(plan.estimate) if plan.estimate is not None else None,
        }
    return answer


_PROJECTION = (
    "ctx_size=context slots=load.slots.sequences unified=load.slots.unified cache_type_k=load.key_type "
    "cache_type_v=load.value_type spec_types gpus free_bytes headroom needed_bytes=needed fits"
)


def _as_text(
    model_facts: ModelFacts, found: tuple[Projection, int | None] | None, source: str, failures: list[str]
) -> list[str]:
    from specdash.export.gguf_report import facts_text, labelled

    lines = facts_text(model_facts)
    if found is not None and found[0].estimate is not None:
        lines += ["", *_memory_text(found[0], found[1], source)]
    for failure in failures:
        lines += ["", *labelled("FAILED", failure)]
    return lines


def _memory_text(plan: Projection, fits: int | None, source: str) -> list[str]:
    from specdash.export.gguf_report import estimate_text, labelled
    from specdash.llama.memory import GPU_OVERHEAD

    slots = plan.load.slots
    shared = " sharing one cache" if slots.unified and slots.sequences > 1 else ""
    drafting = ", ".join(plan.spec_types) or "no speculation"
    lines = labelled(
        "needs",
        f"at --ctx-size {plan.context}, {counted(slots.sequences, 'slot')}{shared}, "
        f"cache {plan.load.key_type}/{plan.load.value_type}, {drafting} (sizes from {source})",
    )
    if plan.estimate is None:
        return lines
    lines += estimate_text(plan.estimate, gpus=plan.gpus)
    if not plan.estimate.exact:
        lines += labelled("", "the layers of this architecture are not known in detail: an estimate")
    if plan.free_bytes is not None and plan.needed is not None:
        where = "GPU memory" if plan.gpus else "main memory"
        context = (
            f", {size(GPU_OVERHEAD * plan.gpus, exact=True)} of it for the GPU's own context (about)"
            if plan.gpus
            else ""
        )
        verdict = "fits" if plan.fits else "does NOT fit"
        lines += labelled(
            "free",
            f"{size(plan.free_bytes, exact=True)} of {where}, of which {percent(plan.headroom)} may be used; "
            f"{size(plan.needed, exact=True)} are needed{context}: {verdict}",
        )
    if fits is not None:
        lines += labelled("largest", f"--ctx-size {fits}" if fits else "no context fits")
    return lines

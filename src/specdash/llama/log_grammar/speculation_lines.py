"""What the log says about speculative decoding: acceptance, per-step traces, cumulative statistics, set-up."""

from __future__ import annotations

from specdash.core.log_facts import (
    AcceptancePerPosition,
    LogFact,
    RequestAcceptance,
    SpeculativeStatistics,
    VerificationSteps,
)
from specdash.llama.log_grammar.captures import event, pairs, rates
from specdash.llama.log_grammar.forms import Context, Form, Groups, LineClass, Maker
from specdash.llama.log_grammar.request_lines import both

SLOT, ANY = Context.SLOT, Context.ANY
Id = int | None
Seconds = float | None

_OLD_TYPES = {"draft": "draft-simple", "mtp": "draft-mtp", "eagle3": "draft-eagle3"}


def current_type(printed: str) -> str:
    """The name that current builds give to a speculative type, from the name that any build printed."""
    name = printed.replace("_", "-")
    return _OLD_TYPES.get(name, name)


def _acceptance(slot: Id, task: Id, g: Groups, at: Seconds, origin: Id) -> LogFact:
    mean = float(g[2]) if len(g) > 2 else None
    per_position = rates(g[3]) if len(g) > 3 else None
    return RequestAcceptance(slot, task, int(g[0]), int(g[1]), mean, per_position, at, origin)


def _per_position(slot: Id, task: Id, g: Groups, at: Seconds, origin: Id) -> LogFact:
    return AcceptancePerPosition(slot, task, rates(g[0]), at, origin)


def _step(slot: int, task: int, g: Groups, at: Seconds, origin: Id) -> LogFact:
    return VerificationSteps(slot, task, 1, int(g[0]), int(g[1]), 0, 0, at, at, origin)


def _restored_step(slot: int, task: int, g: Groups, at: Seconds, origin: Id) -> LogFact:
    return VerificationSteps(slot, task, 1, int(g[0]), int(g[1]), 0, 1, at, at, origin)


def _statistics(calls: int, *, mean: bool, durations: bool) -> Maker:
    """For a form that has `calls` call counts, and perhaps the mean length with the rates, and the three durations."""

    def make(_slot: Id, _task: Id, g: Groups, at: Seconds, origin: Id) -> LogFact:
        printed = g[0].decode(errors="replace")
        counts = tuple(int(value) for value in g[1 : 1 + calls])
        drafts, accepted_drafts, tokens, accepted = (int(value) for value in g[1 + calls : 5 + calls])
        return SpeculativeStatistics(
            current_type(printed),
            drafts,
            accepted_drafts,
            tokens,
            accepted,
            counts,
            float(g[5 + calls]) if mean else None,
            rates(g[6 + calls]) if mean else None,
            tuple(float(value) for value in g[-3:]) if durations else (),
            at,
            origin,
            printed,
        )

    return make


_ACCEPTED = "({accepted:d} accepted / {generated:d} generated)"
_THREE_CALLS = "statistics {type:w}: #calls(b,g,a) = {b:d} {g:d} {a:d}, "
_ONE_CALL = "statistics {type:w}: #calls = {calls:d}, "
_COUNTS = "#gen drafts = {gd:d}, #acc drafts = {ad:d}, #gen tokens = {gt:d}, #acc tokens = {at:d}"
_MEAN = ", #mean acc len = {mean:f}, #acc rate/pos = ({rates:list})"
_DURATIONS = ", dur(b,g,a) = {db:f}, {dg:f}, {da:f} ms"

SPECULATION_LINES: tuple[LineClass, ...] = (
    LineClass(
        "draft_acceptance",
        "draft tokens accepted and generated over a finished request",
        (
            *both(f"draft acceptance = {{:f}} {_ACCEPTED}, mean len = {{mean:f}}", _acceptance),
            *both(
                f"draft acceptance = {{:f}} {_ACCEPTED}, mean acceptance length = {{mean:f}}, "
                "acceptance rate per position = ({rates:list})",
                _acceptance,
            ),
            *both(f"draft acceptance = {{:f}} {_ACCEPTED}", _acceptance),
            *both(f"draft acceptance rate = {{:f}} {_ACCEPTED}", _acceptance),
        ),
    ),
    LineClass(
        "acceptance_per_position",
        "share of accepted draft tokens by position over a finished request",
        both("acc per pos = ({rates:list})", _per_position),
    ),
    LineClass(
        "verification_step",
        "one verification step (LLAMA_TRACE=1)",
        (
            Form(SLOT, "accepted {accepted:d}/{generated:d} draft tokens", _step),
            Form(SLOT, "accepted {accepted:d}/{generated:d} draft tokens (restore checkpoint)", _restored_step),
        ),
    ),
    LineClass(
        "statistics",
        "cumulative statistics of a speculative implementation",
        (
            Form(ANY, _THREE_CALLS + _COUNTS + _MEAN + _DURATIONS, _statistics(3, mean=True, durations=True)),
            Form(ANY, _THREE_CALLS + _COUNTS + _DURATIONS, _statistics(3, mean=False, durations=True)),
            Form(ANY, _THREE_CALLS + _COUNTS, _statistics(3, mean=False, durations=False)),
            Form(ANY, _ONE_CALL + _COUNTS + _DURATIONS, _statistics(1, mean=False, durations=True)),
            Form(ANY, _ONE_CALL + _COUNTS, _statistics(1, mean=False, durations=False)),
        ),
    ),
    LineClass(
        "spec_implementation",
        "a speculative implementation was added",
        (Form(ANY, "adding speculative implementation '{type:s}'", event("spec_implementation", "type")),),
    ),
    LineClass(
        "spec_parameters",
        "parameters of the speculative implementation just added",
        (
            *(
                Form(ANY, f"- {first}={{values:s}}", pairs("spec_parameters", first))
                for first in ("n_max", "n_match", "size_n", "size_key", "n_draft", "block_size", "gpu_layers")
            ),
            Form(ANY, "- mod size={:d} ({:f} MB)"),
        ),
    ),
    LineClass(
        "spec_autodetected",
        "the draft model's metadata chose the speculative type",
        (
            Form(
                ANY,
                "auto-detected speculative type '{type:s}' from the draft model metadata",
                event("spec_autodetected", "type"),
            ),
        ),
    ),
    LineClass(
        "spec_synthetic",
        "acceptance is simulated with these rates",
        (
            Form(
                ANY,
                "synthetic acceptance: n_max = {n_max:d}, mean length = {mean:f}, rates = [{rates:list}]",
                event("spec_synthetic", "n_max", "mean_length", "rates"),
            ),
        ),
    ),
    LineClass(
        "spec_ready",
        "the speculative context is ready",
        (
            Form(ANY, "speculative decoding context initialized", event("spec_ready")),
            Form(ANY, "speculative decoding context initialized{:rest}", event("spec_ready")),
        ),
    ),
    LineClass(
        "spec_none",
        "speculative decoding is off",
        (Form(ANY, "no implementations specified for speculative decoding", event("spec_none")),),
    ),
    LineClass(
        "spec_checkpoints",
        "speculation restores checkpoints: this model cannot drop rejected tokens from its memory",
        (Form(ANY, "speculative decoding will use checkpoints", event("spec_checkpoints")),),
    ),
    LineClass(
        "draft_loading",
        "the draft model is being loaded",
        (
            Form(ANY, "loading draft model '{path:s}'", event("draft_loading", "path")),
            Form(
                ANY,
                "creating MTP draft context against the target model '{path:s}'",
                event("draft_loading", "path"),
            ),
        ),
    ),
    LineClass(
        "ngram_table",
        "state of the n-gram table",
        (
            Form(ANY, "ngram_mod occupancy = {:d}/{:d} ({:f})"),
            Form(ANY, "shrink cleanup begin: {:d} -> {:d}"),
        ),
    ),
)

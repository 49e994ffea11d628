"""Warning classes of speculative decoding: it is off, it drafts badly, or it fails."""

from __future__ import annotations

from specdash.llama.log_grammar.forms import Context, Form, LineClass, Severity, anywhere

ERROR, WARNING, NOTICE = Severity.ERROR, Severity.WARNING, Severity.NOTICE

_PROCESS = ("llama_process", "llama_decode")
"""The engine's entry point, by its name in current builds and before them."""

SPECULATION_TROUBLE: tuple[LineClass, ...] = (
    LineClass(
        "spec_init_failed",
        "speculation could not be set up",
        anywhere("failed to initialize speculative decoding context: {:rest}", "n_seq mismatch: {:d} != {:d}"),
        ERROR,
        "The server goes on WITHOUT speculation.",
    ),
    LineClass(
        "vocab_mismatch",
        "the draft model's vocabulary is not the target's",
        anywhere(
            "the target and draft vocabs are not compatible{:rest}",
            "the draft model '{:s}' is not compatible with the target model '{:s}'",
            "draft model vocab type must match target model {:rest}",
            "draft model special tokens must match target model {:rest}",
            "draft model bos tokens must match target model {:rest}",
            "draft model eos tokens must match target model {:rest}",
            "draft vocab special tokens must match target vocab {:rest}",
            "draft model vocab must {:rest}",
        ),
        ERROR,
        "The server goes on WITHOUT speculation. Use a draft model of the same family and tokenizer.",
    ),
    LineClass(
        "draft_load_failed",
        "the draft model could not be loaded",
        anywhere(
            "failed to load draft model{:rest}",
            "failed to create MTP context{:rest}",
            "failed to create draft context{:rest}",
        ),
        ERROR,
        "Printed twice for one failure. The server exits, or goes on without speculation.",
    ),
    LineClass(
        "draft_decode_failed",
        "the draft model failed to compute",
        anywhere(
            "failed to decode draft batch, ret = {:d}",
            "failed to process speculative batch",
            *(f"{function} returned {{:d}}" for function in _PROCESS),
            *(f"{function}(ctx_dft) failed rc={{:d}} (n_tokens={{:d}}, {{:rest}}" for function in _PROCESS),
            *(f"{function}(ctx_dft) head={{:d}} failed rc={{:d}} (pos={{:d}})" for function in _PROCESS),
            *(f"{function}[{{:d}}] returned {{:d}}" for function in _PROCESS),
        ),
        ERROR,
        "On the prompt, the request fails with it (decode_failed); while drafting, the step goes without drafts. If it "
        "happens to every request, this draft model or type does not work here: try without images, or without it.",
    ),
    LineClass(
        "draft_behind",
        "the draft context missed part of the prompt",
        anywhere("ctx_dft pos_max={:d} < N-1={:d} - process() {:rest}", "ctx_dft pos_max={:d} < N-2={:d}"),
        WARNING,
        "Drafts get worse, which nothing else tells but a falling acceptance; the answers stay right.",
    ),
    LineClass(
        "draft_behind_detail",
        "second line of draft_behind",
        (Form(Context.BARE, "process() did not run on every prefill ubatch. Drafts may degrade."),),
    ),
    LineClass(
        "draft_input_dropped",
        "the draft model cannot read the target's image or audio embeddings",
        anywhere("target embeddings of size {:d} do not fit the draft input width {:d}, {:rest}"),
        WARNING,
        "Drafts after an image or audio part of a prompt are poor; the answers stay right. Printed once.",
    ),
    LineClass(
        "draft_sampler_on_cpu",
        "the draft model's sampler could not run on the device",
        anywhere("backend offload failed for seq_id={:d}; using CPU sampler"),
        NOTICE,
        "Drafting works, a little slower.",
    ),
    LineClass(
        "lookup_cache_failed",
        "an n-gram lookup cache file could not be read",
        anywhere("failed to open static lookup cache: {:rest}", "failed to open dynamic lookup cache: {:rest}"),
        ERROR,
        "Only with --lookup-cache-static or --lookup-cache-dynamic. The server aborts.",
    ),
    LineClass(
        "rollback_unsupported",
        "the model cannot roll its recurrent state back",
        anywhere("n_rs_seq={:d} requested but model does not support recurrent partial rollback; clamping to {:d}"),
        NOTICE,
        "Rejected draft tokens are undone by restoring a checkpoint and computing again, which costs speed.",
    ),
    LineClass(
        "draft_clamped",
        "the draft length was clamped to the draft model's block size",
        anywhere(
            "requested draft size (n_max={:d}, n_min={:d}) exceeds the trained block size {:d} -- clamping to {:d}"
        ),
        WARNING,
        "DFlash and DSpark cannot draft more than their block: a larger --spec-draft-n-max has no effect.",
    ),
    LineClass(
        "spec_unsupported",
        "this context cannot speculate",
        anywhere(
            "speculative decoding not supported by this context{:rest}", "speculative decoding is not supported{:rest}"
        ),
        WARNING,
        "The server goes on WITHOUT speculation.",
    ),
    LineClass(
        "ngram_mod_reset",
        "the n-gram table was emptied",
        anywhere(
            "ngram_mod occupancy {:f} exceeds threshold ({:f}) - resetting", "low acceptance streak ({:d}) {:rest}"
        ),
        NOTICE,
        "Its drafts begin anew; acceptance dips until it has learnt the text again.",
    ),
    LineClass(
        "ngram_match_short",
        "the n-gram match length is short",
        anywhere("ngram_mod n_match={:d} is too small - poor quality is possible{:rest}"),
        NOTICE,
        "Short matches draft often and wrongly.",
    ),
    LineClass(
        "synth_limit_reduced",
        "the draft length of synthetic acceptance was reduced",
        anywhere("synthetic acceptance draft limit was reduced from {:d} to {:d}{:rest}"),
        WARNING,
        "Only with --spec-synth-len or --spec-synth-rates.",
    ),
    LineClass(
        "synth_enabled",
        "acceptance is simulated",
        anywhere("synthetic speculative acceptance is enabled for benchmarking; generated output is not valid"),
        WARNING,
        "Only with --spec-synth-len or --spec-synth-rates: for tests and planning, the text is garbage.",
    ),
    LineClass(
        "synth_needs_speculation",
        "synthetic acceptance was asked for, but nothing speculates",
        anywhere("synthetic acceptance requires an initialized speculative decoding context"),
        ERROR,
        "The server exits.",
    ),
    LineClass(
        "trace_enabled",
        "LLAMA_TRACE is set",
        anywhere("LLAMA_TRACE = {:d}"),
        NOTICE,
        "Wanted: it prints every verification step, the only live acceptance that the server has.",
    ),
)

"""The rows of `start_failures` about speculation: what ends the server, aborts it, or makes it run without."""

from __future__ import annotations

from specdash.llama.start_failure_kinds import Ends, KnownFailure

_INIT = r"failed to initialize speculative decoding context: "
_PATH = r"'(?P<path>[^'\n]*)'"
_FAMILY = "use a draft model of the target's family and tokenizer (`specdash gguf MODEL --draft DRAFT` compares them)"

SYNTHETIC: tuple[KnownFailure, ...] = (
    KnownFailure(
        "synth_both",
        "synthetic acceptance by length and by rates at once",
        Ends.EXIT,
        "--spec-synth-len and --spec-synth-rates exclude each other",
        "give one of them",
        (r"synthetic acceptance length and rates are mutually exclusive",),
    ),
    KnownFailure(
        "synth_count",
        "synthetic acceptance rates for another draft length",
        Ends.EXIT,
        "--spec-synth-rates must have {want} values, one for each token of the longest draft, and has {got}",
        "give {want} values, or set LLAMA_DRAFT_MAX={got}",
        (r"synthetic acceptance rates must contain (?P<want>\d+) values?, got (?P<got>\d+)",),
    ),
    KnownFailure(
        "synth_increasing",
        "synthetic acceptance rates that rise",
        Ends.EXIT,
        "--spec-synth-rates rise: a later token cannot be accepted more often than one before it",
        "give them in falling order",
        (r"synthetic acceptance rates must be monotonically non-increasing",),
    ),
    KnownFailure(
        "synth_range",
        "synthetic acceptance rates that are no probabilities",
        Ends.EXIT,
        "--spec-synth-rates must be between 0 and 1",
        "correct the values",
        (r"synthetic acceptance rates must be finite and within",),
    ),
    KnownFailure(
        "synth_length",
        "a synthetic accepted length that the drafts cannot have",
        Ends.EXIT,
        "--spec-synth-len must be between 1 and {most}, the longest draft and the target's own token",
        "correct it, or draft longer",
        (r"synthetic acceptance length must be finite and within \[1, (?P<most>\d+)\]",),
    ),
    KnownFailure(
        "synth_no_tokens",
        "synthetic acceptance of drafts of no tokens",
        Ends.EXIT,
        "synthetic acceptance needs drafts of one token at least",
        "set LLAMA_DRAFT_MAX to 1 or more",
        (r"synthetic acceptance requires at least one speculative token",),
    ),
    KnownFailure(
        "synth_without",
        "synthetic acceptance without speculation",
        Ends.EXIT,
        "synthetic acceptance was asked for, and nothing speculates",
        "set LLAMA_SPEC_TYPE and what it needs, or remove --spec-synth-len and --spec-synth-rates",
        (r"synthetic acceptance requires an initialized speculative decoding context",),
    ),
)

DRAFTS: tuple[KnownFailure, ...] = (
    KnownFailure(
        "draft_missing",
        "the draft model's file is not there",
        Ends.EXIT,
        "the draft model {path} does not exist",
        "correct LLAMA_DRAFT_MODEL",
        (r"failed to load draft model, " + _PATH, r"failed to open GGUF file '[^'\n]*' \(No such file or directory\)"),
    ),
    KnownFailure(
        "draft_broken",
        "the draft model's file is broken",
        Ends.EXIT,
        "the draft model {path} could not be loaded: {said}",
        "download or convert it again (`specdash gguf FILE` tells what is wrong)",
        (
            r"failed to load draft model, " + _PATH,
            (
                r"(?P<said>tensor '[^'\n]*' data is not within the file bounds.*|invalid magic characters.*|"
                r"wrong number of tensors.*|unknown model architecture.*|missing tensor.*|key not found in model.*)"
            ),
        ),
    ),
    KnownFailure(
        "mtp_no_heads",
        "draft-mtp on a model without prediction layers",
        Ends.EXIT,
        "draft-mtp needs prediction (nextn) layers, and the model has none",
        "use another LLAMA_SPEC_TYPE, or a model with such layers (`specdash gguf FILE` names its heads)",
        (r"failed to create MTP context",),
    ),
    KnownFailure(
        "draft_load_failed",
        "the draft model could not be loaded",
        Ends.EXIT,
        "the draft model could not be loaded ({line})",
        "see the lines before it in the log; `specdash gguf FILE` checks the file",
        (r"failed to load draft model|failed to create draft context",),
    ),
)

WITHOUT: tuple[KnownFailure, ...] = (
    KnownFailure(
        "vocab_mismatch",
        "the draft model has another vocabulary than the target",
        Ends.WITHOUT,
        "the draft model's vocabulary is not the target's",
        _FAMILY,
        (
            (
                r"the target and draft vocabs are not compatible|"
                r"draft (?:model )?vocab\w* (?:type |special tokens )?must|"
                r"draft model (?:special|bos|eos) tokens must match|is not compatible with the target model"
            ),
        ),
        ("vocab_mismatch",),
    ),
    KnownFailure(
        "eagle3_wrong_draft",
        "draft-eagle3 with a draft that is no EAGLE-3 head",
        Ends.WITHOUT,
        "draft-eagle3 needs a draft that reads 3 layers, and this one reads {got}",
        "name an EAGLE-3 draft made for this model, or set LLAMA_SPEC_TYPE to the type the draft is made for",
        (_INIT + r"draft model is not eagle3 \(expected 3 extract layers, got (?P<got>\d+)",),
    ),
    KnownFailure(
        "draft_not_given",
        "a type that needs a draft model, and none is given",
        Ends.WITHOUT,
        "{type} needs a draft model, and none is given",
        "set LLAMA_DRAFT_MODEL, or an n-gram type",
        (_INIT + r"(?P<type>[\w-]+) requires a draft context",),
    ),
    KnownFailure(
        "draft_sequences",
        "the draft's context has another number of sequences than the server has slots",
        Ends.WITHOUT,
        "the draft's context is made for another number of slots",
        "give LLAMA_PARALLEL a number; it is an error of this build otherwise",
        (r"number of sequences is incompatible with the speculative n_seq|n_seq mismatch",),
    ),
    KnownFailure(
        "spec_unsupported",
        "the model's context cannot take tokens back",
        Ends.WITHOUT,
        "this model's context cannot take rejected tokens back",
        "set LLAMA_SPEC_TYPE=none, or use another model or build",
        (r"speculative decoding (?:is )?not supported",),
        ("spec_unsupported",),
    ),
    KnownFailure(
        "no_implementations",
        "nothing that drafts is left in the chain",
        Ends.WITHOUT,
        "no type in the chain could be used",
        "name one type, and what it needs, in LLAMA_SPEC_TYPE",
        (_INIT + r"no implementations? specified",),
    ),
    KnownFailure(
        "spec_init_failed",
        "speculation could not be set up",
        Ends.WITHOUT,
        "speculation could not be set up: {said}",
        "mend what the line names, and start again; `specdash preflight` checks the settings",
        (_INIT + r"(?P<said>.*)",),
        ("spec_init_failed", "draft_load_failed"),
    ),
    KnownFailure(
        "none_in_chain",
        "`none` beside other types",
        Ends.WITHOUT,
        "the chain {chain} has 'none' in it, which disables all of it without a word",
        "remove 'none' from LLAMA_SPEC_TYPE",
    ),
    KnownFailure(
        "draft_without_type",
        "a draft model without a type",
        Ends.WITHOUT,
        "a draft model is given ({draft}) and no type that uses it: it is loaded, and does nothing",
        "set LLAMA_SPEC_TYPE=draft-simple, or the type the draft is made for",
    ),
)

ABORTS: tuple[KnownFailure, ...] = (
    KnownFailure(
        "dflash_wrong_draft",
        "draft-dflash or draft-dspark with a draft that is none",
        Ends.ABORT,
        "draft-dflash and draft-dspark need a draft model made for them, and this one reads no layers of the target",
        "name such a draft, or set LLAMA_SPEC_TYPE=draft-simple",
        (r'DFlash model has no target_layer_ids|GGML_ASSERT\(.*"DFlash requires ctx_tgt and ctx_dft',),
    ),
    KnownFailure(
        "draft_of_other_model",
        "a draft that reads layers the target does not have, or of another width",
        Ends.ABORT,
        "the draft model is made for another model ({said})",
        "use a draft made for this model",
        (
            (
                r"(?P<said>GGML_ASSERT\(lid <= model\.hparams\.n_layer\(\)\)|layer input tensor is null|"
                r"target layer (?:id )?\d+ (?:input not extracted|exceeds target n_layer \d+)|"
                r"get_sub_batch: failed to add embedding at index \d+|"
                r"MTP input row width must match the target h_nextn width)"
            ),
        ),
    ),
    KnownFailure(
        "draft_extra_tokens",
        "a draft drafted a token that the target does not have",
        Ends.ABORT,
        "the draft model drafted token {token}, which the target does not have",
        _FAMILY,
        (r"get_sub_batch: failed to add token (?P<token>\d+) at index",),
    ),
    KnownFailure(
        "recurrent_draft",
        "a recurrent draft for a model with a KV cache, at its first rejected token",
        Ends.ABORT,
        "a rejected draft could not be taken back: the memory of the draft model (a recurrent one) cannot be cut",
        "use a draft model without recurrent layers",
        (r"failed to remove sequence \d+ with p0=-?\d+, p1=-?\d+",),
    ),
    KnownFailure(
        "n_max_zero",
        "drafts of no tokens, at the first request",
        Ends.ABORT,
        "the longest draft is 0 tokens (--spec-draft-n-max 0), which aborts the server at its first request",
        "set LLAMA_DRAFT_MAX to 1 or more; LLAMA_SPEC_TYPE=none switches speculation off",
        (r"GGML_ASSERT\(n_outputs_max <= cparams\.n_outputs_max\)",),
    ),
    KnownFailure(
        "batch_small",
        "a batch without room for the drafts of all slots",
        Ends.ABORT,
        "a batch has no room for the drafts of all slots, which aborts the server at the first long draft",
        "raise --batch-size to slots x (longest draft + 1) or more, or draft shorter",
        (r"batch must be large enough to hold the sampled and draft tokens",),
    ),
    KnownFailure(
        "lookup_cache",
        "a lookup cache file that cannot be read",
        Ends.ABORT,
        "a lookup cache of ngram-cache cannot be read",
        "correct the path, or remove --lookup-cache-static and --lookup-cache-dynamic",
        (r"failed to open (?:static|dynamic) lookup cache|Couldn't read (?:static|dynamic) lookup cache",),
        ("lookup_cache_failed",),
    ),
)

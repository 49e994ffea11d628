"""Views of the speculation screen for tests: every way to speculate, and the ways in which it does not."""

from msgspec.structs import replace

from specdash.core.readings import Source
from specdash.core.records import Drafting
from specdash.core.speculation import MemoryKind, PublishedAcceptance, Rollback
from specdash.insight.picture import (
    CheckpointCounts,
    CheckpointsPicture,
    DrafterPicture,
    DraftingPicture,
    Picture,
    PrefixCachePicture,
    PrefixSlot,
    SpeculationPicture,
    SpeculationViews,
    SpeedUpPicture,
)
from specdash.insight.request import ServedRequest
from specdash.insight.router import RouterModelPicture, RouterPicture

SIMPLE = DrafterPicture(
    type="draft-simple",
    asked_length=8,
    effective_length=8,
    per_position=(0.91, 0.84, 0.77, 0.69, 0.60, 0.52, 0.44, 0.37),
    per_position_basis="window",
    references=(
        PublishedAcceptance(
            "draft-mtp", "Qwen3-0.6B for Qwen3-32B", "llama.cpp #10455", (0.88, 0.79, 0.70, 0.61, 0.52, 0.45), 3.9
        ),
        PublishedAcceptance("draft-mtp", "Llama-3.2-1B for 3.1-70B", "vLLM blog, 2024-10", (0.82, 0.70, 0.60), 2.9),
    ),
    acceptance=0.672,
    mean_accepted_length=4.41,
    break_even_length=2.40,
    break_even_acceptance=0.31,
    break_even_basis="measured",
    best_length=6,
    best_gain=0.04,
    advised_length=6,
    verdict="It pays: 67 % accepted against a break-even of 31 %; drafts of 6 would give a little more than 8.",
)
CLAMPED = replace(
    SIMPLE,
    type="draft-dflash",
    asked_length=16,
    block_size=8,
    effective_length=7,
    clamps=("requested draft size 16 exceeds the trained block size 8: clamped to 7",),
    per_position=(0.93, 0.86, 0.78, 0.66, 0.55, 0.43, 0.31),
    references=(
        PublishedAcceptance(
            "draft-mtp", "DFlash, Qwen3-8B, GSM8K", "arXiv 2602.06036", (0.95, 0.90, 0.85, 0.79, 0.74, 0.68, 0.62), 6.5
        ),
    ),
    acceptance=0.646,
    mean_accepted_length=5.52,
    best_length=7,
    best_gain=0.0,
    break_even_basis="a step costs 1.2 times a decode",
    verdict="It pays, though below the published curve from position 4 on: the text is harder than theirs.",
)
NGRAM = replace(
    SIMPLE,
    type="ngram-mod",
    asked_length=64,
    effective_length=64,
    per_position=tuple(0.97 * 0.955**i for i in range(64)),
    references=(),
    best_length=None,
    acceptance=0.31,
    verdict="",
)
ATTENTION = CheckpointsPicture(memory=MemoryKind.ATTENTION, rollback=Rollback.CUT)
REPLAYS = CheckpointsPicture(
    memory=MemoryKind.RECURRENT,
    rollback=Rollback.CHECKPOINT,
    because="mamba keeps one state a sequence, and draft-simple asks for no states of the draft's tokens",
    context=CheckpointCounts(12, 3, 1, 0.096),
    speculative=CheckpointCounts(1204, 613, 0, 0.037),
    full_reprocessed=2,
    basis="trace",
    steps=1204,
    replays=613,
    replayed_tokens=2911,
    lost_s=18.4,
    lost_share=0.27,
    mean_accepted_length=5.44,
    effective_length=3.61,
    verdict="Replays cost 27 % of decode: 5.44 tokens a step are 3.61 a decode.",
)
PREFIX = PrefixCachePicture(
    cached=81_204,
    processed=23_410,
    cached_share=0.776,
    lifetime_share=0.741,
    requests=tuple(
        ServedRequest(
            i % 4,
            4712 - 3 * i,
            source=Source.PROXY_EVENTS,
            ended_age_s=4.0 + 31.0 * i,
            session=f"sess-{i % 3}a7f",
            prompt_total_tokens=5123 + 731 * i % 9000,
            prompt_cached=(4100 + 600 * i) % 5100 if i % 4 else 0,
            processed_tokens=320 + 40 * i if i % 4 else 5123 + 731 * i % 9000,
            proxy_ttft_s=0.11 + 0.02 * i if i % 4 else 1.31 + 0.05 * i,
            similarity=0.93 - 0.02 * i if i % 4 else 0.04,
        )
        for i in range(18)
    ),
    slots=(
        PrefixSlot(0, 12_904, 0.93, busy=True),
        PrefixSlot(1, 5_120, 0.71),
        PrefixSlot(2, 801, None),
        PrefixSlot(3, 0, None),
    ),
    ttft_warm_s=0.13,
    ttft_cold_s=1.44,
    warm=49,
    cold=17,
    saved_s=31.2,
    entries=12,
    size_mib=812.4,
    limit_mib=8192.0,
    hits=5,
    saves=12,
    verdict="78 % of the prompt tokens were there already: the first token comes 11 times sooner when warm.",
)
MODELS = RouterPicture(
    (
        RouterModelPicture("qwen3-coder-30b", "loaded", 2.0, ("draft-simple",), watched=True),
        RouterModelPicture("qwen3-next-80b-a3b-instruct-q4_k_m", "sleeping", 940.0, ("draft-mtp", "ngram-mod")),
        RouterModelPicture("gemma-3-27b", "unloaded", None, ()),
        RouterModelPicture("llama-3.3-70b", "failed", None, None, failure="exit code 1: failed to load draft model"),
    ),
    "qwen3-coder-30b",
)
YES = DraftingPicture(Drafting.YES, "18 of 24 draft tokens of the probe were accepted", "", 96.0)
BECAUSE = "the draft's vocabulary differs from the target's (32,000 and 151,936 tokens)"
FIX = "Set LLAMA_DRAFT_MODEL to a draft of the same tokenizer, or LLAMA_SPEC_TYPE to ngram-mod"
FAILED = DraftingPicture(Drafting.FAILED, BECAUSE, FIX, 96.0)
VIEWS = SpeculationViews(YES, SIMPLE, ATTENTION, PREFIX)


def _running(picture: Picture, views: SpeculationViews, types: tuple[str, ...], **speculation: object) -> Picture:
    changed = replace(picture.backend.speculation, types=types, **speculation)
    return replace(picture, views=views, backend=replace(picture.backend, speculation=changed))


def draft_simple(picture: Picture) -> Picture:
    """A small draft model for an attention model."""
    return _running(picture, VIEWS, ("draft-simple",))


def checkpoints(picture: Picture) -> Picture:
    """A recurrent model that replays after every partial rejection."""
    return _running(picture, replace(VIEWS, checkpoints=REPLAYS), ("draft-simple",))


def clamped(picture: Picture) -> Picture:
    """A block draft that was asked for more than its block."""
    told = (("n-max", "16"), ("p-min", "0.0"))
    return _running(picture, replace(VIEWS, drafter=CLAMPED), ("draft-dflash",), parameters=told)


def ngrams(picture: Picture) -> Picture:
    """64 positions, and a chain."""
    return _running(picture, replace(VIEWS, drafter=NGRAM), ("ngram-mod", "draft-mtp"))


def failed(picture: Picture) -> Picture:
    """Asked for, and not there."""
    views = SpeculationViews(FAILED, DrafterPicture(), ATTENTION, PREFIX)
    off = SpeculationPicture(active=False, types=("draft-simple",), problem=BECAUSE)
    return replace(picture, views=views, backend=replace(picture.backend, speculation=off), speedup=SpeedUpPicture())


def ready(picture: Picture) -> Picture:
    """Nothing drafted yet."""
    drafter = DrafterPicture(type="draft-simple", asked_length=8, effective_length=8)
    views = SpeculationViews(
        DraftingPicture(Drafting.READY, "4 of 4 slots can draft", "", 3.0),
        drafter,
        ATTENTION,
        PrefixCachePicture(slots=PREFIX.slots[3:]),
    )
    return _running(picture, views, ("draft-simple",), acceptance=SpeculationPicture().acceptance)


def off(picture: Picture) -> Picture:
    """Nobody asked for it."""
    views = SpeculationViews(
        DraftingPicture(Drafting.OFF, "no type is set", "", None), DrafterPicture(), CheckpointsPicture(), PREFIX
    )
    return replace(
        picture, views=views, backend=replace(picture.backend, speculation=SpeculationPicture(active=False, types=()))
    )


def routed(picture: Picture) -> Picture:
    """A router with four models."""
    return _running(picture, replace(VIEWS, router=MODELS), ("draft-simple",))


def unknown_views(picture: Picture) -> Picture:
    """Nothing is known."""
    return replace(
        picture, views=SpeculationViews(), backend=replace(picture.backend, speculation=SpeculationPicture())
    )


VIEW_SCENES = (draft_simple, checkpoints, clamped, ngrams, failed, ready, off, routed, unknown_views)

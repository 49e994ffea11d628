"""`specdash verify` on this machine: does speculation leave the text as it is, but for near ties?"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gpu.report import Check

if TYPE_CHECKING:
    from gpu.kit import Kit
    from gpu.report import Report

GIGABYTES = 1.0
SLOTS, TOKENS = 4, 128
CPU_SLOTS, CPU_TOKENS = 2, 32
SLOT_CONTEXT = 4096
CASES = (
    ("draft-simple", "target", "draft", ""),
    ("draft-mtp", "mtp", None, ""),
    ("ngram-mod", "target", None, "--spec-ngram-mod-n-match 3 --spec-ngram-mod-n-min 1 --spec-ngram-mod-n-max 8"),
)
"""Type, target, draft, flags. The trained pair has near ties; its answers repeat few words, so n-grams are short."""
TIME_S, LIMIT_S = 50.0, 90.0
"""No case is begun after the first; the second ends the last one."""
HARMLESS = ("identical", "batch-shape effect")


def run(kit: Kit, report: Report) -> None:
    """The check."""
    began = time.monotonic()
    for case in CASES:
        what = f"verify, {case[0]}"
        if time.monotonic() - began > TIME_S:
            report.skipped(what, "no time was left")
            continue
        with report.part(what):
            judge(report, case[0], _verified(kit, *case))


def _verified(kit: Kit, name: str, target: str, draft: str | None, flags: str) -> dict[str, Any]:
    slots, tokens = (CPU_SLOTS, CPU_TOKENS) if kit.cpu else (SLOTS, TOKENS)
    keys: dict[str, object] = {
        "LLAMA_MODEL": kit.model(target, None if kit.cpu else GIGABYTES),
        "LLAMA_SPEC_TYPE": name,
        "LLAMA_CTX_SIZE": SLOT_CONTEXT * slots,
        "LLAMA_PARALLEL": slots,
        "LLAMA_EXTRA_ARGS": flags,
    }
    if draft is not None:
        keys["LLAMA_DRAFT_MODEL"] = kit.model(draft)
    if kit.cpu:
        keys["LLAMA_THREADS"] = 1
    home = kit.home("verify")
    file = kit.env_file(home, f"{name}.env", **keys)
    words = ("--env-file", str(file), "--tokens", str(tokens), "--no-context", "--json")
    told: dict[str, Any] = kit.specdash(home, "verify", *words).json()
    return told


def judge(report: Report, name: str, told: dict[str, Any]) -> None:
    """What `verify --json` says of one way to speculate."""
    mine = [result for result in told["results"] if result["side"] == "candidate"]
    differing = [entry for entry in mine if entry["verdict"] != "identical"]
    gaps = [place["gap"] for entry in differing for place in entry["differences"] if place["gap"] is not None]
    report.judge(
        f"verify, {name}: the text is the same, or differs at near ties only",
        bool(mine) and all(entry["verdict"] in HARMLESS for entry in mine),
        told["verdict"],
        " or ".join(HARMLESS),
        note="; ".join(told["notes"]),
    )
    report.judge(
        f"verify, {name}: drafts were put to the test",
        sum(entry["drafted"] or 0 for entry in mine) > 0,
        {key: sum(entry[key] or 0 for entry in mine) for key in ("drafted", "accepted")},
        "drafted above 0",
        "tokens",
    )
    itself = [result for result in told["results"] if result["side"] == "baseline" and result["verdict"] != "identical"]
    report.figure(
        f"verify, {name}: answers that differ, of {len(mine)}; of the baseline from itself; the largest gap",
        [len(differing), len(itself), round(max(gaps), 4) if gaps else None],
        "answers, answers, nats",
    )


CHECK = Check("verify", "speculation leaves the text as it is, but for near ties", run, limit_s=LIMIT_S)

"""Training of the target on text, and of the draft on the target's own distribution and greedy continuations."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from demo_models.network import Llama

TOKENS_PER_STEP = 4096
SHORT_WINDOW = 512
LONG_WINDOW = 2048
#: Code, chat, pattern, where nothing else is asked for.
USUAL_SHARES = (0.42, 0.46, 0.12)
#: Share of windows that start at a document's first token, as a prompt does.
ALIGNED_SHARE = 0.6
WARMUP_STEPS = 30
PROMPT_TOKENS = 48
GENERATED_BATCH = 96
HAS_BFLOAT16 = "avx512_bf16" in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of training: the rate rises to ``peak``, stays for a share ``constant``, falls linearly to nothing.

    From ``long_from`` on, every ``long_every``-th step sees long windows, so that attention stays sane far back.
    ``shares`` mixes the kinds of document: code, chat, pattern. ``minutes``, if given, may end the phase early, and
    then a run does not repeat exactly.
    """

    steps: int
    peak: float
    constant: float
    shares: tuple[float, float, float]
    long_from: float
    long_every: int
    minutes: float | None = None

    def progress(self, step: int, started: float) -> float:
        """0 at the start, 1 at the end, by steps or by the clock, whichever is further."""
        by_clock = 0.0 if self.minutes is None else (time.monotonic() - started) / (60 * self.minutes)
        return max(step / self.steps, by_clock)

    def is_long(self, step: int, progress: float) -> bool:
        """Whether this step sees long windows."""
        return progress >= self.long_from and step % self.long_every == 0


TARGET_PHASES = (
    Phase(1400, peak=1.0, constant=0.35, shares=USUAL_SHARES, long_from=0.9, long_every=1),
    Phase(400, peak=0.5, constant=0.0, shares=(0.42, 0.53, 0.05), long_from=0.0, long_every=2),
)
DRAFT_PHASE = Phase(900, peak=1.0, constant=0.35, shares=USUAL_SHARES, long_from=0.8, long_every=2)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run went: steps taken, mean ``loss`` of the last ones (nats a token), ``seconds`` of wall clock."""

    steps: int
    loss: float
    seconds: float


class Windows:
    """Draws training windows from token streams, one stream a kind of document."""

    def __init__(self, kinds: Sequence[Sequence[npt.NDArray[np.int64]]], seed: int) -> None:
        self._streams = [np.concatenate(documents) for documents in kinds]
        self._starts = [np.concatenate(([0], np.cumsum([len(d) for d in k])[:-1])) for k in kinds]
        self._random = np.random.default_rng(seed)

    @property
    def token_count(self) -> int:
        return sum(len(s) for s in self._streams)

    def draw(self, count: int, length: int, shares: Sequence[float] = USUAL_SHARES) -> Tensor:
        """``count`` windows of ``length`` tokens, kinds mixed by ``shares``."""
        rows = []
        for kind in self._random.choice(len(self._streams), count, p=shares):
            stream, starts = self._streams[kind], self._starts[kind]
            last = len(stream) - length
            aligned = self._random.random() < ALIGNED_SHARE
            at = int(self._random.choice(starts)) if aligned else int(self._random.integers(0, last))
            rows.append(stream[min(at, last) : min(at, last) + length])
        return torch.from_numpy(np.stack(rows))


def train_target(model: Llama, windows: Windows, phase: Phase, log: Callable[[str], None]) -> Outcome:
    """Minimise next-token loss on the text."""

    def loss_at(is_long: bool) -> Tensor:
        length = LONG_WINDOW if is_long else SHORT_WINDOW
        ids = windows.draw(TOKENS_PER_STEP // length, length + 1, phase.shares)
        with _mixed_precision():
            logits = model(ids[:, :-1])
        return functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())

    return _descend(model, loss_at, phase, log)


def train_draft(
    model: Llama, target: Llama, windows: Windows, generated: Tensor, phase: Phase, log: Callable[[str], None]
) -> Outcome:
    """Distil: match the target's distribution and its greedy choice, half on text, half on its own continuations."""
    target.eval().requires_grad_(False)
    order = torch.Generator().manual_seed(0)

    def loss_at(is_long: bool) -> Tensor:
        if is_long:
            ids = windows.draw(TOKENS_PER_STEP // LONG_WINDOW, LONG_WINDOW)
        else:
            rows = TOKENS_PER_STEP // generated.shape[1]
            own = generated[torch.randint(0, len(generated), (rows // 2,), generator=order)]
            ids = torch.cat((own, windows.draw(rows - rows // 2, generated.shape[1])))
        with _mixed_precision():
            with torch.no_grad():
                wanted = target(ids).float().flatten(0, 1)
            logits = model(ids).float().flatten(0, 1)
        guessed = functional.log_softmax(logits, -1)
        divergence = functional.kl_div(
            guessed, functional.log_softmax(wanted, -1), log_target=True, reduction="batchmean"
        )
        return divergence + 0.5 * functional.nll_loss(guessed, wanted.argmax(-1))

    return _descend(model, loss_at, phase, log)


def continuations(target: Llama, windows: Windows, count: int, length: int, log: Callable[[str], None]) -> Tensor:
    """``count`` windows of ``length``: a prompt from the text, then what the target greedily says."""
    rows: list[Tensor] = []
    while len(rows) * GENERATED_BATCH < count:
        prompts = windows.draw(GENERATED_BATCH, PROMPT_TOKENS)
        with _mixed_precision():
            rows.append(target.continue_greedily(prompts, length - PROMPT_TOKENS))
        log(f"continuations {len(rows) * GENERATED_BATCH}/{count}")
    return torch.cat(rows)[:count]


def agreement(draft: Llama, target: Llama, ids: Tensor) -> float:
    """Share of positions where draft and target have the same greedy choice."""
    with torch.no_grad():
        same = draft(ids).argmax(-1) == target(ids).argmax(-1)
    return float(same.float().mean())


def loss_by_position(model: Llama, windows: Windows, edges: Sequence[int], count: int) -> list[float]:
    """Mean loss, nats a token, between consecutive ``edges`` of position: shows how far the context carries."""
    ids = windows.draw(count, edges[-1] + 1)
    with torch.no_grad():
        rows = [functional.cross_entropy(model(row[None, :-1])[0], row[1:], reduction="none") for row in ids]
    losses = torch.stack(rows).mean(0)
    return [float(losses[a:b].mean()) for a, b in itertools.pairwise(edges)]


def _mixed_precision() -> torch.autocast:
    """bfloat16 products where the processor has them; elsewhere they would be slower than float32."""
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=HAS_BFLOAT16)


def _descend(model: Llama, loss_at: Callable[[bool], Tensor], phase: Phase, log: Callable[[str], None]) -> Outcome:
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and n != "embedding"]
    rest = [p for n, p in model.named_parameters() if p.ndim != 2 or n == "embedding"]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=0.02, weight_decay=0.01, momentum=0.95),
        torch.optim.AdamW(rest, lr=4e-3, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    peaks = [o.param_groups[0]["lr"] for o in optimizers]
    started = time.monotonic()
    recent: list[float] = []
    step = 0
    while (progress := phase.progress(step, started)) < 1:
        decay = phase.peak * min(1.0, (1 - progress) / (1 - phase.constant))
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * decay * min(1.0, (step + 1) / WARMUP_STEPS)
            optimizer.zero_grad(set_to_none=True)
        loss = loss_at(phase.is_long(step, progress))
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        recent.append(float(loss.detach()))
        step += 1
        if step % 50 == 0:
            pace = step * TOKENS_PER_STEP / (time.monotonic() - started)
            log(f"step {step}/{phase.steps} loss {math.fsum(recent[-50:]) / 50:.3f} {pace:.0f} tok/s")
    return Outcome(step, math.fsum(recent[-50:]) / max(1, len(recent[-50:])), time.monotonic() - started)

"""The vocabulary of baselines: how fast a model decodes without speculation, as `specdash baseline record` measured it.

One JSON object a line in `paths.baselines_file`; the newest of one key counts.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from specdash.core.field_types import is_sound


@dataclass(frozen=True, slots=True)
class Baseline:
    """Decode speed without speculation of one model on one machine, at one context length and concurrency.

    `decode_rate` is the median of tokens per second of one request; `low` and `high` bound its 95 % interval.
    """

    at: float
    """Unix time of the measurement."""
    model: str
    """File name of the model, without its directory."""
    engine: str
    context: int
    """Tokens in the context when the decode began; it stands for its bucket."""
    concurrency: int
    """Requests that decoded at the same time."""
    decode_rate: float
    low: float
    high: float
    requests: int
    model_bytes: int | None = None
    """Size of the model's file: another file of the same name is another model."""
    gpu: str | None = None
    decode_tokens: int | None = None
    """Tokens of each answer."""

    @property
    def key(self) -> tuple[object, ...]:
        """What it was measured on: a newer one of the same key takes its place."""
        return (self.model, self.model_bytes, self.engine, self.gpu, self.context, self.concurrency)

    @property
    def is_possible(self) -> bool:
        """Whether the figures can have been measured."""
        return 0 < self.low <= self.decode_rate <= self.high and self.context >= 0 and self.concurrency >= 1

    @property
    def middle(self) -> float:
        """Tokens in the context halfway through its answers."""
        return self.context + (self.decode_tokens or 0) / 2

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Baseline | None:
        """The baseline of `to_json`, None for anything else. Fields of newer versions are ignored."""
        try:
            values: dict[str, Any] = json.loads(text)
            known = {one.name for one in fields(cls)}
            baseline = cls(**{name: value for name, value in values.items() if name in known})
        except (ValueError, TypeError, AttributeError):
            return None
        return baseline if is_sound(baseline) and baseline.is_possible else None

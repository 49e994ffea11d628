"""Which prompts fit into a slot, answer and all: known before anything is restarted.

A server that runs counts the tokens itself, with its chat template and tokenizer; else they are reckoned from the
characters, on the safe side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdash.bench.schedule import Job, body_of, length
from specdash.bench.verify_server import Server
from specdash.core.errors import SpecdashError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.bench.samples import Place, Prompt
    from specdash.bench.schedule import Options

CHARACTERS_A_TOKEN = 3
"""Of a prompt that nobody can count: most have more."""
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class _Length:
    prompt: Prompt
    tokens: int
    answer: int

    @property
    def words(self) -> str:
        return f"{self.prompt.id} ({self.tokens} tokens and {self.answer} of answer)"


def fitting(
    prompts: Sequence[Prompt], options: Options, place: Place | None, room: int | None
) -> tuple[tuple[Prompt, ...], tuple[str, ...]]:
    """The prompts that fit, and what is to be said of the others. `place` is where the settings in force are served,
    if they are; `room` the tokens of a slot by the settings, if they tell.

    Raises `UsageError` where no prompt of a class fits.
    """
    lengths, context = _counted(prompts, options, place)
    if lengths is None:
        lengths, context = _reckoned(prompts, options), room
    if context is None:
        return tuple(prompts), ()
    long = [one for one in lengths if one.tokens + one.answer > context]
    kept = tuple(one.prompt for one in lengths if one not in long)
    lost = {one.prompt.kind for one in long} - {one.kind for one in kept}
    if lost:
        shortest = min((one for one in long if one.prompt.kind in lost), key=lambda one: one.tokens + one.answer)
        raise UsageError(
            f"no prompt of class {' or '.join(sorted(lost))} fits into a slot of {context} tokens, the shortest is "
            f"{shortest.words}; ask for shorter answers with --tokens, for other prompts with --prompts, or give slots "
            "more context: a larger LLAMA_CTX_SIZE, or a smaller LLAMA_PARALLEL"
        )
    if not long:
        return kept, ()
    named = ", ".join(one.words for one in long[:_MOST_NAMED]) + (", …" if len(long) > _MOST_NAMED else "")
    return kept, (f"{len(long)} prompts are left out, as they do not fit into a slot of {context} tokens: {named}",)


def _counted(
    prompts: Sequence[Prompt], options: Options, place: Place | None
) -> tuple[list[_Length] | None, int | None]:
    if place is None:
        return None, None
    try:
        with Server(place.url, place.key) as server:
            found = []
            for prompt in prompts:
                body = body_of(Job(0, prompt, 0), options, place)
                tokens = len(server.tokenised(server.templated(body["messages"], prompt.tools)))
                found.append(_Length(prompt, tokens, length(prompt, options)))
            return found, server.slot_context
    except SpecdashError:
        # A server that does not count cannot be helped; its settings may tell enough.
        return None, None


def _reckoned(prompts: Sequence[Prompt], options: Options) -> list[_Length]:
    return [_Length(one, _characters(one) // CHARACTERS_A_TOKEN, length(one, options)) for one in prompts]


def _characters(prompt: Prompt) -> int:
    contents = [message.get("content") for message in prompt.messages]
    texts = [part.get("text") for one in contents if isinstance(one, list) for part in one if isinstance(part, dict)]
    return sum(len(one) for one in (*contents, *texts) if isinstance(one, str))

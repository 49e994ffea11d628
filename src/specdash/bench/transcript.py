"""Reads recorded sessions of agents, so that every request can be sent again with the very prefix it had.

Two formats: what Claude Code writes (one record a line; a message of the model comes in several records with the same
message id), and OpenAI message lists (a JSON list, an object with `messages`, or either a line). The session is a tree:
a prompt that was edited, or an answer asked for again, begins a branch, and a compaction begins anew. Every turn of the
model is one call, in the order they were made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.bench.transcript_assembly import Assembly, BrokenFileError
from specdash.bench.transcript_lines import TranscriptError, read_lines
from specdash.bench.transcript_parts import Contents, declared
from specdash.bench.transcript_turns import Transcript

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import BinaryIO

    from specdash.bench.transcript_lines import Line

MOST_CHARS = 512 * 1024 * 1024
"""Of the texts that are kept."""


def read_transcript(
    stream: BinaryIO, name: str, *, turns: int | None = None, skip_broken: bool = False, images: bool = False
) -> Transcript:
    """The session of a file, at most its first `turns` calls; `images` keeps images, for which a note stands else.

    Raises `TranscriptError` for a broken line, unless those are to be skipped, and for a file without any call.
    """
    return assembled(read_lines(stream), name, turns=turns, skip_broken=skip_broken, images=images)


def assembled(
    lines: Iterable[Line], name: str, *, turns: int | None = None, skip_broken: bool = False, images: bool = False
) -> Transcript:
    """Likewise, of lines that were read already."""
    made = Assembly(Contents(images), turns, skip_broken)
    number = 0
    try:
        for line in lines:
            number = line.number
            made.take(line)
            if made.chars > MOST_CHARS:
                raise TranscriptError(
                    f"{name} line {number}: more than {MOST_CHARS // 2**20} MiB of text; read less of it with --turns"
                )
            if made.full:
                break
        made.finish(number)
    except BrokenFileError as error:
        raise TranscriptError(f"{name} {error}; mend it, or go on with --skip-broken") from None
    if not made.calls:
        raise TranscriptError(f"{name}{_nothing(made, number)}")
    return Transcript(
        tuple(made.calls),
        declared(made.used),
        made.format or "",
        number,
        made.skipped,
        tuple(made.told),
        dict(made.contents.left_out + made.left_out),
        made.full,
    )


def _nothing(made: Assembly, lines: int) -> str:
    if not lines:
        return " is empty; name a session that Claude Code wrote, or a list of OpenAI messages"
    if made.format is None:
        why = f" ({made.told[0]})" if made.told else ""
        return f": none of its {lines} lines is a record of Claude Code or an OpenAI message{why}"
    lost = f", {made.skipped} broken ones left out" if made.skipped else ""
    return f": no turn of an assistant after a prompt in {lines} lines{lost}, so there is nothing to replay"

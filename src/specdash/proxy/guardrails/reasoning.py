"""What a turn of nothing but reasoning shows instead of nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdash.proxy.settings import ProxySettings

_TAGS = re.compile(r"</?think(?:ing)?>", re.IGNORECASE)


def fallback_text(thinking: str, settings: ProxySettings) -> str:
    """The text for a turn whose only content is `thinking`; "" when it shall show nothing.

    `sanitized` is one line without think tags, cut at `stream_reasoning_max_chars`; `visible` is the reasoning itself.
    """
    if settings.stream_reasoning_fallback == "visible":
        return thinking
    if settings.stream_reasoning_fallback != "sanitized":
        return ""
    line = " ".join(_TAGS.sub(" ", thinking).split())
    longest = settings.stream_reasoning_max_chars
    return line if len(line) <= longest else line[:longest] + "..."

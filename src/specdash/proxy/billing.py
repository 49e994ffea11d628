"""Claude Code's billing header, a line at the start of the system prompt whose values change with every request.

`x-anthropic-billing-header: cc_version=2.1.50.d2a; cc_entrypoint=cli; cch=81ac4;`: left alone it makes every prompt
new from its first tokens on, and the upstream's prefix cache useless.
"""

from __future__ import annotations

import re

# Only the run of `key=value;` right after the name belongs to the header: text that follows may speak of `cch=` too.
_HEADER = re.compile(r"\s*x-anthropic-billing-header:(?:[ \t]*+[\w-]++=[^;\s]*+;?+)*+", re.IGNORECASE)
_NONCE = re.compile(r"\b(cch=)[^;\s]*")
_VERSION = re.compile(r"\b(cc_version=\d+\.\d+\.\d+)[^;\s]*")


def steady(text: str) -> str:
    """A system text with the header's rotating values replaced by constants; other text comes back as it is."""
    header = _HEADER.match(text)
    if header is None:
        return text
    return _VERSION.sub(r"\1", _NONCE.sub(r"\g<1>0", header[0])) + text[header.end() :]


def without_header(text: str) -> str:
    """A system text without the header."""
    header = _HEADER.match(text)
    return text if header is None else text[header.end() :].lstrip()

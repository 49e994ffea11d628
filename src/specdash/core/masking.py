"""Secrets inside texts that are no secrets themselves: flags that carry a key, and passwords in addresses."""

from __future__ import annotations

import functools
import re

from specdash.core.parameter_catalogue import BY_FLAG

MASK = "***"
_ADDRESS = re.compile(r"(://[^\s/@:]*):[^\s/@]+@")


@functools.cache
def _flags() -> re.Pattern[str]:
    spelled = sorted(flag for flag, (parameter, _) in BY_FLAG.items() if parameter.secret)
    names = "|".join(re.escape(flag).replace(r"\-", "[-_]") for flag in spelled)
    return re.compile(rf"(?<![\w-])((?:{names})(?:=|\s+))(?:\"[^\"]*\"|'[^']*'|[^\s'\"]+)")


def without_secrets(text: str) -> str:
    """`text` with the value of every flag that carries a key, and every password of a URL, replaced by `***`."""
    return _ADDRESS.sub(rf"\1:{MASK}@", _flags().sub(rf"\1{MASK}", text))

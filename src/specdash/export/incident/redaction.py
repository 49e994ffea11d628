"""What must not leave the machine, in one table, and the one pass that takes it out of texts and data.

Two things are taken out always: what looks like a secret wherever it stands (`TABLE`), and every secret that is known
by its value (API keys, secret values of env files). Hosts, users and directories only on request: see `Names`.
What others wrote (prompts, answers, chat templates) never gets this far: `specdash.llama.log_safe` and
`specdash.export.incident.values` let through only what specdash itself has words for.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from specdash.core.changes import is_secret
from specdash.core.masking import MASK, without_secrets
from specdash.core.parameter_catalogue import BY_FLAG, BY_KEY
from specdash.core.parameters import Kind, Parameter
from specdash.core.proxy_parameters import BY_KEY as PROXY_KEYS

EMAIL_MASK = "(e-mail address)"
SHORTEST_SECRET = 6
"""Shorter values are masked where a key or flag names them, and not searched for elsewhere."""
PLAIN_LENGTH = 400

_NAMING_FLAG = (
    r"--?(?:api[-_]key|hf[-_]token|hft|auth[-_]token|token|password|passwd|secret|access[-_]key|ssl[-_]key[-_]password)"
)
_VALUE = r"(?:\"[^\"]*\"|'[^']*'|[^\s'\",;&]+)"


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of secret: how it is recognised, and what stands in its place."""

    name: str
    pattern: re.Pattern[str]
    instead: str


TABLE: tuple[Row, ...] = (
    Row(
        "private key",
        re.compile(
            r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL
        ),
        MASK,
    ),
    Row(
        "authorization header",
        re.compile(
            r"(?i)\b(authorization[\"']?\s*[:=]\s*)(?:[\"'][^\"']*[\"']|(?:bearer|basic|token|digest)\s+\S+|\S+)"
        ),
        rf"\1{MASK}",
    ),
    Row("bearer or basic token", re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"), rf"\1 {MASK}"),
    Row(
        "flag that carries a key",
        re.compile(rf"(?i)(?<![\w-])({_NAMING_FLAG}(?:=|\s+))(?!-){_VALUE}"),
        rf"\1{MASK}",
    ),
    Row(
        "named secret",
        re.compile(
            r"(?i)(?<![\w-])((?:[\w-]{0,40}[-_])?(?:api[-_]?key|secret|token|password|passwd|passphrase|credentials?)"
            rf"[\"']?\s*(?:=|:)\s*)(?!\*\*\*)(?!-?[\d.]+\b){_VALUE}"
        ),
        rf"\1{MASK}",
    ),
    Row(
        "token of a known shape",
        re.compile(
            r"(?<![A-Za-z0-9])(?:(?:sk|pk|rk|hf|ghp|gho|ghu|ghs|ghr|glpat|npm|pypi|xox[abeoprs]|github_pat|nvapi|gsk)"
            r"[-_][A-Za-z0-9_\-]{6,}|AKIA[0-9A-Z]{12,}|AIza[\w-]{20,}|ya29\.[\w-]{10,}"
            r"|eyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?)"
        ),
        MASK,
    ),
    Row("user and password in a URL", re.compile(r"(?<=://)[^/@\s]+(?=@)"), MASK),
    Row("e-mail address", re.compile(r"[\w.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})+"), EMAIL_MASK),
)
"""Applied in this order, everywhere."""


@dataclass(frozen=True, slots=True)
class Names:
    """What `--anonymise` takes out besides: this machine's names, its user, its home, and where files are."""

    hosts: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    home: str = ""


_LOCAL = r"127\.\d|0\.0\.0\.0|localhost\b|\[::1?\]"
_URL_HOST = re.compile(rf"(?<=://)(?!{_LOCAL}|\*\*\*)(?:\*\*\*@)?(\[[^\]]+\]|[\w.-]+)")
_IP = re.compile(r"(?<![\w.])(?!127\.|0\.0\.0\.0|255\.)\d{1,3}(?:\.\d{1,3}){3}(?![\w.])")
_DIRECTORY = re.compile(r"(?<![\w.:/~])~?/(?:[\w.@+ -]{1,200}/)+(?=[\w.@+-])")


class Redactor:
    """Takes out what must not leave the machine. Equal texts give equal texts; nothing is remembered but that."""

    def __init__(self, secrets: Iterable[str] = (), names: Names | None = None) -> None:
        """`secrets` are secret values themselves; `names` is given to hide hosts, users and directories too."""
        self.secrets = frozenset(one for one in secrets if len(one) >= SHORTEST_SECRET)
        spelled = {spelling for one in self.secrets for spelling in spellings(one)}
        self._known = _any_of(spelled)
        self._names = names
        self._hosts = _any_of(names.hosts, words=True) if names is not None else None
        self._users = _any_of(names.users, words=True) if names is not None else None
        self._aliases: dict[str, str] = {}
        self.text: Callable[[str], str] = lru_cache(maxsize=8192)(self._text)

    def _text(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(MASK, text)
        text = without_secrets(text)
        for row in TABLE:
            text = row.pattern.sub(row.instead, text)
        return self._anonymous(text) if self._names is not None else text

    def data(self, value: Any, key: str = "") -> Any:
        """JSON-like data, whatever its depth. A text under a key that is a secret's is masked whole."""
        if isinstance(value, Enum):
            return value
        if isinstance(value, str):
            if value and key and is_secret(key.upper()):
                return MASK
            return self.identity(value) if key in _IDENTITIES else self.text(value)
        if isinstance(value, Mapping):
            return {self.text(name): self.data(item, name) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(item, key) for item in value]
        return value

    def identity(self, text: str) -> str:
        """The id of a session: hidden with the names, since clients put who they are into it."""
        if self._names is None or not text:
            return self.text(text)
        return self._alias("session", text)

    def setting(self, key: str, value: str) -> str:
        """The value of an env key as it may be shown. Of keys that nobody is known to read, only plain numbers are."""
        if not value:
            return value
        if is_secret(key):
            return MASK
        if key == "LLAMA_EXTRA_ARGS":
            return self._arguments(value)
        return self._plain(value, BY_KEY.get(key) or PROXY_KEYS.get(key), known=_is_known(key))

    def command(self, words: Sequence[str]) -> tuple[str, ...]:
        """An argument vector: values of flags by what the flag is, other words only where they are plain."""
        shown: list[str] = []
        flag: Parameter | None = None
        waits = False
        for at, word in enumerate(words):
            name, equals, value = word.partition("=")
            spelled = name.replace("_", "-") if name.startswith("--") else name
            if waits:
                shown.append(self._plain(word, flag, known=flag is not None))
                waits = False
            elif word.startswith("-") and len(word) > 1 and not word[1].isdigit():
                known = BY_FLAG.get(spelled)
                flag = known[0] if known is not None else None
                if equals:
                    shown.append(f"{self.text(name)}={self._plain(value, flag, known=flag is not None)}")
                else:
                    shown.append(self.text(word))
                    following = words[at + 1] if at + 1 < len(words) else "-"
                    negative = following[1:2].isdigit()
                    switch = flag is not None and flag.kind is Kind.SWITCH
                    waits = not switch and (flag is not None or not following.startswith("-") or negative)
            else:
                shown.append(self._plain(word, None, known=at == 0 or _PROGRAM.fullmatch(word) is not None))
        return tuple(shown)

    def _arguments(self, text: str) -> str:
        try:
            words = shlex.split(text)
        except ValueError:
            return _left_out(text)
        return " ".join(shlex.quote(word) if MASK not in word else word for word in self.command(words))

    def _plain(self, value: str, parameter: Parameter | None, *, known: bool) -> str:
        """A value as it may be shown: a text only where it is a few plain words of a setting that is known."""
        if parameter is not None and parameter.secret:
            return MASK
        if _NUMBER.fullmatch(value):
            return value
        if not known:
            return MASK
        path = parameter is not None and parameter.kind is Kind.PATH
        if not (_PATH if path else _PLAIN).fullmatch(value):
            return _left_out(value)
        return self.text(value)

    def _anonymous(self, text: str) -> str:
        assert self._names is not None  # noqa: S101 - for the type checker
        text = _URL_HOST.sub(lambda found: self._alias("host", found[1]), text)
        text = _IP.sub(lambda found: self._alias("host", found[0]), text)
        if self._names.home not in ("", "/"):
            text = re.sub(rf"{re.escape(self._names.home)}(?=/|\b)", "~", text)
        text = _DIRECTORY.sub(".../", text)
        if self._hosts is not None:
            text = self._hosts.sub("this-host", text)
        return self._users.sub("user", text) if self._users is not None else text

    def _alias(self, kind: str, name: str) -> str:
        count = sum(1 for alias in self._aliases.values() if alias.startswith(kind))
        return self._aliases.setdefault(name, f"{kind}-{count + 1}")


def spellings(secret: str) -> frozenset[str]:
    """How a secret value is written in a text, a URL and a JSON string."""
    return frozenset(
        {secret, quote(secret, safe=""), json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    )


_NUMBER = re.compile(r"[+-]?\d{1,12}(?:\.\d{1,9})?(?:,[+-]?\d{1,12}(?:\.\d{1,9})?){0,63}")
_PLAIN = re.compile(rf"[\w.,:@%+/=~\[\]*-]{{0,{PLAIN_LENGTH}}}")
_PATH = re.compile(rf"[^\n\r\0]{{0,{PLAIN_LENGTH}}}")
_PROGRAM = re.compile(r"[\w./+-]{0,200}?(?:python[\d.]*|llama-server[\w.-]*|specdash[\w.]*|-m|run|backend|proxy)")
_READ_BY_OTHERS = ("LLAMA_ARG_", "GGML_", "CUDA_", "NVIDIA_", "HIP_", "ROCR_", "OMP_", "SPECDASH_")
_IDENTITIES = frozenset({"session", "session_id"})


def _is_known(key: str) -> bool:
    return key in BY_KEY or key in PROXY_KEYS or key.startswith(_READ_BY_OTHERS)


def _left_out(value: str) -> str:
    return f"(text of {len(value)} characters)"


def _any_of(values: Iterable[str], *, words: bool = False) -> re.Pattern[str] | None:
    longest_first = sorted((one for one in set(values) if len(one) > 2), key=lambda one: (-len(one), one))
    if not longest_first:
        return None
    text = "|".join(map(re.escape, longest_first))
    return re.compile(rf"(?<![A-Za-z0-9])(?:{text})(?![A-Za-z0-9])" if words else text)

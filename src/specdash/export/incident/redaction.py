"""What must not leave the machine: secrets, and texts of prompts, answers and clients.

Two things are taken out of every text: what looks like a secret wherever it stands (`TABLE`), and every secret that is
known by its value (API keys, secret values of env files). What others wrote has no shape that could be searched for:
log lines are rebuilt from the table of line classes (`specdash.llama.log.safe`), and of the documents that specdash
prints, the few fields that quote a log line or a client are named in `_FOREIGN`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote as url_quote

from msgspec.structs import replace

from specdash.core.changes import is_secret
from specdash.core.envfile import parse, quote
from specdash.core.masking import MASK, without_secrets
from specdash.core.parameter_catalogue import BY_FLAG, BY_KEY
from specdash.core.parameters import ValueKind
from specdash.core.proxy_parameters import BY_KEY as PROXY_KEYS
from specdash.llama.log.safe import ELLIPSIS, own_seconds, safe_error, safe_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from specdash.core.changes import ApplyRecord
    from specdash.core.parameters import Parameter
    from specdash.core.records import Alert, TimelineEvent

SHORTEST_SECRET = 6
"""Shorter values are masked where a key or flag names them, and not searched for elsewhere."""
PLAIN_LENGTH = 400
COMMENT = "# (comment left out)"
UNREADABLE = "# (unreadable line left out)"

_NAMING_FLAG = (
    r"--?(?:api[-_]key|hf[-_]token|hft|auth[-_]token|token|password|passwd|secret|access[-_]key|ssl[-_]key[-_]password)"
)
_VALUE = r"(?:\"[^\"]*\"|'[^']*'|[^\s'\",;&]+)"
TABLE: tuple[tuple[str, re.Pattern[str], str], ...] = (
    (
        "private key",
        re.compile(
            r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL
        ),
        MASK,
    ),
    (
        "authorization header",
        re.compile(
            r"(?i)\b(authorization[\"']?\s*[:=]\s*)(?:[\"'][^\"']*[\"']|(?:bearer|basic|token|digest)\s+\S+|\S+)"
        ),
        rf"\1{MASK}",
    ),
    ("bearer or basic token", re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"), rf"\1 {MASK}"),
    (
        "flag that carries a key",
        re.compile(rf"(?i)(?<![\w-])({_NAMING_FLAG}(?:=|\s+))(?!-){_VALUE}"),
        rf"\1{MASK}",
    ),
    (
        "named secret",
        # A short number is a count of tokens rather than a secret.
        re.compile(
            r"(?i)(?<![\w-])((?:[\w-]{0,40}[-_])?(?:api[-_]?key|secret|token|password|passwd|passphrase|credentials?)"
            rf"[\"']?\s*(?:=|:)\s*)(?!\*\*\*)(?!-?[\d.]{{1,5}}\b){_VALUE}"
        ),
        rf"\1{MASK}",
    ),
    (
        "token of a known shape",
        re.compile(
            r"(?<![A-Za-z0-9])(?:(?:sk|pk|rk|hf|ghp|gho|ghu|ghs|ghr|glpat|npm|pypi|xox[abeoprs]|github_pat|nvapi|gsk)"
            r"[-_][A-Za-z0-9_\-]{6,}|AKIA[0-9A-Z]{12,}|AIza[\w-]{20,}|ya29\.[\w-]{10,}"
            r"|eyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?)"
        ),
        MASK,
    ),
    ("user and password in a URL", re.compile(r"(?<=://)[^/@\s]+(?=@)"), MASK),
    (
        "e-mail address",
        re.compile(r"[\w.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})+"),
        "(e-mail address)",
    ),
)
"""Kinds of secrets: name, how it is recognised, and what stands in its place. Applied in this order, everywhere."""

_NUMBER = re.compile(r"[+-]?\d{1,12}(?:\.\d{1,9})?(?:,[+-]?\d{1,12}(?:\.\d{1,9})?){0,63}")
_PLAIN = re.compile(rf"[\w.,:@%+/=~\[\]*-]{{0,{PLAIN_LENGTH}}}")
_PATH = re.compile(rf"[^\n\r\0]{{0,{PLAIN_LENGTH}}}")
_PROGRAM = re.compile(r"[\w./+-]{0,200}?(?:python[\d.]*|llama-server[\w.-]*|specdash[\w.]*|-m|run|backend|proxy)")
_QUOTES_LOG = re.compile(r"(?i)\b(?:sample|line|log)\b")
_READ_BY_OTHERS = ("LLAMA_ARG_", "GGML_", "CUDA_", "NVIDIA_", "HIP_", "ROCR_", "OMP_", "SPECDASH_")


def line_or_text(text: str) -> str:
    """A text that may be a log line, rebuilt if it has a log line's time stamp."""
    return safe_text(text) if own_seconds(text) is not None else text


_ID = re.compile(r"[\w./:@+-]{0,200}")
_MARK = re.compile(r"[a-z_]{0,40}(?::[a-z_]{1,40})?")


def _quoted(line: str) -> str:
    return safe_text(line) if line else line


def _only(pattern: re.Pattern[str]) -> Callable[[str], str]:
    return lambda text: text if pattern.fullmatch(text) else ELLIPSIS


_FOREIGN: Mapping[str, Callable[[str], str]] = {
    "sample": _quoted,
    "problem": _quoted,
    "log_lines": _quoted,
    "error": safe_error,
    "request_id": _only(_ID),
    "error_type": _only(_MARK),
    "stop_reason": _only(_MARK),
    "tool_calls": lambda _: ELLIPSIS,
    # A problem of the proxy's settings quotes the value of the setting that it is about.
    "problems": lambda text: f"{text.partition('=')[0]} {ELLIPSIS}",
}
"""Fields of the documents that specdash prints which quote a log line or a client, and what may be shown of them."""


class Redactor:
    """Takes out what must not leave the machine. Equal texts give equal texts."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """`secrets` are secret values themselves; of a list of keys, each is one."""
        every = {part.strip() for secret in secrets for part in (secret, *secret.split(","))}
        self.secrets = frozenset(secret for secret in every if len(secret) >= SHORTEST_SECRET)
        spelled = sorted({text for secret in self.secrets for text in spellings(secret)}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, spelled))) if spelled else None

    def text(self, text: str) -> str:
        """The text with every secret masked."""
        if self._known is not None:
            text = self._known.sub(MASK, text)
        text = without_secrets(text)
        for _, pattern, instead in TABLE:
            text = pattern.sub(instead, text)
        return text

    def data(self, value: Any, key: str = "") -> Any:
        """JSON-like data of any depth. A text under a key that is a secret's is masked whole."""
        if isinstance(value, str):
            if value and key and is_secret(key.upper()):
                return MASK
            return self.text(_FOREIGN.get(key, line_or_text)(value))
        if isinstance(value, Mapping):
            return {self.text(str(name)): self.data(item, str(name)) for name, item in value.items()}
        if key == "command" and isinstance(value, list | tuple):
            return self.command(value)
        if isinstance(value, list | tuple):
            return [self.data(item, key) for item in value]
        return value

    def setting(self, key: str, value: str) -> str:
        """The value of an env key as it may be shown. Of unknown keys only plain numbers are."""
        if not value:
            return value
        if is_secret(key):
            return MASK
        if key == "LLAMA_EXTRA_ARGS":
            try:
                words = shlex.split(value)
            except ValueError:
                return _left_out(value)
            return " ".join(shlex.quote(word) if MASK not in word else word for word in self.command(words))
        known = key in BY_KEY or key in PROXY_KEYS or key.startswith(_READ_BY_OTHERS)
        return self._plain(value, BY_KEY.get(key) or PROXY_KEYS.get(key), known=known)

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
                    switch = flag is not None and flag.kind is ValueKind.SWITCH
                    waits = not switch and (flag is not None or not following.startswith("-") or negative)
            else:
                shown.append(self._plain(word, None, known=at == 0 or _PROGRAM.fullmatch(word) is not None))
        return tuple(shown)

    def alert(self, alert: Alert) -> Alert:
        """An alert; evidence that quotes the log is rebuilt."""
        evidence = tuple(
            (label, self.text(safe_text(text) if text and _QUOTES_LOG.search(label) else line_or_text(text)))
            for label, text in alert.evidence
        )
        fix = tuple((key, None if value is None else self.setting(key, value)) for key, value in alert.fix)
        return replace(alert, summary=self.text(line_or_text(alert.summary)), evidence=evidence, fix=fix)

    def event(self, event: TimelineEvent) -> TimelineEvent:
        """A line of the timeline."""
        return replace(event, title=self.text(line_or_text(event.title)), detail=self.text(line_or_text(event.detail)))

    def apply(self, record: ApplyRecord) -> ApplyRecord:
        """A change; its values as settings, its log lines rebuilt, also where the reason quotes them."""
        reason = record.reason
        for line in filter(None, record.log_lines):
            reason = reason.replace(line, ELLIPSIS)
        changes = tuple(
            replace(
                change,
                before=None if change.before is None else self.setting(change.key, change.before),
                after=None if change.after is None else self.setting(change.key, change.after),
            )
            for change in record.changes
        )
        return replace(
            record,
            changes=changes,
            reason=self.text(line_or_text(reason)),
            log_lines=tuple(self.text(safe_text(line)) for line in record.log_lines),
            warnings=tuple(self.text(line_or_text(warning)) for warning in record.warnings),
        )

    def env_file(self, text: str) -> str:
        """An env file without secrets, comments, and values of keys that neither service is known to read."""
        lines = []
        for entry in parse(text).entries:
            if entry.problem is not None:
                lines.append(UNREADABLE)
            elif entry.key is None or entry.value is None:
                lines.append(COMMENT if entry.raw.strip() else "")
            else:
                value = self.setting(entry.key, entry.value)
                plain = value == MASK or value.startswith("(text of")
                lines.append(f"{entry.key}={value if plain else quote(value)}")
        return "".join(f"{line}\n" for line in lines)

    def _plain(self, value: str, parameter: Parameter | None, *, known: bool) -> str:
        """A value as it may be shown: a text only where it is a few plain words of a setting that is known."""
        if parameter is not None and parameter.secret:
            return MASK
        if _NUMBER.fullmatch(value):
            return value
        if not known:
            return MASK
        path = parameter is not None and parameter.kind is ValueKind.PATH
        return self.text(value) if (_PATH if path else _PLAIN).fullmatch(value) else _left_out(value)


def spellings(secret: str) -> frozenset[str]:
    """How a secret value is written in a text, a URL and a JSON string."""
    return frozenset(
        {secret, url_quote(secret, safe=""), json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    )


def secret_values(text: str) -> set[str]:
    """Values in an env file that must never be found in a bundle: of secret keys, and of flags that carry a key."""
    found: set[str] = set()
    for entry in parse(text).entries:
        if entry.key is None or not entry.value:
            continue
        if is_secret(entry.key):
            found.add(entry.value)
        try:
            words = shlex.split(entry.value)
        except ValueError:
            words = entry.value.split()
        for at, word in enumerate(words):
            flag, equals, inline = word.partition("=")
            known = BY_FLAG.get(flag.replace("_", "-") if flag.startswith("--") else flag)
            if known is not None and known[0].secret:
                found.update([inline] if equals else words[at + 1 : at + 2])
    return found


def _left_out(value: str) -> str:
    return f"(text of {len(value)} characters)"

"""A wanted change of the services' settings, as data: which keys of which service, to what."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from specdash.core.errors import UsageError
from specdash.core.masking import MASK, without_secrets
from specdash.core.parameter_catalogue import BY_KEY as BACKEND_KEYS
from specdash.core.proxy_parameters import BY_KEY as PROXY_KEYS

if TYPE_CHECKING:
    from collections.abc import Mapping

_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "KEYS", "TOKENS", "CREDENTIALS")
_NOT_SECRET_ENDINGS = ("_FILE", "_ENV", "_MAX_TOKENS")


class Role(StrEnum):
    """What a service is for."""

    BACKEND = "backend"
    """llama.cpp's server."""
    PROXY = "proxy"
    """The Anthropic proxy in front of it."""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One key of one service. None stands for a key that is not set. Never print `before` and `after`: see `shown`."""

    role: Role
    key: str
    before: str | None = field(repr=False)
    after: str | None = field(repr=False)

    @property
    def shown(self) -> tuple[str | None, str | None]:
        """Before and after as they may be printed and stored: secrets masked."""
        return shown_value(self.key, self.before), shown_value(self.key, self.after)


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """What shall be set: per service, key to value; None removes the key."""

    values: Mapping[Role, Mapping[str, str | None]] = field(repr=False)

    @property
    def roles(self) -> tuple[Role, ...]:
        """The services with something to change, the backend first."""
        return tuple(role for role in Role if self.values.get(role))

    def of(self, role: Role) -> Mapping[str, str | None]:
        """What shall be set of one service."""
        return self.values.get(role, {})

    def after(self, role: Role, before: Mapping[str, str]) -> dict[str, str]:
        """The values of a service once the change is made."""
        merged = {key: value for key, value in before.items() if key not in self.of(role)}
        merged.update({key: value for key, value in self.of(role).items() if value is not None})
        return merged

    def changes(self, role: Role, before: Mapping[str, str]) -> tuple[KeyChange, ...]:
        """What differs from `before`, key by key; a key that has its wanted value already is not among them."""
        wanted = self.of(role).items()
        return tuple(KeyChange(role, key, before.get(key), value) for key, value in wanted if before.get(key) != value)


def role_of(key: str) -> Role | None:
    """The service that reads the key, None when neither is known to."""
    if key in PROXY_KEYS or key.startswith("PROXY_"):
        return Role.PROXY
    if key in BACKEND_KEYS or key.startswith("LLAMA_"):
        return Role.BACKEND
    return None


def is_secret(key: str) -> bool:
    """Whether the value of an env key must not be shown."""
    declared = BACKEND_KEYS.get(key) or PROXY_KEYS.get(key)
    if declared is not None:
        return declared.secret
    return key.endswith(_SECRET_WORDS) and not key.endswith(_NOT_SECRET_ENDINGS)


def shown_value(key: str, value: str | None) -> str | None:
    """The value as it may be printed and stored: a secret masked, also one inside a value that is none itself."""
    if not value:
        return value
    return MASK if is_secret(key) else without_secrets(value)


def parse_assignments(words: list[str], role: Role | None = None) -> ChangeSet:
    """`KEY=VALUE` words as a change; `KEY=` sets the empty value, `-KEY` (or `KEY` with a leading `!`) removes a key.

    `role` names the service for keys that neither service is known to read, and must be the right one for those that
    are; but whatever stands in a service's file can be removed from it. Raises `UsageError` naming the word.
    """
    values: dict[Role, dict[str, str | None]] = {}
    for word in words:
        key, equals, value = word.partition("=")
        removed = not equals and word[:1] in "-!"
        if removed:
            key = word[1:]
        if not key or not (equals or removed):
            raise UsageError(f"{word!r}: write KEY=VALUE, or -KEY to remove a key")
        owner = role if removed and role is not None else role_of(key) or role
        if owner is None:
            raise UsageError(f"{key}: neither the backend nor the proxy reads it; add --service backend or proxy")
        if role is not None and owner is not role:
            raise UsageError(f"{key}: belongs to the {owner}, not to the {role}; leave --service out")
        if key in values.get(owner, {}):
            raise UsageError(f"{key}: given twice; give it once")
        values.setdefault(owner, {})[key] = value if equals else None
    return ChangeSet(values)

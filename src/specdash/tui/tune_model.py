"""What the tune screen knows: present values, pending changes, and what the checks say. No I/O, no drawing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specdash.core.changes import ChangeSet, Role, shown_value
from specdash.core.key_help import KeyHelp, all_keys, key_help
from specdash.core.parameter_catalogue import BY_KEY as BACKEND_KEYS
from specdash.core.proxy_parameters import BY_KEY as PROXY_KEYS
from specdash.core.speculation import spec_type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.control.apply import ApplyPlan
    from specdash.control.console import ServicesView
    from specdash.control.profiles import Profile

FIRST_KEYS: dict[Role, tuple[str, ...]] = {
    Role.BACKEND: (
        "LLAMA_SPEC_TYPE",
        "LLAMA_DRAFT_MAX",
        "LLAMA_DRAFT_MIN",
        "LLAMA_DRAFT_P_MIN",
        "LLAMA_DRAFT_MODEL",
        "LLAMA_HYBRID_ROLLBACK_MODE",
        "LLAMA_CTX_SIZE",
        "LLAMA_PARALLEL",
        "LLAMA_EXTRA_ARGS",
    ),
    Role.PROXY: (
        "PROXY_LOOP_BREAKER",
        "PROXY_LOOP_WINDOW",
        "PROXY_LOOP_REPEAT_THRESHOLD",
        "PROXY_NO_PROGRESS_THRESHOLD",
        "PROXY_FORCED_THRESHOLD",
        "PROXY_CONTEXT_RELEASE_THRESHOLD",
        "PROXY_MALFORMED_TOOL_GUARDRAIL",
        "PROXY_MALFORMED_TOOL_STREAM_STRICT",
        "PROXY_GUARDRAIL_RETRY",
    ),
}
"""What is tuned most comes first, set or not."""


@dataclass(frozen=True, slots=True)
class TuneRow:
    """One key: its value now, the wanted one, and the one a rollback goes back to; secrets masked. None: not set.

    `pending` says whether a change is wanted at all: `wanted` None with it is a removal.
    """

    key: str
    now: str | None
    pending: bool
    wanted: str | None
    last_good: str | None
    has_last_good: bool
    help: KeyHelp | None


@dataclass(slots=True)
class TuneModel:
    """Everything the screen shows. Changed by the event loop alone."""

    role: Role = Role.BACKEND
    every_key: bool = False
    services: ServicesView | None = None
    """None until the first look at them."""
    pending: dict[Role, dict[str, str | None]] = field(default_factory=dict)
    profile: str | None = None
    """The preset that `pending` came from, while it is unchanged."""
    plan: ApplyPlan | None = None
    plan_error: str | None = None
    checking: bool = False

    @property
    def changes(self) -> ChangeSet:
        """The pending changes."""
        return ChangeSet({role: dict(keys) for role, keys in self.pending.items() if keys})

    @property
    def count(self) -> int:
        """How many keys have a pending change."""
        return sum(len(keys) for keys in self.pending.values())

    def values(self, role: Role) -> Mapping[str, str]:
        """The env of a service as it is now; empty when it is not known."""
        service = self.services.of(role) if self.services is not None else None
        return service.values if service is not None else {}

    def set(self, key: str, value: str | None) -> None:
        """Want `value` (None: no such key); wanting what is known to be there already is no change."""
        wanted = self.pending.setdefault(self.role, {})
        if self.services is not None and self.values(self.role).get(key) == value:
            wanted.pop(key, None)
        else:
            wanted[key] = value
        self._touched()

    def drop(self, key: str) -> bool:
        """Forget the pending change of one key; whether there was one."""
        there = key in self.pending.get(self.role, {})
        self.pending.get(self.role, {}).pop(key, None)
        self._touched()
        return there

    def clear(self) -> None:
        """Forget all pending changes."""
        self.pending.clear()
        self._touched()

    def take(self, profile: Profile) -> None:
        """Want what the profile says, in place of everything pending."""
        self.pending.clear()
        from specdash.control.profiles import means_the_same

        for role, values in profile.values.items():
            present = self.values(role)
            self.pending[role] = {
                key: value
                for key, value in values.items()
                if key not in present or not means_the_same(role, key, present[key], value)
            }
        self._touched()
        self.profile = profile.name
        if not self.pending.get(self.role):
            self.role = next((role for role in Role if self.pending.get(role)), self.role)

    def settle(self) -> None:
        """Forget what has come true, after the services were looked at again."""
        for role, wanted in self.pending.items():
            present = self.values(role)
            for key in [key for key, value in wanted.items() if present.get(key) == value]:
                del wanted[key]

    @property
    def spec_types(self) -> tuple[str, ...]:
        """The spec types that the backend would have with what is pending; empty when its env does not name them."""
        key = "LLAMA_SPEC_TYPE"
        wanted = self.pending.get(Role.BACKEND, {}).get(key, self.values(Role.BACKEND).get(key))
        known = (spec_type(part) for part in (wanted or "").split(","))
        return tuple(one.name for one in known if one is not None)

    def rows(self, room: int = 0) -> list[TuneRow]:
        """The keys of the shown service: those most tuned, those set, those pending; then others while there is `room`,
        or with `every_key` all there are."""
        service = self.services.of(self.role) if self.services is not None else None
        values = service.values if service is not None else {}
        good = service.last_good if service is not None else None
        pending = self.pending.get(self.role, {})
        keys = list(dict.fromkeys([*FIRST_KEYS[self.role], *values, *pending]))
        others = [one.key for one in all_keys(self.role) if one.key not in keys]
        keys += others if self.every_key else others[: max(room - len(keys), 0)]
        return [
            TuneRow(
                key,
                shown_value(key, values.get(key)),
                key in pending,
                shown_value(key, pending.get(key)),
                shown_value(key, good.get(key)) if good is not None else None,
                good is not None,
                key_help(key),
            )
            for key in keys
        ]

    def problem_with(self, key: str, text: str) -> str | None:
        """Why `text` cannot be the value of `key`, None when it can."""
        from specdash.core.errors import InputError

        parameter = BACKEND_KEYS.get(key) or PROXY_KEYS.get(key)
        if parameter is None or not text:
            return None
        try:
            parameter.parse(text, key)
        except InputError as error:
            return f"{key}: the value cannot be read" if parameter.secret else str(error)
        return None

    def _touched(self) -> None:
        self.profile = self.plan = self.plan_error = None

"""Which services of this machine specdash may change: who runs them, under which name, and with which env file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.control.services.by_hand import ByHand, running_env_files
from specdash.control.services.service_command import is_ours, option_of
from specdash.control.services.services import Deployment, ManagedService, ServiceProblem
from specdash.control.services.systemd import Systemctl, SystemdManager
from specdash.control.services.units import UNIT_OF, read_directives, shown_words, split_words
from specdash.core import paths
from specdash.core.changes import Role
from specdash.core.envfile import read_values
from specdash.core.errors import InputError, ServiceError
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdash.control.services.supervisor_client import SupervisorClient
    from specdash.control.services.supervisor_services import ServiceEntry
    from specdash.core.config import Resolved

OTHERS = {Role.BACKEND: "uap-llama-server.service", Role.PROXY: "uap-anthropic-proxy.service"}
"""Units of the UAP stack, recognised by themselves."""
_INSTALL = {
    Role.BACKEND: "a llama-server that was started by hand is watched, never changed; to change settings from here, "
    "`specdash services adopt` writes its settings into an env file and says how a service takes over",
    Role.PROXY: "`specdash services install` sets it up",
}
_PROPERTIES = (
    *("Id", "LoadState", "LoadError", "ActiveState", "FragmentPath", "DropInPaths", "EnvironmentFiles", "ExecStart"),
    *("CanReload", "TriggeredBy", "Environment", "UnsetEnvironment", "ExecStartEx"),
)
_SUFFIXES = (".service", ".socket", ".target")


@dataclass(frozen=True, slots=True)
class _Candidate:
    role: Role
    unit: str
    origin: str
    named: bool = False


def find_deployment(
    settings: Mapping[str, Resolved], env: Mapping[str, str] = os.environ, *, by_hand: bool = True
) -> Deployment:
    """The services of both roles. Asks systemd one question; never fails: `problems` say why a service is not there.

    What the settings name comes first, then specdash's own unit, then UAP's, then
    the built-in supervisor's services.
    """
    return _Search(settings, env).deployment(by_hand=by_hand)


class _Search:
    def __init__(self, settings: Mapping[str, Resolved], env: Mapping[str, str]) -> None:
        self.settings = settings
        self.env = env
        self.wanted: str = settings["manager"].value
        self.problems: list[ServiceProblem] = []
        self.systemd_missing: str | None = None

    def deployment(self, *, by_hand: bool) -> Deployment:
        units = self._units() if self.wanted in ("auto", "systemd") else {}
        found = {role: self._in_systemd(role, units) for role in Role}
        missing = [role for role in Role if found[role] is None]
        if missing and self.wanted in ("auto", "supervisor"):
            found |= self._in_supervisor(missing)
        missing = [role for role in Role if found[role] is None]
        if by_hand:
            found |= {role: self._by_hand(role) for role in missing}
        unsaid = [role for role in Role if found[role] is None and not self._told(role)]
        for role in unsaid:
            self._say(role, f"no service found{self._where()}; {_INSTALL[role]}")
        if unsaid and self.systemd_missing is not None and self.wanted != "systemd":
            self._say(None, f"{self.systemd_missing}; the built-in supervisor needs none")
        return Deployment(found[Role.BACKEND], found[Role.PROXY], tuple(self.problems))

    def _say(self, role: Role | None, text: str) -> None:
        self.problems.append(ServiceProblem(role, text))

    def _told(self, role: Role) -> bool:
        return any(problem.role is role for problem in self.problems)

    def _where(self) -> str:
        if self.wanted == "supervisor":
            return f" in {paths.services_file(self.env)}"
        return f" ({self.systemd_missing})" if self.systemd_missing and self.wanted == "systemd" else ""

    def _chosen(self, role: Role) -> Path | None:
        """The env file that the settings name."""
        named = self.settings[f"{role}_env_file"].value
        return Path(named).expanduser().absolute() if named is not None else None

    def _candidates(self) -> Iterator[_Candidate]:
        for role in Role:
            named = self.settings[f"{role}_service"]
            if named.value is not None:
                yield _Candidate(role, unit_name(named.value), _short(named.origin), named=True)
                continue
            yield _Candidate(role, UNIT_OF[role], "installed unit")
            yield _Candidate(role, OTHERS[role], "recognised (UAP)")

    def _units(self) -> dict[str, dict[str, str]]:
        """What systemd knows of all candidates, from one question."""
        names = list(dict.fromkeys(candidate.unit for candidate in self._candidates()))
        try:
            return dict(zip(names, Systemctl(self.env).show(names, _PROPERTIES), strict=True))
        except ServiceError as error:
            self.systemd_missing = str(error)
            return {}

    def _in_systemd(self, role: Role, units: Mapping[str, Mapping[str, str]]) -> ManagedService | None:
        chosen: _Candidate | None = None
        for candidate in self._candidates():
            facts = units.get(candidate.unit)
            if candidate.role is not role or facts is None:
                continue
            load = facts.get("LoadState")
            if load == "loaded" or facts.get("ActiveState") in ("active", "activating", "reloading"):
                if chosen is None:
                    chosen = candidate
                elif facts.get("ActiveState") == "active":
                    self._say(
                        role,
                        f"{candidate.unit} runs too, beside {chosen.unit}; set {role}_service to the one that counts",
                    )
            elif chosen is None and (load != "not-found" or (candidate.named and self.wanted == "systemd")):
                self._say(role, _unusable(candidate, facts))
        return self._service(chosen, units[chosen.unit]) if chosen is not None else None

    def _service(self, candidate: _Candidate, facts: Mapping[str, str]) -> ManagedService | None:
        files = [facts.get("FragmentPath", ""), *(split_words(facts.get("DropInPaths", "")) or ())]
        words = _exec_words(facts, files, self.env)
        plain = [word.replace("$$", "$") if index else word for index, word in enumerate(words)]
        ours = is_ours(plain, candidate.role)
        env_file = self._env_file(candidate, facts, plain if ours else None)
        if env_file is None:
            key = f"{candidate.role}_env_file"
            self._say(
                candidate.role,
                f"{candidate.unit} names no EnvironmentFile=; "
                f"say which env file it reads with {key} in {paths.config_file(self.env)}",
            )
            return None
        given = option_of(plain, "--env-file") if ours else None
        if given is not None and Path(given) != env_file:
            key = f"{candidate.role}_env_file"
            self._say(
                candidate.role,
                f"{candidate.unit} runs with --env-file {given}, and {key} is {env_file}: "
                f"changes there have no effect; leave {key} out, or run "
                f"`specdash services install {candidate.role} --{candidate.role}-env {env_file}`",
            )
            return None
        sockets = [unit for unit in facts.get("TriggeredBy", "").split() if unit.endswith(".socket")]
        if sockets and candidate.role is Role.PROXY and ours:
            self._check_address(sockets[0], facts, env_file)
        return ManagedService(
            role=candidate.role,
            name=candidate.unit,
            manager=SystemdManager(self.env),
            env_file=env_file,
            reloads=ours and facts.get("CanReload") == "yes",
            origin=candidate.origin,
            socket=bool(sockets),
            foreign=not ours,
        )

    def _env_file(self, candidate: _Candidate, facts: Mapping[str, str], words: list[str] | None) -> Path | None:
        chosen = self._chosen(candidate.role)
        if chosen is not None:
            return chosen
        if words is not None:
            given = option_of(words, "--env-file")
            if given is not None:
                return Path(given)
            return (
                paths.backend_env_file(self.env) if candidate.role is Role.BACKEND else paths.proxy_env_file(self.env)
            )
        files = _env_files(facts)
        # A later file overrules an earlier one: a change there is sure to count.
        return Path(files[-1]) if files and files[-1] else None

    def _check_address(self, socket: str, facts: Mapping[str, str], env_file: Path) -> None:
        """Say so when the socket listens elsewhere than the env file says: it is the socket that counts."""
        from specdash.control.services.installation import proxy_addresses

        fragment = Path(facts.get("FragmentPath", "")).with_name(socket)
        listening = tuple(value for _, key, value in read_directives([str(fragment)]) if key == "ListenStream")
        try:
            wanted = proxy_addresses(read_values(env_file.read_bytes(), str(env_file)))
        except (OSError, InputError):
            return
        if listening and listening != wanted:
            self._say(
                Role.PROXY,
                f"{socket} listens on {', '.join(listening)}, but {env_file} says {', '.join(wanted)}; "
                "run `specdash services install`, then stop and start the proxy",
            )

    def _by_hand(self, role: Role) -> ManagedService | None:
        """What runs without a manager, by the note that it leaves; else the env file that is named, or stands where
        it is looked for."""
        if self.settings[f"{role}_service"].value is not None or self.wanted != "auto":
            return None
        default = paths.backend_env_file(self.env) if role is Role.BACKEND else paths.proxy_env_file(self.env)
        chosen = self._chosen(role)
        running = list(dict.fromkeys(Path(os.path.realpath(file)) for file in running_env_files(role, self.env)))
        files = [chosen] if chosen is not None else [default] if default in running else running
        if len(files) > 1:
            named = ", ".join(map(str, files))
            self._say(role, f"several run ({named}); name one with --{role}-env-file")
            return None
        if not files and default.exists():
            files = [default]
        if not files:
            return None
        return ManagedService(
            role=role,
            name=f"{role} of {files[0].name}",
            manager=ByHand(role, files[0], self.env),
            env_file=files[0],
            reloads=True,
            origin="its run record" if files[0] in running else "its env file",
        )

    def _in_supervisor(self, roles: list[Role]) -> dict[Role, ManagedService | None]:
        from specdash.control.services.supervisor_client import SupervisorClient
        from specdash.control.services.supervisor_services import read_services

        try:
            entries = read_services(paths.services_file(self.env))
        except InputError as error:
            for role in roles:
                self._say(role, str(error))
            return dict.fromkeys(roles)
        client = SupervisorClient(paths.supervisor_socket(self.env), self.env)
        found: dict[Role, ManagedService | None] = dict.fromkeys(roles)
        for role in roles:
            named = self.settings[f"{role}_service"]
            fitting = [entry for entry in entries if entry.role is role and named.value in (None, entry.name)]
            if fitting:
                found[role] = self._supervised(fitting[0], role, client)
            elif named.value is not None and not self._told(role):
                self._say(
                    role, f"{role}_service = {named.value} ({_short(named.origin)}): no such service{self._where()}"
                )
        return found

    def _supervised(self, entry: ServiceEntry, role: Role, client: SupervisorClient) -> ManagedService:
        ours = entry.argv is None or is_ours(list(entry.argv), role)
        return ManagedService(
            role=role,
            name=entry.name,
            manager=client,
            env_file=self._chosen(role) or entry.env_file,
            reloads=ours,
            origin=paths.services_file(self.env).name,
            socket=entry.listen is not None,
            foreign=not ours,
        )


def unit_name(name: str) -> str:
    """The unit's full name: `.service` where no suffix is given."""
    return name if name.endswith(_SUFFIXES) else f"{name}.service"


def _short(origin: str) -> str:
    return Path(origin).name if origin.startswith("/") else origin


def _unusable(candidate: _Candidate, facts: Mapping[str, str]) -> str:
    setting = f" ({candidate.role}_service, {candidate.origin})" if candidate.named else ""
    match facts.get("LoadState"):
        case "not-found":
            return f"{candidate.unit}{setting}: systemd knows no such unit"
        case "masked":
            return f"{candidate.unit}{setting}: is masked; `systemctl --user unmask {candidate.unit}` allows it again"
        case _:
            said = facts.get("LoadError", "").partition(" ")[2].strip('"') or "cannot be loaded"
            tell = f"`systemd-analyze --user verify {candidate.unit}` tells where"
            return f"{candidate.unit}{setting}: {said.rstrip('.')}; {tell}"


def _exec_words(facts: Mapping[str, str], files: list[str], env: Mapping[str, str]) -> list[str]:
    """The words of the command. systemd shows them joined by blanks; the files tell them apart, where both agree."""
    last = (facts.get("ExecStart", "").splitlines() or [""])[-1]
    shown = last.partition(" argv[]=")[2].rpartition(" ; ignore_errors=")[0]
    words = shown_words(files, env)
    return words if words is not None and " ".join(words) == shown else shown.split()


def _env_files(facts: Mapping[str, str]) -> list[str]:
    return [line.rpartition(" (ignore_errors=")[0] for line in facts.get("EnvironmentFiles", "").splitlines()]

"""Containers of podman and docker as a `ServiceManager`, and how one is made anew with another env file.

A container reads `--env-file` when it is made, and never again: a change makes a new container, from the command that
made the one before (podman) or from what the engine knows of it (docker). The one before is stopped, kept under
another name, and removed only when the change is kept; going back starts it again. Every order looks at what is there
first, so that it can be given again after it was cut off anywhere.

Sources: podman-inspect(1), podman-create(1) and docker's reference of the same names; tried on podman 4.3.1 and, with
docker's own CLI 28.2.2, on podman's docker-compatible socket.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from dataclasses import field
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.control.services.service_command import ContainerView, ServiceCommand
from specdash.control.services.services import ServiceState, ServiceStatus
from specdash.control.services.tool import ToolOutput, run_tool
from specdash.core.changes import is_secret
from specdash.core.envfile import decode, parse
from specdash.core.errors import ServiceError
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.control.services.services import ContainerChange


class ContainerEngine(StrEnum):
    """The programs that run containers, by the name of their command."""

    PODMAN = "podman"
    DOCKER = "docker"


DIGEST_LABEL = "specdash.env-digest"
"""On a container that an apply made: SHA-256 of the env file it was made with."""
_BEFORE, _NEW = ".specdash-before", ".specdash-new"
"""What the names of the container from before, and of the one that is not in its place yet, end in."""
_CREATED = 201
_ASK_S = 15.0
_START_S = 60.0
_STOP_SLACK_S = 30.0
_STOP_S = 10
"""How long engines let a container end by itself where it does not say."""
_STATES = {
    "running": ServiceState.RUNNING,
    "paused": ServiceState.RUNNING,
    "restarting": ServiceState.WAITING,
    "stopping": ServiceState.STOPPING,
    "removing": ServiceState.STOPPING,
    "dead": ServiceState.FAILED,
}
_ASKED_TO_END = (128 + signal.SIGTERM, 128 + signal.SIGKILL, 128 + signal.SIGINT)
"""How a container ends that was stopped; its engine does not tell that from one that somebody killed."""
_OWNERS = {
    "PODMAN_SYSTEMD_UNIT": "the systemd unit {value} makes it anew at each start: name that unit instead",
    "com.docker.compose.project": "compose made it (project {value}), and would make it again from its own file: "
    "change the file there and run `compose up -d`",
    "io.podman.compose.project": "compose made it (project {value}), and would make it again from its own file: "
    "change the file there and run `compose up -d`",
    "io.kubernetes.pod.name": "it belongs to the pod {value} of Kubernetes",
}
"""Labels of those who make a container themselves, and what to do instead."""


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """What `inspect` says of one container. `raw` holds secrets."""

    raw: Mapping[str, Any] = field(repr=False)

    @property
    def name(self) -> str:
        """Without docker's leading slash."""
        return str(self.raw.get("Name", "")).lstrip("/")

    def _part(self, key: str) -> dict[str, Any]:
        part: dict[str, Any] = self.raw.get(key) or {}
        return part

    @property
    def labels(self) -> dict[str, str]:
        """Label to value."""
        return self.config.get("Labels") or {}

    @property
    def config(self) -> dict[str, Any]:
        """How it was made."""
        return self._part("Config")

    @property
    def host(self) -> dict[str, Any]:
        """How it is tied to its machine."""
        return self._part("HostConfig")

    @property
    def state(self) -> dict[str, Any]:
        """How it stands."""
        return self._part("State")

    @property
    def digest(self) -> str | None:
        """The version of the env file that it was made with; None for one that no apply made."""
        return self.labels.get(DIGEST_LABEL)

    @property
    def environment(self) -> dict[str, str]:
        """Variable to value. Holds secrets."""
        return dict(entry.partition("=")[::2] for entry in self.config.get("Env") or ())

    @property
    def argv(self) -> tuple[str, ...]:
        """What it runs."""
        return (str(self.raw.get("Path") or ""), *map(str, self.raw.get("Args") or ()))

    @property
    def command(self) -> tuple[str, ...]:
        """The command that made it; empty where the engine does not keep it (docker)."""
        return tuple(map(str, self.config.get("CreateCommand") or ()))

    @property
    def stop_s(self) -> int:
        """How long it may take to end by itself."""
        given = self.config.get("StopTimeout")
        return _STOP_S if given is None else int(given)

    @property
    def mounts(self) -> tuple[tuple[str, str], ...]:
        """Folders and files of this machine in it: the path inside, and the one here."""
        mounts = self.raw.get("Mounts") or ()
        return tuple((str(item["Destination"]), str(item["Source"])) for item in mounts if item.get("Source"))

    def published(self, port: int) -> int | None:
        """The port of this machine behind which a port of the container is; None where nothing leads there."""
        if self.host.get("NetworkMode") == "host":
            return port
        bound = (self.host.get("PortBindings") or {}).get(f"{port}/tcp") or ()
        return next((int(item["HostPort"]) for item in bound if str(item.get("HostPort", "")).isdigit()), None)

    @property
    def networks(self) -> dict[str, Any]:
        """The networks it is in, by name."""
        return (self.raw.get("NetworkSettings") or {}).get("Networks") or {}

    def as_request(self) -> dict[str, Any]:
        """What docker's API makes such a container from. What belongs to this one alone is left out: its name in its
        network, its address there, and the names of its anonymous volumes become those of any volume. Holds secrets."""
        identity = str(self.raw.get("Id", ""))
        described = dict(self.config)
        host = dict(self.host)
        if host.get("NetworkMode") == "host" or identity.startswith(str(described.get("Hostname", ""))):
            described.pop("Hostname", None)
        # podman's docker socket writes RLIMIT_NOFILE and reads nofile.
        host["Ulimits"] = [
            {**limit, "Name": str(limit.get("Name", "")).removeprefix("RLIMIT_").lower()}
            for limit in host.get("Ulimits") or ()
        ]
        bound = {str(bind).split(":")[1] for bind in host.get("Binds") or () if ":" in str(bind)}
        bound |= {str(mount.get("Target")) for mount in host.get("Mounts") or ()}
        volumes = [item for item in self.raw.get("Mounts") or () if item.get("Type") == "volume"]
        extra = [f"{item['Name']}:{item['Destination']}" for item in volumes if item["Destination"] not in bound]
        host["Binds"] = [*(host.get("Binds") or ()), *extra]
        ends = {
            network: {
                "IPAMConfig": end.get("IPAMConfig"),
                "Links": end.get("Links"),
                "DriverOpts": end.get("DriverOpts"),
                "Aliases": [alias for alias in end.get("Aliases") or () if not identity.startswith(alias)],
            }
            for network, end in self.networks.items()
            if network != "host"
        }
        return {**described, "HostConfig": host, "NetworkingConfig": {"EndpointsConfig": ends}}

    def runner_env_file(self, inside: str | None, state: Path) -> Path:
        """The env file on this machine that a runner of ours in it reads. Raises `ServiceError` where what the runner
        leaves in the state directory does not hold here: its record names processes."""
        if self.host.get("PidMode") != "host" or (str(state), str(state)) not in self.mounts:
            raise ServiceError(
                f"a runner of specdash in a container is changed from here where its processes and its records are "
                f"seen: make it again with `--pid host -v {state}:{state} -e XDG_STATE_HOME={state.parent}`"
            )
        if inside is None or any(inside == place for place, _ in self.mounts):
            raise ServiceError(
                "its env file cannot be replaced from here: mount the folder of it, not the file, and name it with "
                "--env-file"
            )
        if not any(inside.startswith(f"{place.rstrip('/')}/") for place, _ in self.mounts):
            raise ServiceError(f"its env file {inside} is inside of the container: mount its folder")
        return Path(ContainerView(mounts=self.mounts).path_here(inside))

    def status(self, name: str) -> ServiceStatus:
        """The same as a service has it."""
        word = str(self.state.get("Status", ""))
        code = int(self.state.get("ExitCode") or 0)
        state = _STATES.get(word, ServiceState.STOPPED)
        ended = word == "exited" and code != 0
        if ended and (self.state.get("OOMKilled") or code not in _ASKED_TO_END):
            state = ServiceState.FAILED
        explains = state not in (ServiceState.RUNNING, ServiceState.STOPPED)
        detail = "paused" if word == "paused" else _why(self.state, code) if explains else ""
        running = word in ("running", "paused")
        return ServiceStatus(
            name,
            state,
            pid=int(self.state.get("Pid") or 0) or None,
            restarts=int(self.raw.get("RestartCount") or 0),
            exit_code=code if explains else None,
            detail=detail,
            since=_moment(self.state.get("StartedAt" if running else "FinishedAt")),
        )


def _why(state: Mapping[str, Any], code: int) -> str:
    if state.get("OOMKilled"):
        return "was killed: out of memory"
    if state.get("Error"):
        return str(state["Error"])
    try:
        return f"signal {signal.Signals(code - 128).name}"
    except ValueError:
        return f"exit code {code}"


def _moment(text: object) -> float | None:
    try:
        seconds = datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError):
        return None
    return seconds if seconds > 0 else None


class ContainerTool:
    """One engine's command, each call bounded in time. Raises `ServiceError` where the engine cannot be asked."""

    def __init__(self, engine: ContainerEngine, env: Mapping[str, str] = os.environ) -> None:
        self.engine = engine
        self._env = {**env, "LC_ALL": "C"}

    def run(self, *words: str, timeout: float = _ASK_S, variables: Mapping[str, str] | None = None) -> ToolOutput:
        """`podman WORDS`, or docker's. Its two outputs are one where they are asked for as a log."""
        return run_tool(
            [self.engine, *words],
            self._env,
            timeout,
            name=f"{self.engine} {words[0]}",
            missing=f"{self.engine} cannot be used: it is not installed",
            variables=variables,
            joined=words[0] == "logs",
        )

    def inspect(self, *names: str) -> dict[str, ContainerFacts]:
        """The containers of those names that there are."""
        answer = self.run("inspect", "--type", "container", *names)
        try:
            inspected = [ContainerFacts(raw) for raw in json.loads(answer.out or "[]") or ()]
        except (ValueError, TypeError):
            raise ServiceError(f"{self.engine} inspect: no JSON came ({answer.reason})") from None
        if len(inspected) < len(names):
            # It fails for one that is not there, and for an engine that does not answer, with the same code.
            asked = self.run("ps", "--all", "--quiet", "--last", "1")
            if not asked.done:
                raise ServiceError(f"{self.engine} does not answer ({asked.reason})")
        return {facts.name: facts for facts in inspected}

    def create(self, name: str, described: Mapping[str, Any]) -> None:
        """Make a container by docker's API, which takes what `inspect` gives. Raises `ServiceError`."""
        from specdash.system.http import ask

        asked = self.run("context", "inspect", "--format", "{{.Endpoints.docker.Host}}")
        place = asked.out.strip()
        if not place.startswith("unix://") or not place.endswith(".sock"):
            raise ServiceError(f"{self.engine} listens at {place or asked.reason}, and not at a socket of this machine")
        try:
            reply = ask(place, f"/containers/create?name={name}", body=described, timeout=_START_S)
        except OSError as error:
            raise ServiceError(f"{self.engine} at {place} does not answer ({error})") from None
        if reply.status != _CREATED:
            reason = reply.json.get("message") if isinstance(reply.json, dict) else None
            raise ServiceError(f"{self.engine} cannot make {name}: {reason or f'HTTP {reply.status}'}")

    def name_of(self, identity: str) -> str | None:
        """The name of a container whose id is known; None where the engine does not know it, or cannot be asked."""
        answer = self.run("inspect", "--type", "container", "--format", "{{.Name}}", identity)
        return answer.out.strip().lstrip("/") or None if answer.done else None


_CONTAINER_OF_CGROUP = re.compile(r"(?:/libpod-|/docker[/-])([0-9a-f]{64})(?:\.scope)?(?:/|$)", re.MULTILINE)


def container_of(pid: int, env: Mapping[str, str] = os.environ) -> str | None:
    """`podman:NAME` or `docker:NAME` of the container that a process runs in, by its cgroup; None outside of any, where
    that is not to be seen, and where the engine does not know it (that of another user)."""
    try:
        text = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = _CONTAINER_OF_CGROUP.search(text)
    if match is None:
        return None
    engine = ContainerEngine.PODMAN if "/libpod-" in match[0] else ContainerEngine.DOCKER
    try:
        name = ContainerTool(engine, env).name_of(match[1])
    except ServiceError:
        return None
    return f"{engine}:{name}" if name is not None else None


def any_engine(env: Mapping[str, str] = os.environ) -> bool:
    """Whether a command of an engine is installed at all."""
    return any(shutil.which(engine, path=env.get("PATH")) for engine in ContainerEngine)


class ContainerManager:
    """The containers of one engine. Holds no state of its own."""

    def __init__(
        self,
        engine: ContainerEngine,
        env: Mapping[str, str] = os.environ,
        reload_signal: str | None = None,
    ) -> None:
        self.tool = ContainerTool(engine, env)
        self._reload_signal = reload_signal

    @property
    def kind(self) -> str:
        """`podman` or `docker`."""
        return str(self.tool.engine)

    def bring_up(self) -> None:
        """Nothing to do: the engine is there or it is not."""

    def facts(self, name: str) -> ContainerFacts | None:
        """What is known of the container; of the one from before, where an apply was cut off between the two."""
        facts = self.tool.inspect(name) or self.tool.inspect(name + _BEFORE)
        return next(iter(facts.values()), None)

    def status(self, name: str) -> ServiceStatus:
        """See `ServiceManager.status`."""
        facts = self.tool.inspect(name).get(name)
        if facts is not None:
            return facts.status(name)
        if self.tool.inspect(name + _BEFORE):
            return ServiceStatus(name, ServiceState.STOPPED, detail="an apply was cut short; `specdash recover`")
        return ServiceStatus(name, ServiceState.MISSING, detail=f"{self.kind} knows no such container")

    def start(self, name: str) -> None:
        """Start the container as it was made."""
        self._order(name, "start", timeout=_START_S)

    def stop(self, name: str) -> None:
        """Let it end, and end it after its stop timeout."""
        self._order(name, "stop", timeout=self._known(name).stop_s + _STOP_SLACK_S)

    def restart(self, name: str) -> None:
        """Stop and start the same container: its settings are those it was made with."""
        self._order(name, "restart", timeout=self._known(name).stop_s + _STOP_SLACK_S + _START_S)

    def reload(self, name: str) -> None:
        """Send the signal that its program reads its env file at."""
        from specdash.control.services.systemd import wait_until_caught

        pid = self._known(name).status(name).pid
        if self._reload_signal is None or pid is None:
            raise ServiceError(f"{name}: {'does not run' if pid is None else 'knows no reload; restart it instead'}")
        wait_until_caught(name, pid, self._reload_signal)
        self._order(name, "kill", "--signal", self._reload_signal)

    def log_tail(self, name: str, lines: int = 20) -> tuple[str, ...]:
        """See `ServiceManager.log_tail`."""
        if lines <= 0:
            return ()
        answer = self.tool.run("logs", "--tail", str(lines), name)
        written = [line.rstrip() for line in answer.out.splitlines()] if answer.done else []
        return tuple(line for line in written if line)[-lines:]

    def follow(self, name: str, lines: int) -> list[str]:
        """The command that prints the last lines and goes on with what comes."""
        return [self.kind, "logs", "--follow", "--tail", str(lines), name]

    # How one version takes the place of another; see `services.ReplacingManager`.

    def version(self, name: str) -> str | None:
        """See `ReplacingManager.version`."""
        facts = self.tool.inspect(name).get(name)
        return facts.digest if facts is not None else None

    def started_with(self, name: str) -> tuple[list[str], dict[str, str]] | None:
        """Arguments and environment of the container, by its engine's word. Hold secrets."""
        facts = self.tool.inspect(name).get(name)
        return (list(facts.argv), facts.environment) if facts is not None else None

    def replace(self, name: str, change: ContainerChange) -> None:
        """See `ReplacingManager.replace`."""
        now, before, new = self._three(name)
        digest = change.digest
        if now is not None and now.digest == digest:
            self.restart(name)
            return
        made_from = now or before
        if made_from is None:
            raise ServiceError(f"{name}: {self.kind} knows no such container")
        if new is not None and new.digest != digest:
            self._remove(name + _NEW)
            new = None
        if new is None:
            self._make(made_from, name + _NEW, change)
        if now is not None:
            if before is not None:
                # Of an apply that is over and could not remove it.
                self._remove(name + _BEFORE)
            if now.status(name).alive:
                self.stop(name)
            self._order(name, "rename", then=(name + _BEFORE,))
        self._order(name + _NEW, "rename", then=(name,))
        self.start(name)

    def put_back(self, name: str, change: ContainerChange, *, run: bool) -> None:
        """See `ReplacingManager.put_back`."""
        now, before, _ = self._three(name)
        if now is not None and now.digest != change.instead_of:
            # Not replaced yet, or put back already.
            if run:
                self.restart(name)
            return
        if before is None:
            # Somebody removed it: made again, with the settings from before.
            self.replace(name, change)
            self._remove(name + _BEFORE)
            return
        if now is not None:
            if now.status(name).alive:
                self.stop(name)
            self._remove(name)
        self._order(name + _BEFORE, "rename", then=(name,))
        if run:
            self.start(name)

    def forget_before(self, name: str) -> None:
        """See `ReplacingManager.forget_before`."""
        now, before, new = self._three(name)
        for leftover in (before, new) if now is not None else ():
            if leftover is not None:
                self._remove(leftover.name)

    def _three(self, name: str) -> tuple[ContainerFacts | None, ContainerFacts | None, ContainerFacts | None]:
        """The container, the one from before, and the one that is not in its place yet."""
        facts = self.tool.inspect(name, name + _BEFORE, name + _NEW)
        return facts.get(name), facts.get(name + _BEFORE), facts.get(name + _NEW)

    def _make(self, facts: ContainerFacts, name: str, change: ContainerChange) -> None:
        if self.tool.engine is ContainerEngine.DOCKER:
            self.tool.create(name, self._described(facts, change))
            return
        words, variables = remade(facts, name, change.digest)
        answer = self.tool.run(*words, timeout=_START_S, variables=variables)
        if not answer.done:
            raise ServiceError(f"{facts.name}: {self.kind} cannot make it anew: {answer.reason}")

    def _described(self, facts: ContainerFacts, change: ContainerChange) -> dict[str, Any]:
        """The container as docker knows it, with the change: of the same image, whatever its name stands for by now."""
        described = facts.as_request()
        variables = {key: value for key, value in {**facts.environment, **change.keys}.items() if value is not None}
        described["Env"] = [f"{key}={value}" for key, value in variables.items()]
        described["Labels"] = {**facts.labels, DIGEST_LABEL: change.digest}
        asked = self.tool.run("image", "inspect", "--format", "{{.Id}}", str(described.get("Image")))
        if asked.out.strip() != facts.raw.get("Image"):
            described["Image"] = facts.raw.get("Image")
        return described

    def _remove(self, name: str) -> None:
        self._order(name, "rm", "--force", timeout=_STOP_S + _STOP_SLACK_S)

    def _known(self, name: str) -> ContainerFacts:
        facts = self.tool.inspect(name).get(name)
        if facts is None:
            raise ServiceError(f"{name}: {self.kind} knows no such container")
        return facts

    def _order(self, name: str, verb: str, *options: str, then: tuple[str, ...] = (), timeout: float = _ASK_S) -> None:
        answer = self.tool.run(verb, *options, name, *then, timeout=timeout)
        if answer.done:
            return
        self._known(name)
        if answer.code is None:
            raise ServiceError(f"{name}: {answer.reason}; see `{self.kind} ps --all`")
        raise ServiceError(f"{name}: {self.kind} refused to {verb} it: {answer.reason.removeprefix('Error: ')}")


# The command that made a container, and what of it makes the next one.


@dataclass(frozen=True, slots=True)
class _Recipe:
    """`podman GLOBAL create OPTIONS IMAGE PROGRAM`. `given` are variables of its command line, `None` for one whose
    value was taken from the shell."""

    tool_options: tuple[str, ...]
    options: tuple[str, ...]
    program: tuple[str, ...]
    env_files: tuple[str, ...]
    given: Mapping[str, str | None] = field(repr=False)


_DETACHED = re.compile(r"-[it]*d[it]*")
_DROPPED = ("--name", "--cidfile")
"""Options with a value that belong to the container from before."""
_ENV, _ENV_FILE = ("-e", "--env"), "--env-file"
_PLACES = ("-v", "--volume")


def _recipe(facts: ContainerFacts) -> _Recipe | None:
    """None for a container that was made in another way than by `run` or `create`."""
    words = facts.command
    at = next((at for at, word in enumerate(words) if at and word in ("run", "create")), None)
    if at is None:
        return None
    program = tuple(map(str, facts.config.get("Cmd") or ()))
    rest = words[at + 1 :]
    # Where the image's own command runs, the image is the last word.
    behind = len(program) if program and len(rest) > len(program) and rest[-len(program) :] == program else 0
    image = len(rest) - behind - 1
    options: list[str] = []
    files: list[str] = []
    given: dict[str, str | None] = {}
    words_left = list(rest[:image])
    while words_left:
        word = words_left.pop(0)
        option, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if option in (*_DROPPED, _ENV_FILE, *_ENV, "--label", "-l"):
            value = value if equals else words_left.pop(0) if words_left else ""
            if option == _ENV_FILE:
                files.append(value)
            elif option in _ENV:
                key, has_value, text = value.partition("=")
                given[key] = text if has_value else None
            elif option in ("--label", "-l") and not value.startswith(f"{DIGEST_LABEL}="):
                options += (option, value)
        elif option not in ("--detach", "--replace") and _DETACHED.fullmatch(word) is None:
            options.append(word)
        elif word.startswith("-") and not word.startswith("--") and (left := word.replace("d", "")) != "-":
            options.append(left)
    return _Recipe(tuple(words[1:at]), tuple(options), rest[image:], tuple(files), given)


def remade(facts: ContainerFacts, name: str, digest: str) -> tuple[list[str], dict[str, str]]:
    """The words that make a container of that name as the other was made, and variables they need. Secrets are in the
    variables, not in the words. Raises `ServiceError`."""
    recipe = _recipe(facts)
    if recipe is None:
        raise ServiceError(f"{facts.name}: {why_fixed(facts, ContainerEngine.PODMAN)}")
    variables: dict[str, str] = {}
    given: list[str] = []
    for key, value in recipe.given.items():
        text = value if value is not None else facts.environment.get(key, "")
        if is_secret(key):
            variables[key] = text
        given += ("--env", key if is_secret(key) else f"{key}={text}")
    files = [word for file in recipe.env_files for word in (_ENV_FILE, file)]
    ours = ["--name", name, "--label", f"{DIGEST_LABEL}={digest}"]
    return [*recipe.tool_options, "create", *ours, *files, *given, *recipe.options, *recipe.program], variables


def env_files_of(facts: ContainerFacts) -> tuple[Path, ...]:
    """The files of `--env-file`, in their order."""
    recipe = _recipe(facts)
    return tuple(map(Path, recipe.env_files)) if recipe is not None else ()


def given_of(facts: ContainerFacts) -> dict[str, str]:
    """Variables of its own command line, which win over every file. Holds secrets."""
    recipe = _recipe(facts)
    return {key: facts.environment.get(key, "") for key in recipe.given} if recipe is not None else {}


def command_of(facts: ContainerFacts, called: str, files: tuple[Path, ...], env_file: Path) -> ServiceCommand:
    """What it runs, as `services.ManagedService` has it; `called` is what people call it."""
    own = {key for file in {*files, env_file} for key in _keys_of(file)}
    given = given_of(facts)
    host_network = facts.host.get("NetworkMode") == "host"
    bound = (facts.host.get("PortBindings") or {}).keys()
    inside = [int(number) for number in (name.partition("/")[0] for name in bound) if number.isdigit()]
    ports = {port: here for port in inside if (here := facts.published(port)) is not None}
    return ServiceCommand(
        facts.argv,
        called,
        env_files=files or (env_file,),
        environment={key: value for key, value in facts.environment.items() if key not in own},
        replaces=False,
        container=ContainerView(given, facts.mounts, None if host_network else ports),
    )


def _keys_of(file: Path) -> frozenset[str]:
    try:
        return frozenset(parse(decode(file.read_bytes())).values)
    except OSError:
        return frozenset()


def why_fixed(facts: ContainerFacts, engine: ContainerEngine, chosen: Path | None = None) -> str | None:
    """Why its settings cannot be changed from here, and what to do; None where they can. `chosen` is the env file that
    the user named."""
    for label, words in _OWNERS.items():
        if label in facts.labels:
            return words.format(value=facts.labels[label])
    if facts.host.get("AutoRemove"):
        return "it was started with --rm and is gone once it is stopped, so nothing could go back: start it without"
    if engine is ContainerEngine.DOCKER:
        if len(facts.networks) > 1:
            names = ", ".join(facts.networks)
            return f"it is in {len(facts.networks)} networks ({names}), and is made anew from here in one only"
        return "docker does not keep which env file it was made with: name that file" if chosen is None else None
    recipe = _recipe(facts)
    if recipe is None:
        return "the command that made it is not known: make it with `podman run --env-file FILE` or `podman create`"
    if not recipe.env_files:
        return "it was made without --env-file: put its settings into a file, and make it again with --env-file FILE"
    relative = [file for file in recipe.env_files if not file.startswith("/")]
    relative += _relative_places(recipe.options)
    if relative:
        return f"it was made with the relative path {relative[0]}: make it again with whole paths"
    if chosen is not None and str(chosen) not in recipe.env_files:
        return f"it was made with {recipe.env_files[-1]}, and its env file is set to {chosen}: leave that setting out"
    return None


def _relative_places(options: Sequence[str]) -> list[str]:
    values = [after for word, after in pairwise(options) if word in _PLACES]
    values += [word.partition("=")[2] for word in options if word.partition("=")[0] in _PLACES]
    return [value for value in values if value.startswith(".")]

"""`specdash demo`: a real llama.cpp server on the bundled tiny model, under load, seen live.

Everything lives in a private temporary directory and in processes that end with this one, whichever way it ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.backend import demo
from specdash.cli.options import add_settings, resolved_settings
from specdash.cli.signals import stopped_by_signals
from specdash.cli.terminal_app import need_terminal, return_memory
from specdash.core import paths
from specdash.core.config import (
    APPLY_SETTINGS,
    ARM_SETTINGS,
    BY_NAME,
    RULE_SETTINGS,
    SCREEN_SETTINGS,
    SERVICE_SETTINGS,
    WINDOWS_S,
    Resolved,
)
from specdash.core.errors import SpecdashError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from specdash.control.services import Deployment
    from specdash.control.supervisor import Supervisor
    from specdash.core.target import Target
    from specdash.insight.picture import Picture

START_DEADLINE_S = 60.0
STOP_S = 10.0
"""More than the engine gets to end by itself (LLAMA_STOP_TIMEOUT)."""
DEFAULT_HEADLESS_S = 20.0
FIRST_WINDOW = "1m"
"""A demo is young: in a longer window its charts would be empty."""
LOAD_ENDS_BEFORE_S = 1.5
"""Headless, the load stops this long before the snapshot, so that the last requests are in the counters."""
BACKEND_ENV, PROXY_ENV = "llama-server.env", "proxy.env"
BACKEND, PROXY, TRAFFIC, AGENTS = "backend", "proxy", "traffic", "agents"
_PROXY_PACKAGES = ("aiohttp", "orjson", "uvicorn")
_JANITOR = 'read _; rm -rf -- "$1"'
"""Waits for its input to close, which our death does however we die, and removes the directory."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--seconds", type=float, metavar="N", help="end after N seconds (headless default: 20)")
    parser.add_argument("--headless", action="store_true", help="no dashboard: run, then print a snapshot")
    parser.add_argument("--json", action="store_true", help="print the snapshot as JSON (implies --headless)")
    types = ", ".join(demo.SPEC_TYPES)
    parser.add_argument("--spec-type", default=demo.DRAFT_TYPE, metavar="T", help=f"{types}, or a comma chain")
    parser.add_argument(
        "--engine", choices=["auto", "llama-server", "xllamacpp"], default="auto", help="which llama.cpp to run"
    )
    parser.add_argument(
        "--record", dest="timings", type=Path, metavar="FILE", help="write every request's timings as JSON Lines"
    )
    add_settings(parser, (*SCREEN_SETTINGS, *APPLY_SETTINGS, *ARM_SETTINGS, *RULE_SETTINGS))


def run(args: argparse.Namespace) -> int:
    """Run the demo; headless it ends with a snapshot, else when the user quits."""
    from specdash.control.supervisor import Supervisor

    headless = args.headless or args.json
    if args.seconds is not None and not 1 <= args.seconds <= 86400:
        raise UsageError(f"--seconds {args.seconds:g}: wants 1 to 86400")
    spec_types = demo.parse_spec_types(args.spec_type)
    settings = resolved_settings(args)
    if not headless:
        need_terminal("demo", "use `specdash demo --headless` in scripts")
        # Before the supervisor's threads: each that there is already keeps its heap.
        return_memory()
    with stopped_by_signals(), private_directory() as directory, Supervisor() as supervisor:
        target = start_backend(supervisor, directory, spec_types, args.engine)
        if args.timings is None:
            # What agents cost is in no recorded answer: with --record the counters must be the recorded requests'.
            target = start_proxy(supervisor, directory, target)
        if headless:
            picture = _headless(supervisor, target, args.timings, args.seconds or DEFAULT_HEADLESS_S)
            from specdash.cli.snapshot import exit_code, print_snapshot

            print_snapshot(picture, as_json=args.json)
            return exit_code(picture)
        from specdash.cli.watch import open_dashboard
        from specdash.tune.console import TunerConsole

        start_traffic(supervisor, target, args.timings)
        if settings["window"].origin == "default":
            settings["window"] = Resolved(FIRST_WINDOW, "demo")
        env = demo_environment(directory)
        with commands_answered(supervisor, target, env):
            # The demo's own traffic never rests.
            tuner = TunerConsole(tuner_environment(env), options=("--busy-ok",), is_ours=True)
            try:
                return open_dashboard(
                    target,
                    settings,
                    demo=True,
                    seconds=args.seconds,
                    deployment=lambda: demo_deployment(supervisor, directory, target),
                    tuner=tuner,
                    env=env,
                )
            finally:
                tuner.close()


@contextmanager
def private_directory(prefix: str = "specdash-demo-") -> Iterator[Path]:
    """A directory of mode 0700 that is gone afterwards, even when this process is killed."""
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    janitor = subprocess.Popen(
        ["/bin/sh", "-c", _JANITOR, "sh", str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        if janitor.stdin is not None:
            janitor.stdin.close()
        janitor.wait(10)


def start_backend(supervisor: Supervisor, directory: Path, spec_types: tuple[str, ...], engine: str) -> Target:
    """Start the bundled models under the supervisor and wait until they answer; raises `SpecdashError`."""
    from specdash.backend.listening import free_port
    from specdash.collect.discover import recorded_target
    from specdash.control.supervisor import Restart, Service
    from specdash.core.target import Target

    log, env_file = directory / "llama-server.log", directory / BACKEND_ENV
    port = free_port("127.0.0.1")
    slots = directory / "slots"
    slots.mkdir(exist_ok=True)
    text = demo.env_text(port=port, log=log, spec_types=spec_types, engine=engine, slots=slots)
    env_file.write_text(text, encoding="utf-8")
    url = f"http://127.0.0.1:{port}"
    print(f"specdash demo: starting llama.cpp on {url}", file=sys.stderr)
    argv = (sys.executable, "-m", "specdash", "backend", "run", "--env-file", str(env_file))
    env = {**os.environ, "XDG_STATE_HOME": str(directory)}
    output = directory / "backend.out"
    supervisor.add(
        Service(
            BACKEND,
            argv,
            env,
            log=str(output),
            restart=Restart.ON_FAILURE,
            ready=lambda: _healthy(port),
            stop_timeout=STOP_S,
            reload_signal=signal.SIGUSR1,
        )
    )
    supervisor.start(BACKEND)
    status = supervisor.wait_ready(BACKEND, START_DEADLINE_S)
    if status.state != "ready":
        # Planning says why in its own words. Otherwise it is left to `backend run`: what it takes to validate settings
        # and to read models is 15 MB that the dashboard has no other use for.
        from specdash.backend.launch import plan_from_file

        plan_from_file(str(env_file))
        raise SpecdashError(f"the demo's backend did not start: {status.detail or status.state}")
    target = recorded_target(url, env) or Target(url)
    return replace(target, log=str(log), pid=status.pid, origin="demo")


def start_proxy(supervisor: Supervisor, directory: Path, target: Target) -> Target:
    """Start the proxy in front of `target`, and return the target with it; as it was where no proxy is installed."""
    from importlib.util import find_spec

    from specdash.backend.listening import free_port
    from specdash.control.supervisor import Restart, Service

    if any(find_spec(name) is None for name in _PROXY_PACKAGES):
        return target
    env_file, events = directory / PROXY_ENV, directory / "proxy-events.jsonl"
    port = free_port("127.0.0.1")
    env_file.write_text(demo.proxy_env_text(port=port, upstream=target.url, events=events), encoding="utf-8")
    argv = (sys.executable, "-m", "specdash", "proxy", "run", "--env-file", str(env_file))
    env = {**os.environ, "XDG_STATE_HOME": str(directory)}
    supervisor.add(
        Service(
            PROXY,
            argv,
            env,
            log=str(directory / "proxy.out"),
            restart=Restart.ON_FAILURE,
            stop_timeout=STOP_S,
            reload_signal=signal.SIGHUP,
            listen=("127.0.0.1", port),
        )
    )
    supervisor.start(PROXY)
    url = f"http://127.0.0.1:{port}"
    return replace(target, proxy_url=url, proxy_log=str(events), proxy_origin="demo")


def demo_environment(directory: Path) -> dict[str, str]:
    """The environment in which the demo's records, backups and profiles are its own."""
    return {**os.environ, "XDG_STATE_HOME": str(directory), "XDG_CONFIG_HOME": str(directory)}


@contextmanager
def commands_answered(supervisor: Supervisor, target: Target, env: Mapping[str, str]) -> Iterator[None]:
    """Other commands find the demo's services, as they find those of the built-in supervisor, in its environment."""
    from specdash.control.supervisor_claim import Claim
    from specdash.control.supervisor_daemon import Daemon
    from specdash.control.supervisor_services import ServiceEntry, write_services
    from specdash.core.changes import Role

    directory = Path(env["XDG_CONFIG_HOME"])
    entries = [ServiceEntry(BACKEND, Role.BACKEND, directory / BACKEND_ENV)]
    if target.proxy_url is not None:
        entries.append(ServiceEntry(PROXY, Role.PROXY, directory / PROXY_ENV, listen="env"))
    write_services(paths.services_file(env), entries)
    claim = Claim.take(paths.supervisor_socket(env))
    if claim is None:
        raise SpecdashError(f"{paths.supervisor_socket(env)} is in use")
    with Daemon(claim, (), env, supervisor=supervisor, say=lambda _: None).answering():
        yield


def tuner_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of a `specdash tune` that works on the demo's services, whatever the user's own are."""
    others = {BY_NAME[name].variable for name in SERVICE_SETTINGS}
    return {
        **{key: value for key, value in env.items() if key not in others},
        BY_NAME["manager"].variable: "supervisor",
    }


def demo_deployment(supervisor: Supervisor, directory: Path, target: Target) -> Deployment:
    """The demo's own services, which may be tuned like any others."""
    from specdash.control.services import Deployment, ManagedService
    from specdash.control.supervised import SupervisedManager
    from specdash.core.changes import Role

    manager = SupervisedManager(supervisor)
    backend = ManagedService(Role.BACKEND, BACKEND, manager, directory / BACKEND_ENV, reloads=True, origin="demo")
    if target.proxy_url is None:
        return Deployment(backend)
    proxy = ManagedService(Role.PROXY, PROXY, manager, directory / PROXY_ENV, reloads=True, origin="demo", socket=True)
    return Deployment(backend, proxy)


def _healthy(port: int) -> bool:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def start_traffic(supervisor: Supervisor, target: Target, record: Path | None) -> None:
    """Start the workload; with `record`, every request\'s timings go to that file."""
    from specdash.control.supervisor import Restart, Service

    argv = [sys.executable, "-m", "specdash.backend.workload", "--url", target.url]
    if record is not None:
        argv += ["--record", str(record.absolute())]
    supervisor.add(Service(TRAFFIC, tuple(argv), os.environ.copy(), restart=Restart.ON_FAILURE))
    supervisor.start(TRAFFIC)
    if target.proxy_url is not None:
        agents = (sys.executable, "-m", "specdash.backend.agents", "--url", target.proxy_url)
        supervisor.add(Service(AGENTS, agents, os.environ.copy(), restart=Restart.ON_FAILURE))
        supervisor.start(AGENTS)


def _headless(supervisor: Supervisor, target: Target, record: Path | None, seconds: float) -> Picture:
    from specdash.collect.hub import Hub
    from specdash.insight.state import TargetState

    state = TargetState(target)
    ends = time.monotonic() + seconds
    with Hub(target, [state.apply]):
        time.sleep(min(0.5, seconds / 4))
        start_traffic(supervisor, target, record)
        time.sleep(max(0.0, ends - time.monotonic() - min(LOAD_ENDS_BEFORE_S, seconds / 4)))
        for name in (AGENTS, TRAFFIC) if target.proxy_url is not None else (TRAFFIC,):
            supervisor.stop(name)
        time.sleep(max(0.0, ends - time.monotonic()))
        return state.picture(time.monotonic(), time.time(), max(seconds + 1.0, WINDOWS_S["1m"]))

"""`specdash demo`: a real llama.cpp server on the bundled tiny model, under load, seen live.

Everything lives in a private temporary directory and in processes that end with this one, whichever way it ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from msgspec.structs import replace

from specdash.backend import demo
from specdash.cli.options import add_settings, resolved_settings
from specdash.cli.signals import stopped_by_signals
from specdash.cli.terminal_app import need_terminal
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
from specdash.system.http import status_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from specdash.control.deployment import Deployment
    from specdash.control.keeper import Keeper
    from specdash.core.target import Target
    from specdash.insight.picture import Picture

START_DEADLINE_S = 60.0
_POLL_S = 0.02
DRAIN_S = 2
"""How long the proxy lets requests finish at the end."""
DEFAULT_HEADLESS_S = 20.0
BASELINE_S = 15.0
"""How long the traffic waits for the baseline, which takes 4 s of a quiet machine; headless at most a third of all."""
FIRST_WINDOW = "1m"
"""A demo is young: in a longer window its charts would be empty."""
LOAD_ENDS_BEFORE_S = 1.5
"""Headless, the load stops this long before the snapshot, so that the last requests are in the counters."""
BACKEND_ENV, PROXY_ENV = "llama-server.env", "proxy.env"
BACKEND, PROXY, TRAFFIC, AGENTS, BASELINE = "backend", "proxy", "traffic", "agents", "baseline"
_BASELINE = (
    "--context", "64", "--concurrency", f"1,{demo.SLOTS}", "--requests", "3", "--tokens", "16", "--limit", "8",
)  # fmt: skip
_TUNER = ("--busy-ok", "--each", "3", "--tokens", "96")
"""The demo's own traffic never rests, and half an hour would be too long for its visitors."""
_PROXY_PACKAGES = ("aiohttp", "uvicorn")
_JANITOR = 'read _; rm -rf -- "$1"'
"""Waits for its input to close, which our death does however we die, and removes the directory."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, metavar="N", help="stop after N seconds (default with --headless: 20)")
    parser.add_argument("--headless", action="store_true", help="run without the dashboard, then print a snapshot")
    parser.add_argument("--json", action="store_true", help="print the snapshot as JSON (implies --headless)")
    parser.add_argument(
        "--engine", choices=["auto", "llama-server", "xllamacpp"], default="auto", help="which llama.cpp to run"
    )
    parser.add_argument(
        "--record",
        dest="timings",
        type=Path,
        metavar="FILE",
        help="write the timings of every request to this file as JSON Lines",
    )
    add_settings(parser, (*SCREEN_SETTINGS, *APPLY_SETTINGS, *ARM_SETTINGS, *RULE_SETTINGS))


def run(args: argparse.Namespace) -> int:
    """Run the demo; headless it ends with a snapshot, else when the user quits."""
    from specdash.control.keeper import Keeper

    headless = args.headless or args.json
    if args.seconds is not None and not 1 <= args.seconds <= 86400:
        raise UsageError(f"--seconds {args.seconds:g}: must be 1 to 86400")
    settings = resolved_settings(args)
    if not headless:
        need_terminal("demo", "use `specdash demo --headless` in scripts")
        # Before the threads that keep the services: each that there is already keeps its heap.
        from specdash.cli.memory import return_memory

        return_memory()
    with stopped_by_signals(), private_directory() as directory, Keeper() as keeper:
        model = demo.widened_target(directory)
        target = start_backend(keeper, directory, (demo.DRAFT_TYPE,), args.engine, model)
        start_baseline(keeper, directory)
        if args.timings is None:
            # What agents cost is in no recorded answer: with --record the counters must be the recorded requests'.
            target = start_proxy(keeper, directory, target)
        if headless:
            picture = _headless(keeper, directory, target, args.timings, args.seconds or DEFAULT_HEADLESS_S)
            from specdash.cli.picture.snapshot import exit_code, print_snapshot

            print_snapshot(picture, as_json=args.json)
            return exit_code(picture)
        from specdash.cli.watch import open_dashboard
        from specdash.tune.run.console import TunerConsole

        waits = (keeper, target, args.timings)
        Thread(target=traffic_after_baseline, args=waits, name="specdash-traffic", daemon=True).start()
        if settings["window"].origin == "default":
            settings["window"] = Resolved(FIRST_WINDOW, "demo")
        env = demo_environment(directory)
        tuner = TunerConsole(env, options=_TUNER, is_ours=True)
        try:
            return open_dashboard(
                target,
                settings,
                demo=True,
                seconds=args.seconds,
                deployment=lambda: demo_deployment(directory, target),
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


def start_backend(
    keeper: Keeper,
    directory: Path,
    spec_types: tuple[str, ...],
    engine: str,
    model: Path | None = None,
) -> Target:
    """Start the bundled models, or `model` in the target's place, and wait until they answer;
    raises `SpecdashError`."""
    from specdash.backend.launch import free_port
    from specdash.collect.discover import recorded_target
    from specdash.core.changes import Role
    from specdash.core.target import Target

    log, env_file = directory / "llama-server.log", directory / BACKEND_ENV
    port = free_port("127.0.0.1")
    slots = directory / "slots"
    slots.mkdir(exist_ok=True)
    text = demo.env_text(port=port, log=log, spec_types=spec_types, engine=engine, slots=slots, target=model)
    env_file.write_text(text, encoding="utf-8")
    url = f"http://127.0.0.1:{port}"
    print(f"specdash demo: starting llama.cpp on {url}", file=sys.stderr)
    env = {**os.environ, "XDG_STATE_HOME": str(directory)}
    output = directory / "backend.out"
    kept = keeper.start_service(Role.BACKEND, env_file, env, output)
    deadline = time.monotonic() + START_DEADLINE_S
    while status_of(url, "/health", 1.0) != 200:
        if not kept.is_alive() or time.monotonic() > deadline:
            # Planning says why in its own words. Otherwise it is left to `backend run`: what it takes to validate
            # settings and to read models is 15 MB that the dashboard has no other use for.
            from specdash.backend.launch import plan_from_file

            plan_from_file(str(env_file))
            raise SpecdashError(f"the demo's backend did not start: {last_line(output)}")
        time.sleep(_POLL_S)
    target = recorded_target(url, env) or Target(url)
    return replace(target, log=str(log), pid=kept.child.pid if kept.child is not None else None, origin="demo")


def last_line(path: Path) -> str:
    """The last line of what a command wrote."""
    return next(iter(path.read_text(encoding="utf-8", errors="replace").splitlines()[-1:]), "")


def start_proxy(keeper: Keeper, directory: Path, target: Target) -> Target:
    """Start the proxy in front of `target`, and return the target with it; as it was where no proxy is installed."""
    from importlib.util import find_spec

    from specdash.core.changes import Role
    from specdash.system.processes import open_listening

    if any(find_spec(name) is None for name in _PROXY_PACKAGES):
        return target
    env_file, events = directory / PROXY_ENV, directory / "proxy-events.jsonl"
    sockets = open_listening("127.0.0.1", 0)
    port = int(sockets[0].getsockname()[1])
    text = demo.proxy_env_text(port=port, upstream=target.url, events=events)
    env_file.write_text(f"{text}PROXY_DRAIN_TIMEOUT={DRAIN_S}\n", encoding="utf-8")
    env = {**os.environ, "XDG_STATE_HOME": str(directory)}
    keeper.start_service(Role.PROXY, env_file, env, directory / "proxy.out", sockets)
    return replace(target, proxy_url=f"http://127.0.0.1:{port}", proxy_log=str(events), proxy_origin="demo")


def demo_environment(directory: Path) -> dict[str, str]:
    """The environment in which the demo's records, backups and profiles are its own, and its services are found."""
    others = {BY_NAME[name].variable for name in SERVICE_SETTINGS}
    own = {"XDG_STATE_HOME": str(directory), "XDG_CONFIG_HOME": str(directory)}
    return {**{key: value for key, value in os.environ.items() if key not in others}, **own}


def demo_deployment(directory: Path, target: Target) -> Deployment:
    """The demo's own services, which may be tuned like any others."""
    from specdash.control.deployment import Deployment, Service
    from specdash.core.changes import Role

    env = demo_environment(directory)
    proxy = Service(Role.PROXY, directory / PROXY_ENV, env) if target.proxy_url is not None else None
    return Deployment(Service(Role.BACKEND, directory / BACKEND_ENV, env), proxy)


def start_baseline(keeper: Keeper, directory: Path) -> None:
    """Begin to measure decode without speculation, on an engine of its own and in the demo's own records."""
    file = str(directory / BACKEND_ENV)
    argv = (sys.executable, "-m", "specdash", "baseline", "record", "--env-file", file, "--force", *_BASELINE)
    output = directory / "baseline.out"
    keeper.start(BASELINE, argv, demo_environment(directory), output, again=False)


def traffic_after_baseline(keeper: Keeper, target: Target, record: Path | None, limit_s: float = BASELINE_S) -> None:
    """Start the workload as soon as the baseline is measured, or after so long with what there is of it: they would
    slow each other down."""
    if (baseline := keeper.kept.get(BASELINE)) is not None:
        baseline.join(limit_s)
        keeper.stop(BASELINE)
    with suppress(SpecdashError):  # the demo has ended
        start_traffic(keeper, target, record)


def start_traffic(
    keeper: Keeper,
    target: Target,
    record: Path | None,
    phases: tuple[str, ...] = (),
    *,
    with_agents: bool = True,
) -> None:
    """Start the workload, of these phases or of all; with `record`, every request's timings go to that file."""
    argv = [sys.executable, "-m", "specdash.backend.workload", "--url", target.url]
    for phase in phases:
        argv += ["--phase", phase]
    if record is not None:
        argv += ["--record", str(record.absolute())]
    nowhere = Path(os.devnull)
    keeper.start(TRAFFIC, argv, os.environ.copy(), nowhere)
    if target.proxy_url is not None and with_agents:
        agents = (sys.executable, "-m", "specdash.backend.workload", "--agents", "--url", target.proxy_url)
        keeper.start(AGENTS, agents, os.environ.copy(), nowhere)


def _headless(keeper: Keeper, directory: Path, target: Target, record: Path | None, seconds: float) -> Picture:
    from specdash.collect.hub import Hub
    from specdash.insight.state import TargetState

    state = TargetState(target)
    ends = time.monotonic() + seconds
    with Hub(target, [state.apply], env=demo_environment(directory)):
        time.sleep(min(0.5, seconds / 4))
        traffic_after_baseline(keeper, target, record, min(BASELINE_S, seconds / 3))
        time.sleep(max(0.0, ends - time.monotonic() - min(LOAD_ENDS_BEFORE_S, seconds / 4)))
        for name in (AGENTS, TRAFFIC) if target.proxy_url is not None else (TRAFFIC,):
            keeper.stop(name)
        time.sleep(max(0.0, ends - time.monotonic()))
        return state.picture(time.monotonic(), time.time(), max(seconds + 1.0, WINDOWS_S["1m"]))

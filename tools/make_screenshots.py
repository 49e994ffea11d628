"""`make screenshots`: pictures of the real dashboard on the real demo, as PNG, and the README's film of them.

The demo runs for a minute first, so that every panel has something to show. The `checkpoints` picture is of a recurrent
model of tests/support, because the demo's model has an attention memory; the `tuner` picture is of a service of
tests/support, which outlives each of its restarts. Needs Pillow (in the `dev` extra) and DejaVu Sans Mono (Debian:
fonts-dejavu-core).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from specdash.backend.demo import DRAFT_TYPE, widened_target
from specdash.backend.workload import PAYING
from specdash.cli.demo import (
    AGENTS,
    demo_deployment,
    demo_environment,
    private_directory,
    start_backend,
    start_baseline,
    start_proxy,
    start_traffic,
    traffic_after_baseline,
)
from specdash.collect.discover import target_for_url
from specdash.collect.hub import Hub
from specdash.control.console import Console
from specdash.control.keeper import Keeper
from specdash.core.changes import ApplyOutcome, Role
from specdash.core.readings import Source
from specdash.insight.speedup.verdict import VerdictKind, verdict
from specdash.insight.state import TargetState
from specdash.tui.app import Dashboard
from specdash.tune.run.status import TuneStep
from svg_to_png import picture

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdash.tune.run.console import TunerConsole
    from specdash.tune.run.status import TuneRun

SIZE = (120, 36)
SCREENS = {
    "demo": (),
    "speculation": ("m",),
    "proxy": ("p",),
    "tune": ("e", "A", "j", "enter", "8", "enter"),
}
"""Each picture's name, and the keys that lead to it."""
FILM = ("demo", "speculation", "proxy", "tune", "banner", "incidents")
"""What the README's film shows, in this order."""
PAID = frozenset({"demo", "speculation"})
"""Those that are drawn while the traffic has no phase in which speculation costs."""
INCIDENTS = {"banner": (), "incidents": ("i",)}
"""Those that are drawn while the engine is stopped."""
CHECKPOINTS = {"checkpoints": ("m",)}
"""Those of a recurrent model that speculates."""
TUNER = {"tuner": ("T",)}
"""Those of a run of the tuner."""
TUNE = ("tune", "--yes", "--busy-ok", "--each", "8", "--tokens", "256", "--ttft", "1", "--restarts", "12")
TUNED_BOOTS = 4
TUNE_S = 900.0
ALL = (*SCREENS, *INCIDENTS, *CHECKPOINTS, *TUNER)
STOPPED_S = 15.0
APPLIED = {"LLAMA_DRAFT_MAX": "2"}
"""What is applied after half of the traffic, so that there is a marker and a card to show."""
WARM_UP_S = 75.0
WINDOW_S = 60.0
ROUND_S = 100.0
OUT = Path(__file__).resolve().parents[1] / "screenshots"
TESTS = Path(__file__).resolve().parents[1] / "tests"


async def shoot(state: TargetState, console: Console | None, tuner: TunerConsole | None, keys: tuple[str, ...]) -> str:
    """The dashboard as SVG; without a console it is not the demo's."""
    app = Dashboard(state, demo=console is not None, theme="night", console=console, tuner=tuner)
    app.window_s = WINDOW_S
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause(1.0)
        for key in keys:
            await pilot.press(key)
            await app.workers.wait_for_complete()
        await pilot.pause(2.0)
        return app.export_screenshot()


def main() -> int:
    """Draw all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--only", choices=ALL, action="append", help="draw these pictures, not all")
    parser.add_argument("--warm-up", type=float, default=WARM_UP_S, help="seconds of traffic before the first picture")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    wanted = frozenset(args.only or ALL)
    if wanted & {*SCREENS, *INCIDENTS} and not demo_pictures(wanted, args.out, args.warm_up):
        return 1
    if wanted & {*FILM}:
        film(args.out)
    if wanted & {*CHECKPOINTS}:
        checkpoint_pictures(args.out, args.warm_up)
    if wanted & {*TUNER}:
        tuner_pictures(args.out)
    return 0


def demo_pictures(wanted: frozenset[str], out: Path, warm_up: float) -> bool:
    """Those of the demo; False when the apply that is to be seen in them failed."""
    with private_directory() as directory, Keeper() as keeper:
        model = widened_target(directory)
        target = start_proxy(keeper, directory, start_backend(keeper, directory, (DRAFT_TYPE,), "auto", model))
        start_baseline(keeper, directory)
        state = TargetState(target)
        env = demo_environment(directory)
        console = Console(lambda: demo_deployment(directory, target), drain_timeout_s=60, health_timeout_s=60, env=env)
        with Hub(target, [state.apply], on_target=state.retarget, env=env):
            time.sleep(1.0)
            traffic_after_baseline(keeper, target, None)
            time.sleep(warm_up / 2)
            running = console.start(console.plan({Role.BACKEND: APPLIED}))
            running.join()
            if running.record is None or running.record.outcome is not ApplyOutcome.APPLIED:
                print(f"the apply before the pictures failed: {running.record or running.error}", file=sys.stderr)
                return False
            time.sleep(warm_up / 2)
            draw(state, console, {name: keys for name, keys in SCREENS.items() if name in wanted - PAID}, out)
            if wanted & PAID:
                keeper.stop(AGENTS)
                start_traffic(keeper, target, None, PAYING, with_agents=False)
                time.sleep(WINDOW_S)
                await_pay(state)
                draw(state, console, {name: keys for name, keys in SCREENS.items() if name in PAID}, out)
                start_traffic(keeper, target, None)
            if wanted & {*INCIDENTS}:
                with stopped_engine(state):
                    time.sleep(STOPPED_S)
                    draw(state, console, {name: keys for name, keys in INCIDENTS.items() if name in wanted}, out)
    return True


def await_pay(state: TargetState) -> None:
    """Wait until the verdict is that speculation pays, for a round of the demo's traffic at most."""
    until = time.monotonic() + ROUND_S
    while time.monotonic() < until:
        if verdict(state.picture(time.monotonic(), time.time(), WINDOW_S)).kind is VerdictKind.PAYS:
            return
        time.sleep(0.5)


def checkpoint_pictures(out: Path, warm_up: float) -> None:
    """A recurrent model whose draft has every eighth word wrong: each rejection restores a checkpoint and replays."""
    sys.path.insert(0, str(TESTS))
    from support.engines import engine_env, running_backend
    from support.tiny_models import SENTENCE, build

    with private_directory() as directory:
        models = build(directory)
        env = engine_env("llama-server") | {
            "LLAMA_MODEL": str(models["mamba"]),
            "LLAMA_DRAFT_MODEL": str(models["draft"]),
            "LLAMA_SPEC_TYPE": DRAFT_TYPE,
            "LLAMA_DRAFT_MAX": "8",
            "LLAMA_CTX_SIZE": "4096",
            "LLAMA_PARALLEL": "1",
            "LLAMA_LOG_VERBOSITY": "5",
        }
        with running_backend(env, directory / "run") as backend:
            there = {**os.environ, "XDG_STATE_HOME": str(backend.state)}
            target = target_for_url(backend.url, there)
            state = TargetState(target)
            with Hub(target, [state.apply], on_target=state.retarget, env=there):
                until = time.monotonic() + warm_up
                for turn in itertools.count():
                    backend.complete(" ".join((SENTENCE * 2)[turn % 20 : turn % 20 + 8 + turn % 24]), 120)
                    if time.monotonic() > until:
                        break
                time.sleep(2.0)
                draw(state, None, CHECKPOINTS, out)


def tuner_pictures(out: Path) -> None:
    """A run of `specdash tune` on a real service, begun in another terminal and half done."""
    sys.path.insert(0, str(TESTS))
    from specdash.tune.run.console import TunerConsole
    from support.deployment import running_deployment

    with running_deployment("daemon") as rig:
        env = {**rig.env, "LLAMA_API_KEY": rig.values()["LLAMA_API_KEY"]}
        target = target_for_url(rig.backend_url, env)
        state, tuner = TargetState(target), TunerConsole(rig.env)
        run = rig.start_command(*TUNE)
        try:
            with Hub(target, [state.apply], on_target=state.retarget, env=env):
                until = time.monotonic() + TUNE_S
                while (seen := tuner.look().run) is None or not half_done(seen):
                    if run.poll() is not None or time.monotonic() > until:
                        sys.exit(f"the run for the picture has ended: {run.communicate()[1]}")
                    time.sleep(0.2)
                draw(state, None, TUNER, out, tuner)
        finally:
            run.send_signal(signal.SIGINT)
            run.communicate(timeout=120)


def half_done(run: TuneRun) -> bool:
    """Some boots have ended, and the present one is measured."""
    now = run.now
    return len(run.boots) >= TUNED_BOOTS and now is not None and now.step is TuneStep.MEASURE and now.done == 1


def draw(
    state: TargetState,
    console: Console | None,
    screens: Mapping[str, tuple[str, ...]],
    out: Path,
    tuner: TunerConsole | None = None,
) -> None:
    """These screens."""
    for screen, keys in screens.items():
        drawn = picture(asyncio.run(shoot(state, console, tuner, keys)))
        file = out / f"{screen}.png"
        # A screen has few colours: with 64 the file has a third of the size, and looks the same.
        drawn.quantize(64, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(file, optimize=True)
        print(file)


def film(out: Path) -> None:
    """The pictures that are there, one after the other, as a GIF."""
    pictures = [Image.open(file).convert("RGB") for name in FILM if (file := out / f"{name}.png").exists()]
    frames = [
        shown.resize((1080, shown.height * 1080 // shown.width)).quantize(
            64, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        )
        for shown in pictures
    ]
    frames[0].save(out / "film.gif", save_all=True, append_images=frames[1:], duration=3000, loop=0, optimize=True)
    print(f"{out / 'film.gif'}")


@contextlib.contextmanager
def stopped_engine(state: TargetState) -> Iterator[None]:
    """The engine as a debugger or a full disk would leave it: there, and deaf."""
    process = state.value(Source.PROCESS)
    for pid in process.pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in process.pids:
            os.kill(pid, signal.SIGCONT)


if __name__ == "__main__":
    sys.exit(main())

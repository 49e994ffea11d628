"""`specdash bench replay`: an agent's recorded session, asked again with the prompt cache off and on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from specdash.cli.options import add_settings, one_target, resolved_settings, within
from specdash.cli.signals import stopped_by_signals
from specdash.core.errors import ExitCode, InputError
from specdash.core.structs import json_of

if TYPE_CHECKING:
    import argparse

    from specdash.bench.load.samples import EngineAddress
    from specdash.bench.replay.replay import Replay
    from specdash.bench.replay.replay_run import Replayer, ReplayStep
    from specdash.bench.replay.transcript import Transcript
    from specdash.bench.report import Results, StepProgress

_SETTINGS = ("url", "api_key_env", "api_key_file", "model")


def configure(parser: argparse.ArgumentParser) -> None:
    from specdash.bench.replay.replay_run import MAX_TOKENS

    parser.add_argument("session", metavar="SESSION.jsonl", help="of Claude Code, or OpenAI messages")
    add_settings(parser, _SETTINGS)
    sides = parser.add_mutually_exclusive_group()
    for side, words in (("cold", "with the cache off only"), ("warm", "with the cache on only")):
        sides.add_argument(f"--{side}", dest="side", action="store_const", const=side, help=words)
    sides.add_argument("--both", dest="side", action="store_const", const="both", help="first off, then on (default)")
    parser.add_argument("--turns", type=int, metavar="N", help="the first N calls (default: all)")
    parser.add_argument(
        "--max-tokens", type=int, default=MAX_TOKENS, metavar="N", help=f"longest answer in tokens ({MAX_TOKENS})"
    )
    parser.add_argument("--system", metavar="F", help="the system prompt, which Claude Code does not write down")
    parser.add_argument("--images", action="store_true", help="send images where the model sees; else a note stands")
    parser.add_argument("--skip-broken", action="store_true", help="leave broken lines out, and count them")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="longest silence in seconds (600)")
    parser.add_argument("--out", metavar="DIR", help="folder for the results")
    parser.add_argument("--json", action="store_true", help="print JSON (docs/measuring.md)")


def run(args: argparse.Namespace) -> int:
    """Replay, print calls and totals, and leave them in the results folder."""
    from specdash.bench.load.samples import EngineAddress
    from specdash.bench.report import StepProgress

    within("--turns", args.turns, None, 1, 1_000_000)
    within("--max-tokens", args.max_tokens, None, 1, 100_000)
    within("--timeout", args.timeout, None, 0.1, 86400.0)
    progress = StepProgress(0, quiet=args.json)
    transcript = _read(args, progress)
    target = one_target(resolved_settings(args))
    with stopped_by_signals():
        return _measure(args, EngineAddress(target.url, target.api_key, target.model), transcript, progress)


def _read(args: argparse.Namespace, progress: StepProgress) -> Transcript:
    from specdash.bench.replay.transcript import read_transcript

    path = Path(args.session)
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is no file; name a session, as ~/.claude/projects/*/*.jsonl are")
    try:
        with path.open("rb") as stream:
            found = read_transcript(
                stream, str(path), turns=args.turns, skip_broken=args.skip_broken, images=args.images
            )
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    if found.skipped:
        progress.say(f"{found.skipped} broken lines left out: {'; '.join(found.broken[:3])}")
    return found


def _system(args: argparse.Namespace) -> str | None:
    if args.system is None:
        return None
    try:
        return Path(args.system).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"--system {args.system}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError(f"--system {args.system}: is not UTF-8 text") from None


def _measure(args: argparse.Namespace, place: EngineAddress, transcript: Transcript, progress: StepProgress) -> int:
    from specdash.bench.load.contact import look
    from specdash.bench.replay.replay import SIDES, answer_json
    from specdash.bench.replay.replay_run import Replayer, ReplayOptions, ServerQuestions
    from specdash.bench.report import Results

    place, engine = look(place)
    if args.images and not ServerQuestions(place).takes_images():
        raise InputError(f"--images: the model at {place.url} takes none; leave it out, and a note stands for each")
    sides = SIDES if args.side in (None, "both") else (args.side,)
    options = ReplayOptions(args.max_tokens, sides, args.timeout, _system(args))
    with Results.new("replay", args.out) as results:

        def on_step(step: ReplayStep) -> None:
            answer = step.row.side(step.side)
            if answer is not None:
                results.add({"call": step.row.number, "side": step.side, **answer_json(answer)})
            progress.total = step.total
            progress.show(step.done, f"call {step.row.number}, {step.side}")

        replayer = Replayer(place, transcript, options, engine.slot_context, on_step)
        made = _made(replayer)
        made = replace(made, engine=json_of(engine), session=_session(args, transcript))
        progress.end()
        _print(args, made, results, progress)
    if made.interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.FAILED if made.all_failed or made.suspects else ExitCode.OK


def _made(replayer: Replayer) -> Replay:
    try:
        replayer.run()
    except KeyboardInterrupt:
        return replayer.result(interrupted=True)
    return replayer.result()


def _session(args: argparse.Namespace, transcript: Transcript) -> dict[str, object]:
    return {
        "name": Path(args.session).name,
        **json_of(transcript, "format lines more broken"),
        "broken_lines": transcript.skipped,
        "not_sent": transcript.left_out,
        "calls": len(transcript.calls),
        "has_own_system": any(turn.role in ("system", "developer") for turn in transcript.calls[0].last.up()),
    }


def _print(args: argparse.Namespace, made: Replay, results: Results, progress: StepProgress) -> None:
    from specdash.bench.replay.replay import report

    found = report(made)
    found.save(results)
    if results.trouble is not None:
        progress.say(str(results.trouble))
    if args.json:
        print(json.dumps(found.document, indent=1))
        return
    name = made.engine.get("model") or made.engine.get("url")
    print(f"{name}: {len(made.rows)} calls of {made.session['name']}, {made.tools} tools")
    print("\n".join(found.lines))
    if made.interrupted:
        print("stopped before the end")
    print(f"results in {results.directory}")

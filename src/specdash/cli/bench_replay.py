"""`specdash bench replay`: an agent's recorded session, asked again with the prompt cache off and on."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.cli.options import add_settings, one_target, resolved_settings, within
from specdash.cli.own_server import add_own_server, own_server
from specdash.cli.signals import stopped_by_signals
from specdash.core.errors import ExitCode, InputError, UsageError

if TYPE_CHECKING:
    import argparse

    from specdash.bench.progress import Progress
    from specdash.bench.replay import Replay
    from specdash.bench.replay_run import Replayer, Step
    from specdash.bench.results import Results
    from specdash.bench.samples import Place
    from specdash.bench.transcript_turns import Transcript

_SETTINGS = ("url", "api_key_env", "api_key_file", "model")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    from specdash.bench.replay_run import MAX_TOKENS

    parser.add_argument("session", metavar="SESSION.jsonl", help="of Claude Code, or OpenAI messages")
    add_settings(parser, _SETTINGS)
    add_own_server(parser)
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
    parser.add_argument("--json", action="store_true", help="print JSON (docs/bench-replay.md)")


def run(args: argparse.Namespace) -> int:
    """Replay, print calls and totals, and leave them in the results folder."""
    from specdash.bench.progress import Progress
    from specdash.bench.samples import Place

    _check(args)
    progress = Progress(0, quiet=args.json)
    transcript = _read(args, progress)
    with stopped_by_signals():
        if args.env_file is None:
            target = one_target(resolved_settings(args))
            return _measure(args, Place(target.url, target.api_key, target.model), transcript, progress)
        with own_server(args, "replay", progress.say) as (url, key):
            return _measure(args, Place(url, key), transcript, progress)


def _check(args: argparse.Namespace) -> None:
    if args.env_file is None and (args.engine is not None or args.force):
        raise UsageError("--engine and --force go with --env-file, which starts a server")
    if args.env_file is not None and args.url is not None:
        raise UsageError("--url and --env-file name two servers; give one of them")
    within("--turns", args.turns, None, 1, 1_000_000)
    within("--max-tokens", args.max_tokens, None, 1, 100_000)
    within("--timeout", args.timeout, None, 0.1, 86400.0)


def _read(args: argparse.Namespace, progress: Progress) -> Transcript:
    from specdash.bench.transcript import read_transcript

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


def _measure(args: argparse.Namespace, place: Place, transcript: Transcript, progress: Progress) -> int:
    from specdash.bench.contact import look
    from specdash.bench.replay import SIDES
    from specdash.bench.replay_looks import Looks
    from specdash.bench.replay_report import answer_json
    from specdash.bench.replay_run import Options, Replayer
    from specdash.bench.results import Results

    place, engine = look(place)
    if args.images and not Looks(place).takes_images():
        raise InputError(f"--images: the model at {place.url} takes none; leave it out, and a note stands for each")
    sides = SIDES if args.side in (None, "both") else (args.side,)
    options = Options(args.max_tokens, sides, args.timeout, _system(args))
    with Results.new("replay", args.out) as results:

        def told(step: Step) -> None:
            answer = step.row.side(step.side)
            if answer is not None:
                results.add({"call": step.row.number, "side": step.side, **answer_json(answer)})
            progress.total = step.total
            progress.show(step.done, f"call {step.row.number}, {step.side}")

        replayer = Replayer(place, transcript, options, engine.slot_context, told)
        made = _made(replayer)
        made = replace(made, engine=asdict(engine), session=_session(args, transcript))
        progress.end()
        _leave(results, made)
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
        "format": transcript.format,
        "lines": transcript.lines,
        "calls": len(transcript.calls),
        "more": transcript.more,
        "broken_lines": transcript.skipped,
        "broken": list(transcript.broken),
        "not_sent": dict(transcript.left_out),
        "has_own_system": any(turn.role in ("system", "developer") for turn in transcript.calls[0].last.up()),
    }


def _leave(results: Results, made: Replay) -> None:
    from specdash.bench.replay_report import as_json, markdown, plot
    from specdash.bench.results import REPORT_JSON, REPORT_MD

    results.write_json(REPORT_JSON, as_json(made))
    results.write(REPORT_MD, markdown(made))
    results.write("ttft.svg", plot(made))


def _print(args: argparse.Namespace, made: Replay, results: Results, progress: Progress) -> None:
    from specdash.bench.replay_report import as_json, summary, table

    if results.trouble is not None:
        progress.say(str(results.trouble))
    if args.json:
        print(json.dumps(as_json(made), indent=1))
        return
    name = made.engine.get("model") or made.engine.get("url")
    print(f"{name}: {len(made.rows)} calls of {made.session['name']}, {made.tools} tools")
    print("\n".join([*table(made), "", *summary(made)]))
    if made.interrupted:
        print("stopped before the end")
    print(f"results in {results.directory}")

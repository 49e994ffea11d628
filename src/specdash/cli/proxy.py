"""`specdash proxy run|show|hold|resume|state`: the bundled Anthropic proxy, and the words to a running one."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from specdash.core.errors import ExitCode, InputError, SpecdashError, UnreachableError, UsageError
from specdash.core.proxy_parameters import NEEDS_RESTART, PARAMETERS
from specdash.system import http

if TYPE_CHECKING:
    import argparse

    from specdash.core.records import ProxyRecord
    from specdash.proxy.settings import Configuration

_OVERRIDES = {"host": "PROXY_HOST", "port": "PROXY_PORT", "upstream": "LLAMA_CPP_BASE"}
_ASK_S = 10.0


_ACTIONS = {
    "run": "run the proxy in the foreground",
    "show": "print every setting with its value and source",
    "hold": "make new requests wait",
    "resume": "let waiting requests continue",
    "state": "show whether the proxy is held, and how many requests wait",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the actions and their options."""
    from specdash.cli.options import add_actions

    actions = add_actions(parser, _ACTIONS)
    for name, action in actions.items():
        action.add_argument(
            "--env-file",
            metavar="F",
            help="proxy env in systemd's EnvironmentFile dialect (default: ~/.config/specdash/proxy.env, else PROXY_* "
            "and LLAMA_CPP_BASE of the environment)",
        )
        if name not in ("run", "show"):
            words = "address of the running proxy (default: the one on this machine)"
            action.add_argument("--url", metavar="U", help=words)
    run, hold = actions["run"], actions["hold"]
    run.add_argument("--host", metavar="H", help="address to listen on; overrides PROXY_HOST")
    run.add_argument("--port", metavar="P", help="port to listen on; overrides PROXY_PORT")
    run.add_argument("--upstream", metavar="U", help="the llama.cpp server's URL; overrides LLAMA_CPP_BASE")
    actions["show"].add_argument("--json", action="store_true", help="print one JSON object")
    hold.add_argument("--reason", metavar="R", default="", help="reason to give to clients and the log")
    hold.add_argument("--limit", metavar="S", type=float, help="end the hold automatically after S seconds")
    hold.add_argument("--wait", metavar="S", type=float, help="longest time that a request may wait, in seconds")
    words = "first wait up to S seconds for running requests"
    hold.add_argument("--drain", metavar="S", type=float, default=0.0, help=words)


def run(args: argparse.Namespace) -> int:
    """Do what `args.action` says; see `configure`."""
    if args.action == "run":
        # A user may ask for a reload as soon as we are there: that must not end us, and not be lost.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        try:
            return _run(_configuration(args))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    configuration = _configuration(args)
    if args.action == "show":
        rows = _rows(configuration)
        print(json.dumps(_as_json(configuration, rows), indent=1) if args.json else _as_text(configuration, rows))
        return ExitCode.BAD_INPUT if configuration.settings.problems else ExitCode.OK
    body: dict[str, Any] | None = None if args.action == "state" else {}
    if args.action == "hold":
        body = {"reason": args.reason, "drain_s": args.drain}
        body |= {"limit_s": args.limit} if args.limit is not None else {}
        body |= {"wait_s": args.wait} if args.wait is not None else {}
    base, headers = _proxy(configuration, args.url, named=args.env_file is not None)
    answer = _ask(base, headers, f"/admin/{args.action}", body, wait_s=getattr(args, "drain", 0.0))
    print(json.dumps(answer, indent=1))
    return ExitCode.OK


def _configuration(args: argparse.Namespace) -> Configuration:
    from specdash.proxy.settings import load

    given = {key: getattr(args, name, None) for name, key in _OVERRIDES.items()}
    return load(args.env_file, overrides={key: text for key, text in given.items() if text})


def _run(configuration: Configuration) -> int:
    from specdash.cli.memory import return_memory

    try:
        from specdash.proxy.http import server
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("specdash"):
            raise
        raise InputError(
            f"the proxy needs the package {error.name}: run `pip install '.[proxy]'` in a checkout of specdash"
        ) from None
    return_memory()
    return server.run(configuration)


def _rows(configuration: Configuration) -> list[dict[str, Any]]:
    from specdash.proxy.settings import shown

    return [
        {
            "key": parameter.key,
            "value": shown(parameter, configuration.settings),
            "unit": parameter.unit,
            "source": configuration.source_of(parameter.key),
            "needs_restart": parameter.key in NEEDS_RESTART,
            "meaning": parameter.meaning,
        }
        for parameter in PARAMETERS
    ]


def _as_json(configuration: Configuration, rows: list[dict[str, Any]]) -> dict[str, Any]:
    path = configuration.env_file
    return {
        "env_file": str(path) if path is not None else None,
        "settings": rows,
        "problems": list(configuration.settings.problems),
    }


def _as_text(configuration: Configuration, rows: list[dict[str, Any]]) -> str:
    lines = [f"settings from {configuration.source}", ""]
    for row in rows:
        source = "" if row["source"] == "default" else f"  [{row['source']}]"
        unit = f" {row['unit']}" if row["unit"] and row["value"] else ""
        lines += [f"{row['key']}={row['value']}{unit}{source}", f"    {row['meaning']}"]
    if configuration.settings.problems:
        lines += ["", "problems", *(f"  {problem}" for problem in configuration.settings.problems)]
    return "\n".join(lines)


def _proxy(configuration: Configuration, url: str | None, *, named: bool) -> tuple[str, dict[str, str]]:
    """Address of the proxy that is meant, and the headers for its admin endpoints: of the named one, else of the one
    that runs and left a record, as `watch` finds it, else of where the settings say that it listens. Raises
    `UsageError` where several run."""
    from specdash.collect.discover import concerns, place, recorded_key, running_proxies

    settings, file = configuration.settings, configuration.env_file
    key = settings.api_key or os.environ.get("PROXY_API_KEY")
    running = list(running_proxies(os.environ))
    if url is not None:
        base = _with_scheme(url)
    else:
        found = [] if named else running
        ours = [record for record in found if file is not None and record.env_file == str(file)]
        if len(found) > 1 and len(ours) != 1:
            raise UsageError(f"several proxies run: {', '.join(record.url for record in found)}; name one with --url")
        host = f"[{settings.host}]" if ":" in settings.host.strip("[]") else settings.host
        base, origin = f"http://{host}:{settings.port}", configuration.source
        for our in (ours or found)[:1]:
            base, origin, key = our.url, f"run record of process {our.pid}", recorded_key(our, os.environ) or key
        print(f"specdash: {base} ({origin})", file=sys.stderr)
    here = next((record for record in running if concerns(base, place(record.url))), None)
    return base, _headers(configuration, key, here)


def _headers(configuration: Configuration, key: str | None, record: ProxyRecord | None) -> dict[str, str]:
    """The key for a proxy of 0.1, and the token for one that asks for it."""
    from specdash.collect.discover import admin_token

    recorded = admin_token(record) if record is not None else None
    token = recorded or configuration.settings.admin_token or os.environ.get("PROXY_ADMIN_TOKEN")
    return {name: value for name, value in (("x-api-key", key), ("x-admin-token", token)) if value}


def _with_scheme(url: str) -> str:
    return url.rstrip("/") if url.startswith(("http://", "https://")) else f"http://{url.rstrip('/')}"


def _ask(base: str, headers: dict[str, str], path: str, body: Any, *, wait_s: float) -> Any:
    try:
        answer = http.ask(base, path, body=body, headers=headers, timeout=_ASK_S + wait_s)
    except OSError as error:
        raise UnreachableError(f"no proxy answers at {base} ({error}); name it with --url") from None
    if answer.status != 200:
        raise SpecdashError(f"{base}{path}: {answer.status}: {_message(answer.body)}")
    if answer.json is None:
        raise UnreachableError(f"{base} does not answer like a specdash proxy; name it with --url")
    return answer.json


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "no specdash proxy"

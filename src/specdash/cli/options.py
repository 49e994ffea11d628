"""What commands share: their options, the server that these name, a look at it, and how an answer is printed."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.core import paths
from specdash.core.config import BY_NAME, SETTINGS, Resolved, of_target, resolve
from specdash.core.errors import InputError, UnreachableError, UsageError
from specdash.core.target import is_over_ssh, local_port

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from specdash.core.target import Target
    from specdash.insight.picture import Picture
    from specdash.insight.rules.catalogue import Rule
    from specdash.insight.state import TargetState


_ANY_ADDRESS = Resolved("http://127.0.0.1", "default")
"""In the place of an address that the settings do not name, where only what else they say is wanted."""

MOST_SEED = 2**32 - 2
"""Seeds are 0 to this: llama.cpp's own have 32 bits, of which the last stands for a random one."""


def add_settings(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """Add the named settings as options; an option that is not given stays None. With the address comes `--target`."""
    for name in names:
        if name == "url":
            parser.add_argument(
                "--target", dest="target_name", metavar="NAME", help="a server by its name: a [[target]] in config.toml"
            )
        setting = BY_NAME[name]
        if isinstance(setting.default, bool):
            wanted = not setting.default
            words = setting.help if wanted else f"do not {setting.help}"
            parser.add_argument(setting.option, dest=name, action="store_const", const=wanted, help=words)
        else:
            parser.add_argument(
                setting.option, dest=name, metavar=setting.metavar or setting.unit.upper(), help=setting.help
            )


def add_actions(parser: argparse.ArgumentParser, actions: Mapping[str, str]) -> dict[str, argparse.ArgumentParser]:
    """Add what the command can do, by name with its help; the parsers of their own options. The one that was given is
    `args.action`."""
    kinds = parser.add_subparsers(dest="action", required=True, metavar="{" + ",".join(actions) + "}")
    return {name: kinds.add_parser(name, help=text, allow_abbrev=False) for name, text in actions.items()}


def add_service(parser: argparse.ArgumentParser, text: str) -> None:
    """Add `--service backend` or `proxy`."""
    from specdash.core.changes import Role

    parser.add_argument("--service", choices=[str(role) for role in Role], help=text)


MOMENTS_AGO = r"-\d[\d.smhdw]*"
"""`-3h`"""
REMOVED_KEYS = r"-[A-Z][A-Z0-9_]*\Z"
"""`-LLAMA_DRAFT_MAX`"""


def accept_as_value(parser: argparse.ArgumentParser, pattern: str) -> None:
    """Take words like that for values, though they begin as options do: argparse only asks whether they look like the
    negative numbers that it knows."""
    parser._negative_number_matcher = re.compile(pattern)  # noqa: SLF001


def resolved_settings(args: argparse.Namespace | None) -> dict[str, Resolved]:
    """All settings, from the command line, the environment and the user's config.toml, and of the target that
    `--target` names."""
    path = paths.config_file()
    text = _text_of(path)
    given = {setting.name: getattr(args, setting.name, None) for setting in SETTINGS if setting.has_option}
    settings = resolve(given, os.environ, text, str(path), _warn)
    name = getattr(args, "target_name", None)
    if name is None:
        return settings
    if given["url"] is not None:
        raise UsageError("--target and --url cannot be used together")
    return of_target(settings, name)


@cache
def _warn(text: str) -> None:
    """Once, however often the settings are read."""
    print(f"specdash: {text}", file=sys.stderr)


def add_own_machine(parser: argparse.ArgumentParser) -> None:
    """Add `--target` to a command that changes services; `--url` only names another machine (`cli.on`)."""
    parser.add_argument("--url", metavar="URL", help="run it on another machine: ssh://user@host, as --on user@host")
    parser.add_argument(
        "--target", dest="target_name", metavar="NAME", help="the services of that [[target]] in config.toml"
    )


def check_own_machine(args: argparse.Namespace) -> None:
    """Raise `UsageError` where the command line names a server of another machine."""
    if args.url is None and args.target_name is None:
        return
    url = resolved_settings(args)["url"].value
    if args.url is not None or local_port(url) is None:
        raise UsageError(
            f"{url}: services are changed on their own machine: leave --url out, or name that one with --on USER@HOST"
        )


def alert_rules(settings: Mapping[str, Resolved]) -> tuple[Rule, ...]:
    """The alert rules with the user's thresholds: of the file that `rules` names, else of rules.toml beside config.toml
    where there is one. Raises `InputError` for a file that is named and missing, or that cannot be meant."""
    from specdash.insight.rules.catalogue import shipped, with_user_limits

    named = settings["rules"].value
    path = Path(named) if named is not None else paths.rules_file()
    text = _text_of(path)
    if text is not None:
        return with_user_limits(shipped(), text, str(path), _warn)
    if named is None:
        return shipped()
    raise InputError(f"rules {named} ({settings['rules'].origin}): there is no such file")


def changed_rules(settings: Mapping[str, Resolved]) -> tuple[Rule, ...] | None:
    """`alert_rules` where the user has thresholds of their own, else None: the shipped ones are loaded when needed."""
    if settings["rules"].value is None and not paths.rules_file().exists():
        return None
    return alert_rules(settings)


def _text_of(path: Path) -> str | None:
    """None where there is no such file."""
    if path.is_fifo() or (path.is_char_device() and not path.samefile(os.devnull)):
        raise InputError(f"cannot read {path}: it is a pipe or a device; name a file")
    try:
        return path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else f"byte {error.start + 1} is not UTF-8"
        raise InputError(f"cannot read {path}: {why}") from None


def bare_target(settings: Mapping[str, Resolved]) -> Target:
    """The server at the address that the settings name, with nothing but what they say of it."""
    from specdash.collect.api_key import resolve_api_key
    from specdash.core.target import Target, normalise_url

    url, origin = settings["url"].value or "", settings["url"].origin
    log = settings["log"].value
    if log is not None and Path(log).is_dir():
        raise UsageError(f"log {log} ({settings['log'].origin}) is a directory; name the server's log file")
    key = resolve_api_key(settings["api_key_env"].value, settings["api_key_file"].value, os.environ)
    proxy, proxy_key = settings["proxy_url"], settings["proxy_key_env"].value
    proxy_log = settings["proxy_log"]
    if proxy_log.value is not None and Path(proxy_log.value).is_dir():
        raise UsageError(f"proxy_log {proxy_log.value} ({proxy_log.origin}) is a directory; name a file in it")
    return Target(
        normalise_url(url),
        api_key=key,
        log=log,
        log_named=log is not None,
        model=settings["model"].value,
        origin=origin,
        proxy_url=normalise_url(proxy.value) if proxy.value is not None else None,
        proxy_key=resolve_api_key(proxy_key, None, os.environ, "--proxy-key-env"),
        proxy_log=proxy_log.value,
        proxy_origin=proxy.origin if proxy.value is not None else "",
        name=_called(settings, "name"),
        group=_called(settings, "group"),
    )


def _called(settings: Mapping[str, Resolved], key: str) -> str:
    """What the table of a target calls it, "" where there is none."""
    called: str = settings[key].value if key in settings else ""
    return called


def machines(settings: Mapping[str, Resolved]) -> list[Target]:
    """The other machines of config.toml: a [[target]] whose url begins with ssh://. They are not asked from here."""
    from specdash.core.target import Target

    tables = (table for table in settings["target"].value if is_over_ssh(table["url"]))
    return [
        Target(table["url"], name=table["name"], group=table.get("group", ""), origin=settings["target"].origin)
        for table in tables
    ]


def find_targets(settings: Mapping[str, Resolved]) -> list[Target]:
    """The servers that the settings name or, without an address, all that are known (`every_target`).

    Each comes with the proxy in front of it: the one that the settings name, else the one that left a run record.
    """
    if settings["url"].value is not None:
        from specdash.collect import discover

        named = bare_target(settings)
        return [_with(discover.target_for_url(named.url, os.environ, origin=named.origin), named)]
    # Before the search: a key that is not set is an error whether or not a server is found.
    named = bare_target({**settings, "url": _ANY_ADDRESS})
    return [target if target.name else _with(target, named) for target in every_target(settings)]


def every_target(settings: Mapping[str, Resolved], env: Mapping[str, str] = os.environ) -> list[Target]:
    """The servers found on this machine, best first, and those of config.toml: each with what is known of it alone."""
    from msgspec.structs import replace

    from specdash.collect import discover

    tables = settings["target"].value
    configured = [_configured(settings, table["name"]) for table in tables if not is_over_ssh(table["url"])]
    targets: list[Target] = []
    for here in discover.discover(env):
        named = [target for target in configured if discover.place(target.url) == discover.place(here.url)]
        targets += [
            _with(replace(here, url=target.url, origin=f"{target.origin}; {here.origin}"), target) for target in named
        ] or [here]
        configured = [target for target in configured if target not in named]
    return targets + [discover.with_proxy(target, env) for target in configured]


def _configured(settings: Mapping[str, Resolved], name: str) -> Target:
    """The server of a table. One whose key cannot be read is looked at without: that costs the others nothing, and it
    says itself that it wants one."""
    own = of_target(settings, name, alone=True)
    try:
        return bare_target(own)
    except InputError as error:
        _say_once(f'[[target]] "{name}": {error}')
        unset = Resolved(None, "default")
        return bare_target(own | dict.fromkeys(("api_key_env", "api_key_file", "proxy_key_env"), unset))


def as_named(found: Target, settings: Mapping[str, Resolved]) -> Target:
    """A server that was found and chosen, with what the settings say of it; what they say of the server at an address
    of its own is not for this one, nor is anything for one that has a table of its own."""
    if found.name:
        return found
    if settings["url"].value is not None:
        from specdash.collect.discover import place, with_proxy

        named = bare_target(settings)
        return _with(found, named) if place(named.url) == place(found.url) else with_proxy(found, os.environ)
    return _with(found, bare_target({**settings, "url": _ANY_ADDRESS}))


def one_target(settings: Mapping[str, Resolved]) -> Target:
    """The one server to look at, the best of those found; standard error names the others. Raises
    `UnreachableError` when nothing is named and nothing is found."""
    targets = find_targets(settings)
    if not targets:
        raise no_server()
    if len(targets) > 1:
        say(f"{len(targets)} servers found, using {targets[0].url}; `specdash targets` lists them, --url picks one")
    return targets[0]


def no_server() -> UnreachableError:
    """That no server is named and none was found."""
    return UnreachableError(
        "no llama-server found on this machine; give its address with --url http://HOST:PORT, or try `specdash demo`"
    )


def _with(found: Target, named: Target) -> Target:
    """What was found, overruled by what the user named, with the proxy found where none is named."""
    from msgspec.structs import replace

    from specdash.collect.discover import with_proxy

    changes: dict[str, Any] = {
        name: getattr(named, name)
        for name in (
            "log",
            "log_named",
            "api_key",
            "model",
            "proxy_url",
            "proxy_key",
            "proxy_log",
            "proxy_origin",
            "name",
            "group",
        )
    }
    changes = {name: value for name, value in changes.items() if value}
    if "api_key" in changes:
        changes["key_is_recorded"] = False
    return with_proxy(replace(found, **changes), os.environ)


def print_json(document: object) -> None:
    """Print a document as `--json` does."""
    print(json.dumps(document, indent=1, allow_nan=False))


def print_answer(document: object, text: str | Iterable[str], *, as_json: bool) -> None:
    """Print the document as JSON, or the text, or its lines."""
    if as_json:
        print_json(document)
    else:
        print(text if isinstance(text, str) else "\n".join(text))


def say(words: str) -> None:
    """A line of the program's own on standard error."""
    print(f"specdash: {words}", file=sys.stderr, flush=True)


@cache
def _say_once(words: str) -> None:
    """What a program that looks for servers again and again would repeat."""
    say(words)


def within(option: str, value: Any, default: Any, least: float, most: float) -> Any:
    """A number that was given, else the default. Raises `UsageError` for one out of range, which NaN always is."""
    if value is None:
        return default
    if not least <= value <= most:
        raise UsageError(f"{option} {_plain(value)}: must be {_plain(least)} to {_plain(most)}")
    return value


def _plain(number: float) -> str:
    """A whole number with all its digits, which `:g` does not give from a million on."""
    return str(number) if isinstance(number, int) else f"{number:g}"


# One look at a server for a command that prints: collect until everything has answered, and derive the picture.

FIRST_ANSWERS_S = 5.0
"""How long the first answers of all endpoints may take; what has not answered by then is reported as it is."""


def look(
    target: Target,
    rules: Sequence[Rule],
    window_s: float,
    *,
    before_s: float = 0.0,
    limit_s: float = FIRST_ANSWERS_S,
    after_s: float = 0.0,
    interval_s: float = 1.0,
    env: Mapping[str, str] = os.environ,
) -> Picture:
    """The picture of a server and its machine over the last `window_s` seconds.

    Watches for `before_s`, then until every source has answered once, at most for `limit_s`, then for `after_s`.
    """
    with collecting(target, rules, interval_s=interval_s, env=env) as state:
        wait_until(before_s)
        await_answers([state], limit_s)
        wait_until(after_s)
        return state.picture(time.monotonic(), time.time(), window_s)


@contextmanager
def collecting(
    target: Target, rules: Sequence[Rule], *, interval_s: float = 1.0, env: Mapping[str, str] = os.environ
) -> Iterator[TargetState]:
    """The state of a server that is asked every `interval_s` seconds."""
    from specdash.collect.hub import Hub
    from specdash.insight.state import TargetState

    state = TargetState(target, rules=rules)
    with Hub(target, [state.apply], interval_s=interval_s, on_target=state.retarget, env=env):
        yield state


def settings_for(target: Target, settings: Mapping[str, Resolved]) -> Mapping[str, Resolved]:
    """The settings as the target's own table has them, where it has one."""
    return of_target(settings, target.name) if target.name else settings


def await_answers(states: Sequence[TargetState], limit_s: float = FIRST_ANSWERS_S, *, light: bool = False) -> None:
    """Wait until every source of all of them has answered once, at most for `limit_s`; of `light` ones, which a
    `FleetHub` watches, every source that it asks, unless their health cannot be had."""
    from specdash.core.readings import Source

    asked = {Source.HEALTH, Source.PROPS, Source.METRICS, Source.SLOTS}
    asked |= set() if light else {Source.HOST, Source.GPU, Source.APPLIES, Source.TRIAL}

    def has_answered(state: TargetState) -> bool:
        target, health = state.target, state.latest.get(Source.HEALTH)
        where = {Source.LOG: target.log}
        where |= {} if light else {Source.PROXY: target.proxy_url, Source.PROXY_EVENTS: target.proxy_log}
        awaited = asked | {source for source, place in where.items() if place is not None}
        is_away = light and health is not None and health.value is None
        return is_away or (awaited <= state.latest.keys() and state.has_caught_up)

    wait_until(limit_s, lambda: all(map(has_answered, states)))


def wait_until(seconds: float, until: Callable[[], bool] = lambda: False, poll_s: float = 0.005) -> bool:
    """Wait so long, or until that holds: whether it does."""
    ends = time.monotonic() + seconds
    while not (holds := until()) and (left := ends - time.monotonic()) > 0:
        time.sleep(min(poll_s, left))
    return holds

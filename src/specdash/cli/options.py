"""Options shared by the commands: settings from `core.config` as arguments, and the target they name."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.core import paths
from specdash.core.config import BY_NAME, Resolved, resolve
from specdash.core.errors import InputError, UnreachableError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping

    from specdash.core.target import Target
    from specdash.insight.rules.catalogue import Rule

MOST_SEED = 2**32 - 2
"""Seeds are 0 to this: llama.cpp's own have 32 bits, of which the last stands for a random one."""


def add_settings(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """Add the named settings as options; an option that is not given stays None."""
    for name in names:
        setting = BY_NAME[name]
        if isinstance(setting.default, bool):
            wanted = not setting.default
            words = setting.help if wanted else f"do not {setting.help}"
            parser.add_argument(setting.option, dest=name, action="store_const", const=wanted, help=words)
        else:
            parser.add_argument(setting.option, dest=name, metavar=setting.metavar, help=setting.help)


def accept_ago(parser: argparse.ArgumentParser) -> None:
    """Take `-3h` after an option for its value, not for an option: argparse knows but one way to say so."""
    parser._negative_number_matcher = re.compile(r"-\d[\d.smhdw]*")  # noqa: SLF001


def resolved_settings(args: argparse.Namespace | None) -> dict[str, Resolved]:
    """All settings, from the command line, the environment and the user's config.toml."""
    path = paths.config_file()
    try:
        text: str | None = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        text = None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    given = {name: getattr(args, name, None) for name in BY_NAME} if args is not None else {}
    return resolve(given, os.environ, text, str(path))


def alert_rules(settings: Mapping[str, Resolved]) -> tuple[Rule, ...]:
    """The alert rules with the user's thresholds: of the file that `rules` names, else of rules.toml beside config.toml
    where there is one. Raises `InputError` for a file that is named and missing, or that cannot be meant."""
    from specdash.insight.rules.catalogue import shipped, with_user_limits

    named = settings["rules"].value
    path = Path(named) if named is not None else paths.rules_file()
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError) as error:
        if named is None:
            return shipped()
        raise InputError(f"rules {named} ({settings['rules'].origin}): {error.strerror}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    return with_user_limits(shipped(), text, str(path))


def bare_target(settings: Mapping[str, Resolved]) -> Target:
    """The server at the address that the settings name, with nothing but what they say of it."""
    from specdash.collect.api_key import resolve_api_key
    from specdash.core.target import Target
    from specdash.llama.address import normalise_url

    log = settings["log"].value
    if log is not None and Path(log).is_dir():
        raise UsageError(f"log {log} ({settings['log'].origin}) is a directory; name the server's log file")
    key = resolve_api_key(settings["api_key_env"].value, settings["api_key_file"].value, os.environ)
    url, origin = settings["url"].value or "", settings["url"].origin
    proxy, proxy_key = settings["proxy_url"], settings["proxy_key_env"].value
    proxy_log = settings["proxy_log"]
    if proxy_log.value is not None and Path(proxy_log.value).is_dir():
        raise UsageError(f"proxy_log {proxy_log.value} ({proxy_log.origin}) is a directory; name a file in it")
    return Target(
        normalise_url(url),
        api_key=key,
        log=log,
        model=settings["model"].value,
        origin=origin,
        proxy_url=normalise_url(proxy.value) if proxy.value is not None else None,
        proxy_key=resolve_api_key(proxy_key, None, os.environ, "--proxy-key-env"),
        proxy_log=proxy_log.value,
        proxy_origin=proxy.origin if proxy.value is not None else "",
    )


def find_targets(settings: Mapping[str, Resolved]) -> list[Target]:
    """The servers that the settings name or, without an address, those found on this machine, best first.

    Each comes with the proxy in front of it: the one that the settings name, else the one that left a run record.
    """
    from specdash.collect import discover

    if settings["url"].value is not None:
        named = bare_target(settings)
        return [_with(discover.target_for_url(named.url, os.environ, origin=named.origin), named)]
    anywhere = bare_target({**settings, "url": Resolved("http://127.0.0.1", "default")})
    return [_with(target, anywhere) for target in discover.discover(os.environ)]


def one_target(settings: Mapping[str, Resolved]) -> Target:
    """The one server to look at; raises `UnreachableError` when nothing is named and nothing is found."""
    targets = find_targets(settings)
    if not targets:
        raise UnreachableError(
            "no llama-server found on this machine; name one with --url http://HOST:PORT, or try `specdash demo`"
        )
    return targets[0]


def _with(found: Target, named: Target) -> Target:
    """What was found, overruled by what the user named, with the proxy found where none is named."""
    from dataclasses import replace

    from specdash.collect.proxy_discover import with_proxy

    changes: dict[str, Any] = {
        name: getattr(named, name)
        for name in ("log", "api_key", "model", "proxy_url", "proxy_key", "proxy_log", "proxy_origin")
    }
    return with_proxy(replace(found, **{name: value for name, value in changes.items() if value}), os.environ)


def within(option: str, value: Any, default: Any, least: float, most: float) -> Any:
    """A number that was given, else the default. Raises `UsageError` for one out of range, which NaN always is."""
    if value is None:
        return default
    if not least <= value <= most:
        raise UsageError(f"{option} {_plain(value)}: wants {_plain(least)} to {_plain(most)}")
    return value


def _plain(number: float) -> str:
    """A whole number with all its digits, which `:g` does not give from a million on."""
    return str(number) if isinstance(number, int) else f"{number:g}"

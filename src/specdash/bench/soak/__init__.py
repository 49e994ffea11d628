"""Hours of turns through the proxy, and what grows meanwhile."""

"""The services that specdash ships, under systemd or its own supervisor."""

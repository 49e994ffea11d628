"""Backend and proxy as user services of systemd."""

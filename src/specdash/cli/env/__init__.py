"""`specdash env`: the env files, their changes and versions."""

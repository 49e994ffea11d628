"""Rules, described in machine.toml."""

"""Rules, described in speculation.toml."""

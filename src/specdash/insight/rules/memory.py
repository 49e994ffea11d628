"""Rules, described in memory.toml."""

"""Rules, described in answers.toml."""

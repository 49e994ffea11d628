"""Changing settings: preflight, profile, apply, applies, rollback."""

"""The record: `specdash record`, `history` and `replay`."""

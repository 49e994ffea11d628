"""Decode without speculation, measured and kept, so that what speculation gains can be told."""

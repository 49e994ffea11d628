"""Configurations against each other, boot by boot: A/B, sweep, matrix."""

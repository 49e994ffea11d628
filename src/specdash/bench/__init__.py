"""Measured comparisons and trials of a running system, seen from outside."""

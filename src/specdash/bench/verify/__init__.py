"""Outputs with and without speculation, compared token by token."""

"""Panels of the tune and tuner screens."""

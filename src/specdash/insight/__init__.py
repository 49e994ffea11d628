"""Derived values: rates, acceptance, liveness, storms. Pure functions and small state machines."""

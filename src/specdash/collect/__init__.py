"""Pollers and tailers: the only layer that reads the outside world."""

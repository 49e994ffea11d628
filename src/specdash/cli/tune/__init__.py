"""`specdash tune`."""

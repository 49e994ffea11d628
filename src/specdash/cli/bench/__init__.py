"""`specdash bench` and its actions."""

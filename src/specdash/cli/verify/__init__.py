"""`specdash verify`."""

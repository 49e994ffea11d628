"""`specdash services`."""

"""Commands about several servers: which there are, and all at once."""

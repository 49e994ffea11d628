"""Commands about several servers: which there are, all at once, and those of other machines."""

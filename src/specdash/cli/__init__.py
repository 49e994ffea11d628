"""One module per command; each parses, calls one thing below, prints."""

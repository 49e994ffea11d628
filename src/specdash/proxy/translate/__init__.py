"""Messages requests into chat completions, block by block."""

"""What speculation gains against no speculation, with its interval."""

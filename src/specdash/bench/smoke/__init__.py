"""A few completions that show whether speculation works, and whether cached prompts give empty answers."""

"""An incident as one file: what was seen around it, without secrets and without a word of what others wrote."""

"""Service management and the apply transaction."""

"""The apply transaction: plan, journal, forward, undo, recover."""

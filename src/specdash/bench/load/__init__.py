"""Asking a server and timing what comes back: prompts, schedules, clients, and the figures of what was measured."""

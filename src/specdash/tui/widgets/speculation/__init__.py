"""Panels about speculation."""

"""Panels about the machine and the proxy."""

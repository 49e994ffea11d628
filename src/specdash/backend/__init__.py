"""Turns a backend env into a running llama.cpp server."""

"""The GPU kit: what a GPU is needed to know about specdash, checked in one command (README.md beside this)."""

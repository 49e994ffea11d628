"""The record: a bounded SQLite database of what was seen, and its replay."""

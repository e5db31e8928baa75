"""Passes: pure functions that add to a program what the builders leave out, one per file."""

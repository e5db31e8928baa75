"""Measured comparisons: what `disagmoe bench` does."""

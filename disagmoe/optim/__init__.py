"""Optimizer, learning-rate schedules and the global gradient norm."""

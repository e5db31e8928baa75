"""Schedules as data: instructions, programs, builders, passes and the verifier (plain Python)."""

"""Executes programs on one worker; knows nothing of Ray."""

"""Builders: each file decides the order of compute of one schedule, and nothing else."""

"""Measures a machine and its links, for the cost model: what `disagmoe calibrate` does."""

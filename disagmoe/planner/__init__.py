"""Finds how to divide a model over given machines: enumerates, prunes by memory, simulates."""

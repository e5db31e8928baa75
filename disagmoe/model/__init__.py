"""The network in torch: one process, no transport."""

"""Proof by running that the layout never changes the result (`disagmoe invariance`)."""

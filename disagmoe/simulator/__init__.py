"""Times compiled programs without running them: deterministic events, and what they add up to."""

"""Ray actors: thin shells around the runtime, and the messages that cross processes."""

if __name__ != "disagmoe.actors":
    raise ImportError(f"import this package as 'disagmoe.actors', not {__name__!r}")

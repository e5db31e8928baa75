"""The stacks of all threads of this process, as text."""

import sys
import threading
import traceback


def all_stacks() -> str:
    """Return them, each under the name of its thread; threads unknown to Python by their number."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    ]
    return "\n".join(parts)

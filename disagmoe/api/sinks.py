"""All that hears of events beside the run directory: metrics, and TensorBoard if asked for."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from disagmoe.actors.events import Event
from disagmoe.api.exporting import run_exporter
from disagmoe.api.tensorboard import TensorBoardLog
from disagmoe.config.run import RunConfig

Watched = Callable[[Iterable[Event]], Iterator[Event]]
"""Yields the same events, each after it was heard."""


@contextmanager
def sinks(config: RunConfig, run_dir: Path, host: str) -> Iterator[Watched]:
    """Open what `config` asks for; metrics are served at `host` during the block."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(run_exporter(config, run_dir, host)).observe]
        if config.metrics.tensorboard:
            board = TensorBoardLog(run_dir)
            stack.callback(board.close)
            listeners.append(board.observe)

        def watched(events: Iterable[Event]) -> Iterator[Event]:
            for event in events:
                for listener in listeners:
                    listener(event)
                yield event

        yield watched

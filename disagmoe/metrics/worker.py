"""What one worker tells of itself."""

from collections.abc import Callable, Collection, Mapping

from disagmoe.metrics import catalogue
from disagmoe.metrics.board import Board
from disagmoe.schedule.accounting import Kind
from disagmoe.schedule.layout import Side, Worker

_ROLES = {Side.ATTENTION: "attention", Side.EXPERT: "expert", Side.COLOCATED: "colocated"}


class WorkerMetrics:
    """The metrics of a worker that is connected: all series are there from the beginning."""

    def __init__(
        self,
        worker: Worker,
        channels: Collection[str],
        last_progress_s: Callable[[], float],
        now: Callable[[], float],
    ) -> None:
        """`channels` are those on which it may send; `last_progress_s` says since the epoch of the
        system clock when it last began something, and is called by the threads of scrapes; `now` is
        a clock that never goes back, in seconds."""
        self.board = Board(
            {
                "role": _ROLES[worker.group.side],
                "group": str(worker.group.index),
                "rank": str(worker.rank),
                "ring": str(worker.ring),
            }
        )
        self._now = now
        self._since_s = now()
        self._count({}, {}, {}, steps=0)
        for channel in channels:
            self.board.add(catalogue.CHANNEL_BYTES, 0, channel=channel)
            self.board.add(catalogue.CHANNEL_MESSAGES, 0, channel=channel)
        self.board.set(catalogue.PEAK_MEMORY, 0)
        self.board.ask(catalogue.LAST_PROGRESS, last_progress_s)

    def step(
        self,
        seconds: Mapping[str, float],
        channel_bytes: Mapping[str, int],
        channel_messages: Mapping[str, int],
        peak_memory_bytes: int,
    ) -> None:
        """Count a step: what it reports of itself."""
        with self.board.changes():
            self._count(seconds, channel_bytes, channel_messages, steps=1)
            self.board.set(catalogue.PEAK_MEMORY, peak_memory_bytes)

    def paused(self, seconds: Mapping[str, float]) -> None:
        """Count time that belongs to no step, by kind."""
        with self.board.changes():
            self._count(seconds, {}, {}, steps=0)

    def _count(
        self,
        seconds: Mapping[str, float],
        channel_bytes: Mapping[str, int],
        channel_messages: Mapping[str, int],
        steps: int,
    ) -> None:
        board, now_s = self.board, self._now()
        for kind in Kind:
            board.add(catalogue.SECONDS, seconds.get(kind, 0.0), kind=str(kind))
        board.add(catalogue.WALL_SECONDS, now_s - self._since_s)
        self._since_s = now_s
        board.add(catalogue.WORKER_STEPS, steps)
        for channel, count in channel_bytes.items():
            board.add(catalogue.CHANNEL_BYTES, count, channel=channel)
        for channel, count in channel_messages.items():
            board.add(catalogue.CHANNEL_MESSAGES, count, channel=channel)

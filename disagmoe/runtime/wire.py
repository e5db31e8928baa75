"""How a payload lies in the bytes of one message, known to both ends from its row counts.

One message goes to each peer: all parts of a payload in one buffer, so that a grouped transfer is
one launch. Letters: R rows, P pairs of a row and an expert, D hidden, T tokens.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

_ALIGN = 16  # bytes; every section can then be viewed as any type, and read in vectors on a GPU


@dataclass(frozen=True, slots=True)
class Section:
    """One tensor inside a message."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor alone."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Message:
    """Sections of one message, in order."""

    sections: tuple[Section, ...]

    @property
    def nbytes(self) -> int:
        """Length of the message; 0 when all sections are empty, and nothing is sent then."""
        ends = [start + section.nbytes for start, section in self._placed()]
        return ends[-1] if any(section.nbytes for section in self.sections) else 0

    def views(self, buffer: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the sections as views of `buffer`, uint8 of `nbytes` elements."""
        views = {}
        for start, section in self._placed():
            part = buffer[start : start + section.nbytes]
            views[section.name] = part.view(section.dtype).view(section.shape)
        return views

    def _placed(self) -> Iterator[tuple[int, Section]]:
        start = 0
        for section in self.sections:
            yield start, section
            start += -(-section.nbytes // _ALIGN) * _ALIGN

    def allocate(self, device: torch.device) -> torch.Tensor:
        """Return an uninitialised buffer for the message."""
        return torch.empty(self.nbytes, dtype=torch.uint8, device=device)


@dataclass(frozen=True, slots=True)
class Wire:
    """Types and widths of all messages of a run."""

    hidden: int
    dtype: torch.dtype
    """Activations and their gradients."""
    exact: torch.dtype
    """Gate weights and their gradients."""
    with_tokens: bool
    """Whether outputs arrive at another group than the one that sent the rows, so that the token of
    each row must travel along."""
    with_home: bool
    """Whether one expert worker per token is its home, which adds the residual or what shared
    experts give to its output."""

    def rows(self, rows: int, pairs: int) -> Message:
        """Attention to experts: rows, and per pair its row, local expert and gate weight."""
        tokens = (Section("token_R", (rows,), torch.int32),) if self.with_tokens else ()
        home = (Section("home_R", (rows,), torch.uint8),) if self.with_home else ()
        return Message(
            (
                Section("rows_RD", (rows, self.hidden), self.dtype),
                Section("gate_P", (pairs,), self.exact),
                Section("row_P", (pairs,), torch.int32),
                Section("expert_P", (pairs,), torch.int32),
                *tokens,
                *home,
            )
        )

    def outputs(self, rows: int) -> Message:
        """Experts to the next attention group: one summed output per row."""
        tokens = (Section("token_R", (rows,), torch.int32),) if self.with_tokens else ()
        return Message((Section("rows_RD", (rows, self.hidden), self.dtype), *tokens))

    def doutputs(self, rows: int) -> Message:
        """Gradients of the outputs."""
        return Message((Section("rows_RD", (rows, self.hidden), self.dtype),))

    def drows(self, rows: int, pairs: int) -> Message:
        """Gradients of the rows and of the gate weights."""
        return Message(
            (
                Section("rows_RD", (rows, self.hidden), self.dtype),
                Section("gate_P", (pairs,), self.exact),
            )
        )

    def residual(self, tokens: int) -> Message:
        """The residual stream of one worker's tokens, or its gradient."""
        return Message((Section("x_TD", (tokens, self.hidden), self.dtype),))


HEADER_LENGTH = 4


def header(layer: int, mb: int, rows: int, pairs: int) -> torch.Tensor:
    """The counts message that goes ahead of a payload: int64 [layer, micro-batch, rows, pairs]."""
    return torch.tensor([layer, mb, rows, pairs], dtype=torch.int64)


@dataclass(slots=True)
class Outgoing:
    """A payload to be sent: one buffer and its counts per peer."""

    buffers: dict[str, torch.Tensor]
    counts: dict[str, tuple[int, int]]
    """Rows and pairs."""

    @property
    def nbytes(self) -> int:
        """Bytes of all messages together."""
        return sum(len(buffer) for buffer in self.buffers.values())


@dataclass(slots=True)
class Incoming:
    """A payload that is arriving or has arrived: one buffer per peer, and its sections."""

    buffers: dict[str, torch.Tensor]
    views: dict[str, dict[str, torch.Tensor]]
    reused: bool = False
    """Whether the buffers are received into again once the payload is freed."""

    @classmethod
    def allocate(cls, messages: Iterable[tuple[str, Message]], device: torch.device) -> "Incoming":
        """Make room for one message from each peer."""
        buffers, views = {}, {}
        for peer, message in messages:
            buffers[peer] = message.allocate(device)
            views[peer] = message.views(buffers[peer])
        return cls(buffers, views)

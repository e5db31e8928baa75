"""Faults that the inproc transport can be told to make: what goes wrong at which post."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fail:
    """The post raises TransportError on its worker; peers are left waiting."""

    reason: str


@dataclass(frozen=True, slots=True)
class Delay:
    """The worker is slow: it enters the post `delay_s` later."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Drop:
    """The post's messages are lost on their way: neither end ever sees them complete."""


@dataclass(frozen=True, slots=True)
class Kill:
    """The worker dies as it enters the post; all its peers are told at once."""

    reason: str


Fault = Fail | Delay | Drop | Kill

"""Inputs and effects that all kinds of groups have in common.

A group is an automaton without a clock, an event loop or a disk: time is passed in; answers, and records to write, come
out as effects.
"""

import math
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

NEVER: Final = math.inf  # a deadline that does not exist
Waiter: TypeAlias = object  # the identity of a waiting request


class Instant(NamedTuple):
    """The current time: seconds on the event loop's clock for deadlines, ms since the epoch for records."""

    loop_s: float
    wall_ms: int

    def after_ms(self, delay_ms: float) -> float:
        """Return the time on the event loop's clock after a delay."""
        return self.loop_s + delay_ms / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A joining client, described by its connection.

    `holder`: the holder whose share is charged for the client's memory (`Holdings`). `new_id`: a unique suffix for a
    new member's id.
    """

    client_id: str
    host: str
    holder: str
    new_id: str


class Answer(NamedTuple):
    """Effect: send a response to a waiting client."""

    waiter: Waiter
    response: Any

"""Changes of state that become final when they are stored, and are undone if that fails."""

from typing import NamedTuple

from warmlog.broker.share.partitions.spans import RecordState
from warmlog.protocol.kafka.messages.share.state import StateBatch

REJECTED = "Offset rejected by client."  # Kafka's texts for a header of dead letters
EXCEEDED = "Offset delivery count exceeded the threshold."


class DeadLetter(NamedTuple):
    """Offsets, both inclusive, whose records go to the dead-letter topic; `cause`: None after a restart."""

    first: int
    last: int
    deliveries: int
    cause: str | None


class Transition:
    """The offsets that one request changes, in the form in which they are stored.

    Spans that it changes refer to it until it is completed. `dead_letters`: to be written once it is stored.
    """

    __slots__ = ("changes", "dead_letters", "locked_s")

    def __init__(self) -> None:
        self.changes: list[StateBatch] = []
        self.dead_letters: list[DeadLetter] = []
        self.locked_s = 0.0  # the sum of the times for which the records were held

    def add(self, first: int, last: int, state: RecordState, deliveries: int, cause: str = EXCEEDED) -> None:
        """Add offsets that get a state; they are joined with the latest ones if adjacent.

        `cause`: why their records go to the dead-letter topic, if the state is ARCHIVING.
        """
        extend(self.changes, StateBatch(first, last, state, deliveries))
        if state is RecordState.ARCHIVING:
            self.dead_letters.append(DeadLetter(first, last, deliveries, cause))

    def __bool__(self) -> bool:
        return bool(self.changes)


def extend(changes: list[StateBatch], change: StateBatch) -> None:
    """Append a change to a list, or extend the last one if it is of the same state and follows it."""
    if changes:
        latest = changes[-1]
        if (
            latest.last_offset + 1 == change.first_offset
            and latest.state == change.state
            and latest.deliveries == change.deliveries
        ):
            changes[-1] = latest._replace(last_offset=change.last_offset)
            return
    changes.append(change)

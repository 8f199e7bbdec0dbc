"""What a coordinator is to the runtime: a shard of state for each term of a log partition, and rules around it.

    begin(term) ──► replay… ──► loaded ──► serves requests ──► close ──► free
                       │           │                             ▲
                       └───────────┴──── the term ends ──────────┘

An empty partition is not replayed, its shard serves at once. A partition that cannot be read is closed and freed, too.

Functions that return an iterator do their work in steps of about a millisecond: other tasks run at each `yield`. The
shard of a term that is over is never used again, except by `close` and `free`.
"""

from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

from warmlog.broker.coordinator.term import Term

R_contra = TypeVar("R_contra", contravariant=True)


class Shard(Protocol[R_contra]):
    """The state of one log partition. Records are decoded by `CoordinatorTopic.decode` before they are replayed."""

    @property
    def term(self) -> Term:
        """The term that the state belongs to."""

    def replay(self, name: str, row: R_contra, offset: int) -> None:
        """Take over the latest record of a key; keys come in no order.

        Of a topic with `decode_tombstone`, take over each record, in the order of the log.
        """

    def replay_pending(self, producer_id: int, name: str, row: R_contra, offset: int) -> None:
        """Take over a record of a transaction without a marker so far, after all records that count."""

    def free(self) -> Iterator[None]:
        """Drop the state in steps: freeing a million objects at once would hold the event loop."""


S = TypeVar("S", bound=Shard[Any])


class Coordinator(Protocol[S]):
    """Calls come from the event loop."""

    def begin(self, term: Term) -> S:
        """Return a shard without state."""

    def loaded(self, shard: S) -> Iterator[None]:
        """Continue what the replayed records have left unfinished. The shard is served afterwards."""

    def close(self, shard: S) -> Iterator[None]:
        """Answer the waiting requests of a shard with NOT_COORDINATOR. The first step must not take long."""

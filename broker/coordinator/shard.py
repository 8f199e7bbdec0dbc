"""The runtime's interface to a coordinator: a shard of state for each term of a log partition, and its rules.

    begin(term) ──► replay… ──► loaded ──► serves requests ──► close ──► free
                       │           │                             ▲
                       └───────────┴──── the term ends ──────────┘

An empty partition is not replayed; its shard serves immediately. The shard of an unreadable partition is closed and
freed, too.

Functions that return an iterator work in steps of about a millisecond: other tasks run at each `yield`. After its term,
a shard is used only by `close` and `free`.
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
        """Apply the latest record of a key; keys come in no order.

        For a topic with `decode_tombstone`, apply every record, in the order of the log.
        """

    def replay_pending(self, producer_id: int, name: str, row: R_contra, offset: int) -> None:
        """Apply a record of a transaction that has no marker yet; called after all other records."""

    def free(self) -> Iterator[None]:
        """Drop the state in steps: freeing a million objects in one step would hold the event loop."""


S = TypeVar("S", bound=Shard[Any])


class Coordinator(Protocol[S]):
    """Makes shards and serves their terms. All methods are called on the event loop."""

    def begin(self, term: Term) -> S:
        """Return a shard without state."""

    def loaded(self, shard: S) -> Iterator[None]:
        """Continue operations that the replayed records left unfinished. The shard is served afterwards."""

    def close(self, shard: S) -> Iterator[None]:
        """Answer the waiting requests of a shard with NOT_COORDINATOR. The first step must be short."""

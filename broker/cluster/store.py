"""The interface of the store of metadata: etcd, or SQLite in a process (`local`), also for a standalone broker.

Keys are texts relative to the cluster's prefix, values are bytes. Every committed transaction has a revision; revisions
increase, and each key remembers the one that wrote it last (`mod_revision`). A transaction compares such revisions and
writes all of its operations, or none.

Source: etcd's API v3 (KV, Watch and Lease of etcdserverpb/rpc.proto).
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol, TypeAlias

from msgspec import Struct

from warmlog.broker.metadata.errors import CannotJoinError

ABSENT = 0  # the revision of a key that does not exist
NO_LEASE = 0
ROUNDING_S = 1.0  # etcd reports the time of a lease in whole seconds
MAX_OPERATIONS = 128  # per transaction, for comparisons and for writes (etcd's --max-txn-ops)


class StoreError(Exception):
    """A call of the store failed. `str()` is one line that says why."""


class StoreUnavailableError(StoreError):
    """The store did not answer. A transaction may nevertheless have been committed."""


class InvalidTransactionError(StoreError):
    """A transaction has too many operations, or writes a key twice."""


class StoreRefusedError(StoreUnavailableError, CannotJoinError):
    """A certificate, user, password or permission is rejected, by the store or by this side.

    Attempts fail until an administrator has corrected it.
    """


class StoreMismatchError(StoreError, CannotJoinError):
    """The store is not the one used so far: it is another cluster's, or was restored from an older state."""


class CompactedError(StoreError):
    """The changes after a revision are no longer available: read everything again."""


class LeaseExpiredError(StoreError):
    """A lease has expired or was revoked; the keys that were attached to it are deleted."""


class KeyValue(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """A key's value, the revisions that created it and wrote it last, and its lease."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int = NO_LEASE


class Range(NamedTuple):
    """All keys with a prefix, in order, as of a revision."""

    revision: int
    items: tuple[KeyValue, ...]


class Compare(NamedTuple):
    """The condition that a key was last written at this revision; ABSENT: that it does not exist."""

    key: str
    mod_revision: int


class Put(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Write a value, which is deleted when the lease ends."""

    key: str
    value: bytes
    lease: int = NO_LEASE


class Delete(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Delete a key, if it exists."""

    key: str


Operation: TypeAlias = Put | Delete


class StoreTransaction(NamedTuple):
    """Write all operations if all comparisons hold. No key is written twice."""

    compares: tuple[Compare, ...]
    operations: tuple[Operation, ...]


class Outcome(NamedTuple):
    """Whether a transaction was committed, and the store's revision afterwards: its own if it was."""

    succeeded: bool
    revision: int


class Deleted(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """A key was deleted."""

    key: str


Event: TypeAlias = KeyValue | Deleted


class Changes(NamedTuple):
    """Changes of whole transactions, in order, up to a revision. Without events, it only reports the revision."""

    revision: int
    events: tuple[Event, ...]


class KnownStore(NamedTuple):
    """The identity of a broker's store, and the highest revision seen; kept across restarts to detect another store."""

    cluster_id: int  # etcd's
    identity: str
    revision: int


class Store(Protocol):
    """A cluster's keys in a store. Calls may run concurrently; cancelling one leaves its outcome unknown.

    Every call raises StoreUnavailableError, and StoreMismatchError.
    """

    async def range(self, prefix: str = "") -> Range:
        """Return all keys that begin with a prefix, including every transaction answered before the call."""

    async def commit(self, transaction: StoreTransaction) -> Outcome:
        """Commit a transaction if its comparisons hold. Raises LeaseExpiredError if a lease of it has ended."""

    def watch(self, after_revision: int) -> AbstractAsyncContextManager[AsyncIterator[Changes]]:
        """Iterate over all changes after a revision, in order. The iterator raises CompactedError."""

    async def grant(self, ttl_s: float) -> int:
        """Create a lease that ends after this time unless it is kept alive. etcd rounds up to seconds."""

    async def keep_alive(self, lease: int) -> float:
        """Renew a lease, and return how many seconds it lasts. Raises LeaseExpiredError."""

    async def unrenewed_s(self, lease: int) -> float:
        """Return the time since a lease was renewed, in seconds; up to ROUNDING_S too short.

        Raises LeaseExpiredError.
        """

    async def revoke(self, lease: int) -> None:
        """End a lease, and delete its keys. A lease that has ended already is not an error."""

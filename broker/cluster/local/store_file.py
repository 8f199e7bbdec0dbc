"""The keys of a store at their latest revision, in a SQLite file.

keys      every key, with its value, the revisions that created it and wrote it last, and its lease (0: none)
numbers   store_id, drawn when the file is created; revision
"""

import sqlite3
from collections.abc import Container, Mapping, Sequence
from random import SystemRandom
from typing import NamedTuple, TypeAlias

from msgspec.structs import astuple

from warmlog.broker.cluster.store import (
    ABSENT,
    NO_LEASE,
    Changes,
    Deleted,
    Event,
    KeyValue,
    LeaseExpiredError,
    Operation,
    Outcome,
    Put,
    StoreTransaction,
)
from warmlog.broker.metadata.database import Database

_ALL_KEYS = "SELECT key, value, create_revision, mod_revision, lease FROM keys ORDER BY key"
_KEYS = "SELECT key, value, create_revision, mod_revision, lease FROM keys WHERE key >= ? AND key < ? ORDER BY key"
_FIND = "SELECT key, create_revision, mod_revision FROM keys WHERE key IN ({})"
_PUT = "INSERT OR REPLACE INTO keys VALUES (?, ?, ?, ?, ?)"
_DELETE = "DELETE FROM keys WHERE key = ?"
_LEASED = "SELECT key FROM keys WHERE lease = ? ORDER BY key"
_SET_NUMBER = "UPDATE numbers SET number = ? WHERE name = ?"

Result: TypeAlias = Outcome | LeaseExpiredError


class Committed(NamedTuple):
    """The result of each transaction, and the changes made by all of them."""

    results: Sequence[Result]
    changes: Sequence[Changes]


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables of an empty store."""
    connection.execute(
        """
        CREATE TABLE keys (
            key TEXT PRIMARY KEY, value BLOB NOT NULL, create_revision INTEGER NOT NULL,
            mod_revision INTEGER NOT NULL, lease INTEGER NOT NULL
        ) STRICT, WITHOUT ROWID
        """
    )
    connection.execute("CREATE INDEX leased ON keys (lease) WHERE lease != 0")
    connection.execute("CREATE TABLE numbers (name TEXT PRIMARY KEY, number INTEGER NOT NULL) STRICT")
    connection.execute("INSERT INTO numbers VALUES ('store_id', ?), ('revision', 1)", (SystemRandom().getrandbits(63),))


class StoreFile:
    """The keys in an open file. Its methods block, and raise MetadataError."""

    def __init__(self, database: Database) -> None:
        """Delete keys with a lease: leases ended with the process that used the file before."""
        self._database = database
        numbers = dict(database.read("SELECT name, number FROM numbers"))
        self.store_id: int = numbers["store_id"]
        self.revision: int = numbers["revision"]
        ended = database.read("SELECT DISTINCT lease FROM keys WHERE lease != ?", (NO_LEASE,))
        self.end_leases([lease for (lease,) in ended])

    def items(self, prefix: str = "") -> list[KeyValue]:
        """Return all keys that begin with a prefix, in order."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else ""
        rows = self._database.read(_KEYS, (prefix, end)) if prefix else self._database.read(_ALL_KEYS)
        return [KeyValue(*row) for row in rows]

    def commit(self, transactions: Sequence[StoreTransaction], leases: Container[int]) -> Committed:
        """Commit transactions in order, with one write to the disk. `leases`: ids of the valid ones."""

        def work(connection: sqlite3.Connection) -> Committed:
            results, changes = list[Result](), list[Changes]()
            revision = self.revision
            for transaction in transactions:
                stored = _find(connection, transaction)
                if any(stored.get(key, _NEW).written != expected for key, expected in transaction.compares):
                    results.append(Outcome(succeeded=False, revision=revision))
                elif (ended := _ended_lease(transaction, leases)) is not None:
                    results.append(LeaseExpiredError(f"lease {ended} has expired"))
                else:
                    events = _run(connection, transaction.operations, stored, revision + 1)
                    if events:
                        revision += 1
                        changes.append(Changes(revision, tuple(events)))
                    results.append(Outcome(succeeded=True, revision=revision))
            if changes:
                connection.execute(_SET_NUMBER, (revision, "revision"))
            return Committed(results, changes)

        return self._advanced(self._database.write(work))

    def end_leases(self, leases: Sequence[int]) -> Committed:
        """Delete the keys of leases; return one change for each lease that had keys."""
        if not leases:
            return Committed((), ())

        def work(connection: sqlite3.Connection) -> Committed:
            changes = list[Changes]()
            for lease in leases:
                keys = [Deleted(key) for (key,) in connection.execute(_LEASED, (lease,)).fetchall()]
                if keys:
                    connection.executemany(_DELETE, [(each.key,) for each in keys])
                    changes.append(Changes(self.revision + len(changes) + 1, tuple(keys)))
            if changes:
                connection.execute(_SET_NUMBER, (changes[-1].revision, "revision"))
            return Committed((), changes)

        return self._advanced(self._database.write(work))

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def _advanced(self, committed: Committed) -> Committed:
        if committed.changes:
            self.revision = committed.changes[-1].revision
        return committed


class _Revisions(NamedTuple):
    """The revisions that created a key and wrote it last."""

    created: int
    written: int


_NEW = _Revisions(ABSENT, ABSENT)


def _find(connection: sqlite3.Connection, transaction: StoreTransaction) -> dict[str, _Revisions]:
    """Return the revisions of those keys of a transaction that exist."""
    keys = list({each.key for each in (*transaction.compares, *transaction.operations)})
    rows = connection.execute(_FIND.format(",".join("?" * len(keys))), keys)
    return {key: _Revisions(created, written) for key, created, written in rows}


def _ended_lease(transaction: StoreTransaction, leases: Container[int]) -> int | None:
    """Return the ended lease that a transaction uses, if any."""
    used = [each.lease for each in transaction.operations if isinstance(each, Put) and each.lease != NO_LEASE]
    return next((lease for lease in used if lease not in leases), None)


def _run(
    connection: sqlite3.Connection, operations: Sequence[Operation], revisions: Mapping[str, _Revisions], revision: int
) -> list[Event]:
    """Write the operations of a transaction, given the existing keys; return the changes."""
    events: list[Event] = []
    puts: list[KeyValue] = []
    for each in operations:
        if isinstance(each, Put):
            created = revisions[each.key].created if each.key in revisions else revision
            puts.append(item := KeyValue(each.key, each.value, created, revision, each.lease))
            events.append(item)
        elif each.key in revisions:
            events.append(Deleted(each.key))
    connection.executemany(_PUT, map(astuple, puts))
    connection.executemany(_DELETE, [(each.key,) for each in events if isinstance(each, Deleted)])
    return events

"""Reduce a partition of a coordinator's topic to the latest value of each key, transactions included.

Invariants:
1. A record replaces earlier ones with its key; a tombstone removes the key.
2. A transaction's records apply when its commit marker is read, except to keys that later records have changed.

Source: org.apache.kafka.coordinator.group.OffsetMetadataManager.replay, replayEndTransactionMarker;
kafka.coordinator.transaction.TransactionStateManager.loadTransactionMetadata.
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple

from warmlog.protocol.records.layout import BatchHeader
from warmlog.protocol.records.reader import Record

_MARKER = struct.Struct(">hh")  # a control record's key: version, type
_COMMIT = 1


class Latest(NamedTuple):
    """A key's latest value, and the offset of its record."""

    offset: int
    value: bytes


class Replay:
    """Apply batches in order; `latest` is the result."""

    def __init__(self, end: int = 0) -> None:
        """Prepare to apply batches up to `end`, the offset up to which the partition is read."""
        self.end = end
        self.latest: dict[bytes, Latest] = {}
        self._pending: dict[int, dict[bytes, Latest]] = {}  # open transactions by producer id

    @property
    def open_transactions(self) -> dict[int, dict[bytes, Latest]]:
        """The latest records of transactions that have no marker yet, by producer id; they are not in `latest`."""
        return self._pending

    def take(self, header: BatchHeader, records: Iterable[Record]) -> None:
        """Apply records of one batch. A large batch may be passed in several calls."""
        if header.is_control:
            for record in records:
                self._end_transaction(header.producer_id, record)
        elif header.is_transactional:
            pending = self._pending.setdefault(header.producer_id, {})
            for record in records:
                if record.key is not None and record.value is not None:
                    pending[record.key] = Latest(record.offset, record.value)
        else:
            for record in records:
                self._take(record)

    def _take(self, record: Record) -> None:
        key, value = record.key, record.value
        if key is None:
            return  # coordinators write no record without a key
        if value is not None:
            self.latest[key] = Latest(record.offset, value)
            return
        self.latest.pop(key, None)
        for pending in self._pending.values():
            pending.pop(key, None)

    def _end_transaction(self, producer_id: int, marker: Record) -> None:
        pending = self._pending.pop(producer_id, {})
        key = marker.key
        if key is None or len(key) < _MARKER.size or _MARKER.unpack_from(key)[1] != _COMMIT:
            return
        for name, entry in pending.items():
            known = self.latest.get(name)
            if known is None or known.offset < entry.offset:
                self.latest[name] = entry

"""What a partition of `__consumer_offsets` comes to, batch by batch: the latest value of each key.

Owns: the rules by which records replace one another, transactions among them. Must not know: what keys and values mean,
or where the batches come from.

Invariants:
1. A later record of a key takes the place of an earlier one; one without value takes the key away.
2. Records of a transaction count when its commit marker is read, and not against a record that came after them.

Source: org.apache.kafka.coordinator.group.OffsetMetadataManager.replay, replayEndTransactionMarker.
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple

from protocol.records.layout import BatchHeader
from protocol.records.reader import Record

_MARKER = struct.Struct(">hh")  # a control record's key: version, type
_COMMIT = 1


class Latest(NamedTuple):
    """A key's value, and the offset of the record that says so."""

    offset: int
    value: bytes


class Replay:
    """Folds batches in order; `latest` is what they come to."""

    def __init__(self) -> None:
        self.latest: dict[bytes, Latest] = {}
        self._pending: dict[int, dict[bytes, Latest]] = {}  # by the producer id of an open transaction

    @property
    def open_transactions(self) -> int:
        """Transactions whose end was not read: their records do not count."""
        return len(self._pending)

    def take(self, header: BatchHeader, records: Iterable[Record]) -> None:
        """Take records of one batch; those of a large one may come in several calls."""
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
            return  # nothing that any coordinator writes
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

"""Control records that end transactions.

    key     int16 version, int16 type: 0 abort, 1 commit; other types are not transaction markers
    value   int16 version, int32 coordinator epoch

Source: org.apache.kafka.common.record.ControlRecordType, EndTransactionMarker.
"""

from collections.abc import Iterable
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.codec import Record
from warmlog.protocol.records.layout import CONTROL_BIT, TRANSACTIONAL_BIT

_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_VERSION = 0


class Outcome(IntEnum):
    """Whether a transaction was aborted or committed."""

    ABORT = 0
    COMMIT = 1


class EndMarker(NamedTuple):
    """A transaction marker; `timestamp` in ms."""

    outcome: Outcome
    coordinator_epoch: int
    timestamp: int


def marker_batch(producer_id: int, producer_epoch: int, marker: EndMarker) -> bytes:
    """Encode a marker as the control batch that ends the open transaction of a producer.

    Source: org.apache.kafka.common.record.MemoryRecords.withEndTransactionMarker.
    """
    key, value = _KEY.pack(_VERSION, marker.outcome), _VALUE.pack(_VERSION, marker.coordinator_epoch)
    return build_batch(
        [(marker.timestamp, key, value, ())],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
    )


def end_marker(records: Iterable[Record]) -> EndMarker | None:
    """Return the transaction marker among the records of a control batch.

    Returns None if compaction has removed it or the batch holds another type of control record.
    """
    for record in records:
        key, value = record.key or b"", record.value or b""
        if len(key) >= _KEY.size and len(value) >= _VALUE.size:
            _, kind = _KEY.unpack_from(key)
            if kind in Outcome.__members__.values():
                return EndMarker(Outcome(kind), _VALUE.unpack_from(value)[1], record.timestamp)
    return None

"""Control records: the markers that end transactions.

Owns their layout. Must not know: transactions, or what a marker does to them.

    key     int16 version, int16 type: 0 abort, 1 commit; all others are of other kinds (elections, snapshots)
    value   int16 version, int32 coordinator epoch

Source: org.apache.kafka.common.record.ControlRecordType, EndTransactionMarker.
"""

from collections.abc import Iterable
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from protocol.records.codec import Record

_KEY = Struct(">hh")
_VALUE = Struct(">hi")


class Outcome(IntEnum):
    """How a transaction ended."""

    ABORT = 0
    COMMIT = 1


class EndMarker(NamedTuple):
    """The end of a transaction; `timestamp` in ms."""

    outcome: Outcome
    coordinator_epoch: int
    timestamp: int


def end_marker(records: Iterable[Record]) -> EndMarker | None:
    """The marker in a control batch with these records; None if there is none.

    Compaction has taken it away with its transaction, or it is of another kind.
    """
    for record in records:
        key, value = record.key or b"", record.value or b""
        if len(key) >= _KEY.size and len(value) >= _VALUE.size:
            _, kind = _KEY.unpack_from(key)
            if kind in Outcome.__members__.values():
                return EndMarker(Outcome(kind), _VALUE.unpack_from(value)[1], record.timestamp)
    return None

"""Who writes: the producer id and epoch that every attempt at the same rows has in common.

Owns: how they are derived. Must not know: who sends what under them.

An attempt that comes after another one writes under the same id and epoch: so it can find what of its rows is stored,
and the broker refuses two at a time, since they would send the same sequences.

1. The same rows have the same identity, whoever sends them, whenever: of a batch job, its write (and the number
   of it) and the frame's partition; of a stream, the query (as its checkpoint names it), the micro-batch and the
   frame's partition.
2. The micro-batch is the epoch: one that went before, and still has somebody at work, is refused by the broker once the
   next one writes, and a partition keeps one state for a task of a query, not one for each micro-batch.
3. The id is none that a broker gives: those stay below 2^62 (`broker.log.producer_state`).
"""

from dataclasses import dataclass
from hashlib import blake2b

FIRST_ID = 1 << 62
EPOCHS = 1 << 15  # an epoch is an int16 that is not negative; the micro-batches after as many take the next id


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Under what the records of a task are sent."""

    producer_id: int
    producer_epoch: int


def batch_identity(write_id: str, task: int, batch: int = 0) -> Identity:
    """Of a task of a batch job. `task`: the frame's partition; `batch`: which one of those that go by this id."""
    return _identity("batch", write_id, batch, task)


def stream_identity(query_id: str, batch_id: int, task: int) -> Identity:
    """Of a task of a micro-batch."""
    return _identity("stream", query_id, batch_id, task)


def _identity(kind: str, name: str, batch: int, task: int) -> Identity:
    turn, epoch = divmod(batch, EPOCHS)
    return Identity(producer_id=_producer_id(kind, name, turn, task), producer_epoch=epoch)


def _producer_id(*parts: str | int) -> int:
    """62 bits of a hash of these: two tasks that meet in one are not to be expected."""
    digest = blake2b(repr(parts).encode(), digest_size=8, person=b"warmlog sink").digest()
    return FIRST_ID | int.from_bytes(digest, "big") % FIRST_ID

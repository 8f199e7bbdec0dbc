"""Decode the latest record of each key of a `__transaction_state` partition."""

from collections.abc import Callable, Iterator

from warmlog.broker.coordinator_log.reading import Damage
from warmlog.broker.coordinator_log.replay import Latest
from warmlog.protocol.kafka.codec.bounds import MalformedError
from warmlog.protocol.kafka.transaction_records import (
    ForeignKey,
    ForeignValue,
    StoredTransaction,
    decode_transaction,
    decode_transaction_key,
)


class ReplayedTransactions:
    """Decodes the latest records of a partition; iterate once, then read the counts."""

    def __init__(self, latest: dict[bytes, Latest], partition: int, partition_of: Callable[[str], int]) -> None:
        """`partition_of`: returns the log partition of a transactional id."""
        self.damage = Damage(_is_readable)
        self.foreign = 0  # records of types and versions that are not known; ignored, as Kafka does
        self.misplaced = 0  # written when the topic had another number of partitions; ignored
        self._latest = latest
        self._partition = partition
        self._partition_of = partition_of

    def __iter__(self) -> Iterator[tuple[str, StoredTransaction]]:
        """Yield each id with its state, unless its record cannot be decoded."""
        while self._latest:  # emptied on the way: freeing all of them at once would hold the event loop
            data, record = self._latest.popitem()
            try:
                key = decode_transaction_key(data)
                value = decode_transaction(record.value)
            except MalformedError as error:
                self.damage.note(data, record.offset, error)
                continue
            if isinstance(key, ForeignKey) or isinstance(value, ForeignValue):
                self.foreign += 1
            elif self._partition_of(key.transactional_id) != self._partition:
                self.misplaced += 1
            else:
                yield key.transactional_id, value


def _is_readable(key: bytes, value: bytes) -> bool:
    try:
        decode_transaction_key(key)
        decode_transaction(value)
    except MalformedError:
        return False
    return True

"""Values of transactions that both wires, the coordinator and its log share.

Source: org.apache.kafka.coordinator.transaction.TransactionState, org.apache.kafka.server.common.TransactionVersion.
"""

from enum import IntEnum
from typing import TypeAlias

TRANSACTION_FEATURE = "transaction.version"  # its levels are `TransactionVersion`
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
MAX_PRODUCER_EPOCH = (1 << 15) - 1
NO_TIMEOUT_MS = (1 << 31) - 1  # of a transaction in two phases (KIP-939), which nobody but its client may end

TopicIndex: TypeAlias = tuple[str, int]  # a partition: its topic and its index


class TransactionState(IntEnum):
    """States of a transactional id by the numbers that records hold."""

    EMPTY = 0  # no transaction since the last InitProducerId
    ONGOING = 1
    PREPARE_COMMIT = 2  # the outcome is decided; its markers are being written
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4  # every partition has its marker
    COMPLETE_ABORT = 5
    DEAD = 6  # the id has expired and its tombstone is being written; never stored
    PREPARE_EPOCH_FENCE = 7  # Kafka's name for a fencing under way; never stored

    @property
    def label(self) -> str:
        """Name that tools show and filter by, such as `PrepareCommit`."""
        return self.name.title().replace("_", "")


class TransactionVersion(IntEnum):
    """Levels of the feature `transaction.version` (KIP-890)."""

    TV_0 = 0
    TV_1 = 1  # flexible records in `__transaction_state`
    TV_2 = 2  # every end of a transaction raises the producer epoch; Produce adds partitions

    @property
    def bumps_epochs(self) -> bool:
        """Whether every end of a transaction raises the producer epoch."""
        return self >= TransactionVersion.TV_2

    @property
    def record_version(self) -> int:
        """Version of the values in `__transaction_state`."""
        return 1 if self >= TransactionVersion.TV_1 else 0

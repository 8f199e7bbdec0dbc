"""The settings of one log. Owns their meaning for storage; must not know where they were set or what a topic is.

Names and defaults are Kafka's (source: org.apache.kafka.storage.internals.log.LogConfig); those without a counterpart
there say so.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

MAX_INT64 = (1 << 63) - 1

SearchName: TypeAlias = Literal["warm", "plain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Settings of one log; sizes in bytes, times in milliseconds."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_jitter_ms: int = 0  # each segment rolls earlier by a random part of this, so that logs do not roll together
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    max_message_bytes: int = (1 << 20) + 12
    flush_messages: int = MAX_INT64
    flush_ms: int = MAX_INT64
    file_delete_delay_ms: int = 60_000
    preallocate: bool = False
    retention_ms: int = 7 * 24 * 3600 * 1000  # -1: for ever
    retention_bytes: int = -1  # -1: any number
    cleanup_policy: str = "delete"  # "compact", "delete", both with a comma between them, or nothing
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = MAX_INT64
    delete_retention_ms: int = 24 * 3600 * 1000
    min_insync_replicas: int = 1
    index_search: SearchName = "warm"  # ours: the plain search is kept to show the difference
    walk_records: bool = True  # ours: whether the record lengths of uncompressed batches are checked on append

    @property
    def deletes(self) -> bool:
        """Whether segments go by age and size."""
        return "delete" in self.cleanup_policy

    @property
    def compacts(self) -> bool:
        """Whether only the latest record of each key is kept."""
        return "compact" in self.cleanup_policy

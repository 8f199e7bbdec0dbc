"""The settings of one log.

Names and defaults are Kafka's (source: org.apache.kafka.storage.internals.log.LogConfig) unless marked as warmlog's.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from warmlog.protocol.records.layout import Codec
from warmlog.protocol.records.record import MAX_INT64
from warmlog.protocol.records.validation import BatchRules

SearchName: TypeAlias = Literal["warm", "plain"]
TimestampTypeName: TypeAlias = Literal["CreateTime", "LogAppendTime"]
CompressionName: TypeAlias = Literal["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]

_CODECS = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Settings of one log; sizes in bytes, times in milliseconds."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_jitter_ms: int = 0  # rolls are spread over this time, so that logs do not roll simultaneously
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    max_message_bytes: int = (1 << 20) + 12
    flush_messages: int = MAX_INT64
    flush_ms: int = MAX_INT64
    file_delete_delay_ms: int = 60_000
    preallocate: bool = False
    producer_id_expiration_ms: int = 24 * 3600 * 1000  # idle producers expire after this
    retention_ms: int = 7 * 24 * 3600 * 1000  # -1: no limit
    retention_bytes: int = -1  # -1: no limit
    cleanup_policy: str = "delete"  # "compact", "delete", both separated by a comma, or empty
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = MAX_INT64
    delete_retention_ms: int = 24 * 3600 * 1000
    message_timestamp_type: TimestampTypeName = "CreateTime"
    message_timestamp_before_max_ms: int = MAX_INT64
    message_timestamp_after_max_ms: int = MAX_INT64  # the broker's default is Kafka's: one hour
    compression_type: CompressionName = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    min_insync_replicas: int | None = None  # `broker.cluster.rules` uses the value in the store
    unclean_leader_election_enable: bool = False  # the same
    index_search: SearchName = "warm"  # warmlog's: "plain" is for comparison
    walk_records: bool = True  # warmlog's: check the record lengths of uncompressed batches on append

    @property
    def deletes(self) -> bool:
        """Whether old segments are removed by age and size."""
        return "delete" in self.cleanup_policy

    @property
    def max_segment_ms(self) -> int:
        """Maximum age of the active segment; limited by `max.compaction.lag.ms`, as only sealed ones are compacted."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compacts else self.segment_ms

    @property
    def compacts(self) -> bool:
        """Whether only the latest record of each key is kept."""
        return "compact" in self.cleanup_policy

    @property
    def batch_rules(self) -> BatchRules:
        """The validation rules for appended batches."""
        append_time = self.message_timestamp_type == "LogAppendTime"
        return BatchRules(
            max_batch_size=self.max_message_bytes,
            walk=self.walk_records or self.compacts,
            before_max_ms=MAX_INT64 if append_time else self.message_timestamp_before_max_ms,
            after_max_ms=MAX_INT64 if append_time else self.message_timestamp_after_max_ms,
            append_time=append_time,
            need_keys=self.compacts,
            codec=_CODECS[self.compression_type],
            level=self._compression_level,
        )

    @property
    def _compression_level(self) -> int | None:
        levels = {
            "gzip": self.compression_gzip_level,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }
        return levels.get(self.compression_type)

"""Produce, versions 3 to 13 (0 to 2 are advertised but not served, see `api.py`).

The records of a request are views of its frame.
"""

from typing import Any

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.kafka.codec.schema import (
    ERROR,
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    TOPIC_ID,
    Field,
    Only,
    Struct,
    array,
    flat,
)
from warmlog.protocol.kafka.messages.common import (
    THROTTLE_TIME,
    TIMEOUT,
    KafkaBrokerMetadata,
    current_leader,
    node_endpoints,
    refused_partitions,
    since,
)
from warmlog.protocol.request import PartitionRecords, ProduceRequest
from warmlog.protocol.response import ProducedPartition, ProduceResponse, RecordError


class KafkaProduceRequest(ProduceRequest, frozen=True, kw_only=True, gc=False):
    """A produce request. `knows_zstd`: its version allows zstd batches (KIP-110)."""

    knows_zstd: bool = True

    @property
    def is_one_batch_each(self) -> bool:
        """Whether a partition may have only one batch, as from Kafka's clients; a request with several is refused."""
        return True


class ProduceLedElsewhere(ProducedPartition, frozen=True, kw_only=True, gc=False):
    """A partition led by another broker, which clients learn without a metadata request (KIP-951)."""

    leader_id: int
    leader_epoch: int


class KafkaProduceResponse(ProduceResponse, frozen=True, kw_only=True, gc=False):
    """A produce response, with the addresses of the leaders it names."""

    nodes: tuple[KafkaBrokerMetadata, ...]


class IdentifiedRecords(PartitionRecords, frozen=True, kw_only=True, gc=False):
    """Batches for a partition, whose topic may be identified by `topic_id` (Produce from version 13)."""

    topic_id: bytes = NO_TOPIC_ID


_FIRST_WITH_ZSTD = 7
_ACKS = Only((-1, 0, 1), ErrorCode.INVALID_REQUIRED_ACKS, "acks must be -1, 0 or 1, not {}")
_NO_RECORDS = memoryview(b"")


def _requested(_: ProduceResponse, request: Any) -> Any:
    return request.partitions


REQUEST = Struct(
    Field("transactional_id", STRING, nullable=3, default=None),
    Field("acks", INT16, only=_ACKS),
    TIMEOUT,
    Field(
        "topic_data",
        flat(
            Field("name", STRING, until=12, attr="topic"),
            Field("topic_id", TOPIC_ID, since=13),
            Field(
                "partition_data",
                array(Field("index", INT32, attr="partition"), Field("records", RECORDS, nullable=0, null=_NO_RECORDS)),
            ),
            into=IdentifiedRecords,
        ),
        attr="partitions",
    ),
    into=KafkaProduceRequest,
    given=lambda version: {"knows_zstd": version >= _FIRST_WITH_ZSTD},
)
RESPONSE = Struct(
    Field(
        "responses",
        flat(
            Field("name", STRING, until=12, attr="topic"),
            Field("topic_id", TOPIC_ID, since=13),
            Field(
                "partition_responses",
                array(
                    Field("index", INT32, attr="partition"),
                    Field("error_code", ERROR, attr="error"),
                    Field("base_offset", INT64),
                    Field("log_append_time_ms", INT64, since=2, default=-1, attr="log_append_time"),
                    Field("log_start_offset", INT64, since=5, default=-1),
                    Field(
                        "record_errors",
                        array(
                            Field("batch_index", INT32, attr="index"),
                            Field("batch_index_error_message", STRING, nullable=8, default=None, attr="message"),
                            into=RecordError,
                        ),
                        since=8,
                        null=(),
                    ),
                    Field("error_message", STRING, since=8, nullable=8, default=None, attr="message"),
                    current_leader(10, 0, ProduceLedElsewhere),
                ),
            ),
            into=ProducedPartition,
            keys=_requested,
        ),
        attr="partitions",
    ),
    since(1, THROTTLE_TIME),
    node_endpoints(10),
    into=ProduceResponse,
)
failed = refused_partitions(ProduceResponse, ProducedPartition)

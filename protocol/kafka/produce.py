"""Produce, versions 3 to 13. By hand: every batch that is stored comes this way, and no table is as quick.

    request   transactional id, acks int16, timeout int32, [topic name (to 12) or id (from 13),
                [index int32, records]]
    reply     [topic name or id, [index int32, error int16, base offset int64, log append time int64,
                log start offset int64 (from 5), [record errors] and message (from 8)]], throttle time int32

Flexible from 9. Versions 0 to 2 are advertised and not served (see `api.py`).

Invariant: `records` of each partition is a view of the frame.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Any

from protocol.errors import ErrorCode
from protocol.kafka.primitives import Reader, Writer
from protocol.kafka.values import (
    UNKNOWN_TOPIC_NAME,
    IdentifiedRecords,
    InvalidRequestError,
    KafkaProduceRequest,
    ProduceRequestBeforeZstd,
    TopicNames,
    by_topic,
)
from protocol.request import PartitionRecords, ProduceRequest
from protocol.response import ErrorResponse, ProducedPartition, ProduceResponse, RecordError

_FIRST_WITH_START_OFFSET = 5
_FIRST_WITH_ZSTD = 7
_FIRST_WITH_MESSAGE = 8
_FIRST_WITH_TOPIC_ID = 13

_INDEX = Struct(">i")
_ACKS_AND_TIMEOUT = Struct(">hi")
_OUTCOME = Struct(">ihqq")  # index, error, base offset, log append time
_OUTCOME_5 = Struct(">ihqqq")  # and log start offset
_NO_RECORD_ERRORS = b"\x01"
_NO_MESSAGE_NO_TAGS = b"\x00\x00"
_NOTHING = memoryview(b"")
_ACKS = (-1, 0, 1)


def decode(reader: Reader, version: int, names: TopicNames) -> KafkaProduceRequest:
    """A produce request. Raises InvalidRequestError for acks other than -1, 0 and 1."""
    transactional_id = reader.nullable_string()
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(reader.frame, reader.position)
    reader.position += _ACKS_AND_TIMEOUT.size
    partitions: list[PartitionRecords] = []
    read_topic = _read_topic if version < _FIRST_WITH_TOPIC_ID else _read_identified_topic
    for _ in range(reader.count()):
        read_topic(reader, names, partitions)
    reader.tags()
    kind = KafkaProduceRequest if version >= _FIRST_WITH_ZSTD else ProduceRequestBeforeZstd
    request = kind(
        acks=acks,
        timeout_ms=max(0, timeout_ms),
        partitions=tuple(partitions),
        transactional_id=transactional_id,
    )
    if acks not in _ACKS:
        message = f"acks must be -1, 0 or 1, not {acks}"
        raise InvalidRequestError(request, ErrorCode.INVALID_REQUIRED_ACKS, message)
    return request


def _read_topic(reader: Reader, _: TopicNames, partitions: list[PartitionRecords]) -> None:
    topic = reader.string()
    for _index in range(reader.count()):
        (partition,) = _INDEX.unpack_from(reader.frame, reader.position)
        reader.position += _INDEX.size
        records = reader.nullable_data()
        reader.tags()
        partitions.append(
            PartitionRecords(topic=topic, partition=partition, records=_NOTHING if records is None else records)
        )
    reader.tags()


def _read_identified_topic(reader: Reader, names: TopicNames, partitions: list[PartitionRecords]) -> None:
    topic_id = reader.uuid()
    topic = names(topic_id) or UNKNOWN_TOPIC_NAME
    for _ in range(reader.count()):
        partition = reader.int32()
        records = reader.nullable_data()
        reader.tags()
        partitions.append(
            IdentifiedRecords(
                topic=topic,
                partition=partition,
                records=_NOTHING if records is None else records,
                topic_id=topic_id,
            )
        )
    reader.tags()


def encode(writer: Writer, version: int, request: ProduceRequest, response: ProduceResponse) -> None:
    """The reply, one entry per partition of the request and in its order."""
    if version >= _FIRST_WITH_TOPIC_ID:
        _write_identified_topics(writer, request, response)
    else:
        topics = by_topic(response.partitions)
        writer.count(len(topics))
        for topic, partitions in topics:
            writer.string(topic)
            _write_outcomes(writer, version, partitions)
    writer.int32(writer.throttle_ms)
    writer.tags()


def failed(request: ProduceRequest, error: ErrorResponse) -> ProduceResponse:
    """The reply where the request failed as a whole."""
    code, message = error.error, error.message
    return ProduceResponse(
        partitions=tuple(
            [
                ProducedPartition(topic=asked.topic, partition=asked.partition, error=code, message=message)
                for asked in request.partitions
            ]
        )
    )


def _write_identified_topics(writer: Writer, request: Any, response: ProduceResponse) -> None:
    runs: list[tuple[bytes, str, list[ProducedPartition]]] = []
    for asked, outcome in zip(request.partitions, response.partitions, strict=True):
        if not runs or runs[-1][0] != asked.topic_id:
            runs.append((asked.topic_id, asked.topic, []))
        runs[-1][2].append(outcome)
    writer.count(len(runs))
    for topic_id, topic, outcomes in runs:
        writer.uuid(topic_id)
        _write_outcomes(writer, _FIRST_WITH_TOPIC_ID, outcomes, is_unknown=topic == UNKNOWN_TOPIC_NAME)


def _write_outcomes(writer: Writer, version: int, partitions: Any, *, is_unknown: bool = False) -> None:
    """One topic's partitions and the end of the topic."""
    writer.count(len(partitions))
    for outcome in partitions:
        error = ErrorCode.UNKNOWN_TOPIC_ID if is_unknown else outcome.error
        if writer.flexible:
            _write_flexible_outcome(writer, outcome, error)
        else:
            _write_classic_outcome(writer, version, outcome, error)
    writer.tags()


def _write_flexible_outcome(writer: Writer, outcome: ProducedPartition, error: ErrorCode) -> None:
    writer.raw(
        _OUTCOME_5.pack(
            outcome.partition, error, outcome.base_offset, outcome.log_append_time, outcome.log_start_offset
        )
    )
    if outcome.record_errors:
        _write_record_errors(writer, outcome.record_errors)
    else:
        writer.raw(_NO_RECORD_ERRORS)
    if outcome.message is None:
        writer.raw(_NO_MESSAGE_NO_TAGS)
    else:
        writer.string(outcome.message)
        writer.tags()


def _write_classic_outcome(writer: Writer, version: int, outcome: ProducedPartition, error: ErrorCode) -> None:
    if version < _FIRST_WITH_START_OFFSET:
        writer.raw(_OUTCOME.pack(outcome.partition, error, outcome.base_offset, outcome.log_append_time))
        return
    writer.raw(
        _OUTCOME_5.pack(
            outcome.partition, error, outcome.base_offset, outcome.log_append_time, outcome.log_start_offset
        )
    )
    if version >= _FIRST_WITH_MESSAGE:
        _write_record_errors(writer, outcome.record_errors or ())
        writer.nullable_string(outcome.message)


def _write_record_errors(writer: Writer, errors: Sequence[RecordError]) -> None:
    writer.count(len(errors))
    for error in errors:
        writer.int32(error.index)
        writer.string(error.message)
        writer.tags()

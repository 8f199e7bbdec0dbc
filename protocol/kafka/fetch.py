"""Fetch, versions 4 to 18. By hand: the records of a reply are slices of files that never come here.

    request   replica id int32 (to 14), max wait int32, min bytes int32, max bytes int32, isolation int8,
              session id int32 and epoch int32 (from 7), [topic name (to 12) or id (from 13),
                [partition int32, current leader epoch int32 (from 9), offset int64, last fetched epoch int32 (from 12),
                 log start offset int64 (from 5), max bytes int32]],
              [forgotten: topic, [partition int32]] (from 7), rack (from 11),
              tagged field 1: replica id int32, replica epoch int64 (from 15)
    reply     throttle time int32, error int16 and session id int32 (from 7), [topic name or id,
                [partition int32, error int16, high watermark int64, last stable offset int64,
                 log start offset int64 (from 5), [aborted transactions], preferred replica int32 (from 11), records]]

Flexible from 12.

Invariants:
1. Of the records nothing but their len() is used; they stay apart from the bytes around them.
2. A reply to a request by topic ids names the ids of the request, or of its session: those that it was asked with,
   whatever became of the topics meanwhile.
"""

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any

from protocol.errors import ErrorCode
from protocol.kafka.primitives import NO_TOPIC_ID, Reader, Writer
from protocol.kafka.values import (
    FINAL_SESSION_EPOCH,
    NO_SESSION,
    UNKNOWN_TOPIC_NAME,
    ForgottenPartitions,
    KafkaFetchPartition,
    KafkaFetchRequest,
    KafkaFetchResponse,
    TopicNames,
    by_topic,
    check_isolation,
    isolation_of,
)
from protocol.request import FetchRequest, Isolation
from protocol.response import ErrorResponse, FetchedPartition, FetchResponse

_FIRST_WITH_START_OFFSET = 5
_FIRST_WITH_SESSION = 7
_FIRST_WITH_LEADER_EPOCH = 9
_FIRST_WITH_ZSTD = 10
_FIRST_WITH_RACK = 11
_FIRST_FLEXIBLE = 12
_FIRST_WITH_TOPIC_ID = 13
_LAST_WITH_REPLICA_ID = 14
_LAST_BEFORE_STORAGE_ERROR = 5

_LIMITS = Struct(">iiib")  # max wait, min bytes, max bytes, isolation
_SESSION = Struct(">ii")
# One partition asked for: up to 4, 5 to 8, 9 to 11, from 12 on.
_ASKED_4 = Struct(">iqi")
_ASKED_5 = Struct(">iqqi")
_ASKED_9 = Struct(">iiqqi")
_ASKED_12 = Struct(">iiqiqi")
_CONSUMER = -1  # for a replica's id


def _read_replica_state(reader: Reader) -> int:
    """A replica's id, out of its tagged field; the epoch says nothing to us."""
    replica_id = reader.int32()
    reader.int64()
    reader.tags()
    return replica_id


_KNOWN_TAGS = {1: ("replica_id", _read_replica_state)}

_FOUND_4 = Struct(">ihqq")  # partition, error, high watermark, last stable offset
_FOUND_5 = Struct(">ihqqq")  # and log start offset
_FOUND_12 = Struct(">ihqqqBi")  # and aborted transactions (null or none), preferred replica
_NOTHING_FOUND_12 = Struct(">ihqqqBiH")  # and no records, no tagged fields
_NO_RECORDS_NO_TAGS = 0x0100  # a compact length of 0, a count of 0
_HEAD_7 = Struct(">ihi")  # throttle time, error, session id
_NO_PREFERENCE = -1


def decode(reader: Reader, version: int, names: TopicNames) -> KafkaFetchRequest:
    """A fetch request. Negative limits count as 0. Raises InvalidRequestError for an unknown isolation level."""
    replica_id = reader.int32() if version <= _LAST_WITH_REPLICA_ID else _CONSUMER
    max_wait_ms, min_bytes, max_bytes, isolation = _unpack(reader, _LIMITS)
    session_id, session_epoch = NO_SESSION, FINAL_SESSION_EPOCH
    if version >= _FIRST_WITH_SESSION:
        session_id, session_epoch = _unpack(reader, _SESSION)
    partitions: list[KafkaFetchPartition] = []
    for _ in range(reader.count()):
        _read_topic(reader, version, names, partitions)
    forgotten = _read_forgotten(reader, version, names) if version >= _FIRST_WITH_SESSION else ()
    rack = reader.string() if version >= _FIRST_WITH_RACK else ""
    tagged = {"replica_id": replica_id}
    reader.tags_into(tagged, _KNOWN_TAGS if version > _LAST_WITH_REPLICA_ID else {})
    request = KafkaFetchRequest(
        partitions=tuple(partitions),
        max_wait_ms=max(max_wait_ms, 0),
        min_bytes=max(min_bytes, 0),
        max_bytes=max(max_bytes, 0),
        isolation=isolation_of(isolation),
        session_id=session_id,
        session_epoch=session_epoch,
        forgotten=forgotten,
        rack=rack,
        replica_id=tagged["replica_id"],
        uses_topic_ids=version >= _FIRST_WITH_TOPIC_ID,
        knows_zstd=version >= _FIRST_WITH_ZSTD,
    )
    check_isolation(isolation, request)
    return request


def _unpack(reader: Reader, layout: Struct) -> tuple[Any, ...]:
    position = reader.position
    reader.position = position + layout.size
    return layout.unpack_from(reader.frame, position)


def _topic_of(reader: Reader, version: int, names: TopicNames) -> tuple[str, bytes]:
    if version < _FIRST_WITH_TOPIC_ID:
        return reader.string(), NO_TOPIC_ID
    topic_id = reader.uuid()
    return names(topic_id) or UNKNOWN_TOPIC_NAME, topic_id


def _read_topic(reader: Reader, version: int, names: TopicNames, partitions: list[KafkaFetchPartition]) -> None:
    topic, topic_id = _topic_of(reader, version, names)
    for _ in range(reader.count()):
        partition, leader_epoch, offset, last_epoch, max_bytes = _read_asked(reader, version)
        reader.tags()
        partitions.append(
            KafkaFetchPartition(
                topic=topic,
                partition=partition,
                offset=offset,
                max_bytes=max(max_bytes, 0),
                topic_id=topic_id,
                current_leader_epoch=leader_epoch,
                last_fetched_epoch=last_epoch,
            )
        )
    reader.tags()


def _read_asked(reader: Reader, version: int) -> tuple[int, int, int, int, int]:
    """Partition, current leader epoch, offset, last fetched epoch, max bytes."""
    if version >= _FIRST_FLEXIBLE:
        partition, leader_epoch, offset, last_epoch, _, max_bytes = _unpack(reader, _ASKED_12)
        return partition, leader_epoch, offset, last_epoch, max_bytes
    if version >= _FIRST_WITH_LEADER_EPOCH:
        partition, leader_epoch, offset, _, max_bytes = _unpack(reader, _ASKED_9)
        return partition, leader_epoch, offset, -1, max_bytes
    if version >= _FIRST_WITH_START_OFFSET:
        partition, offset, _, max_bytes = _unpack(reader, _ASKED_5)
        return partition, -1, offset, -1, max_bytes
    partition, offset, max_bytes = _unpack(reader, _ASKED_4)
    return partition, -1, offset, -1, max_bytes


def _read_forgotten(reader: Reader, version: int, names: TopicNames) -> tuple[ForgottenPartitions, ...]:
    forgotten = []
    for _ in range(reader.count()):
        topic, topic_id = _topic_of(reader, version, names)
        partitions = tuple([reader.int32() for _ in range(reader.count())])
        reader.tags()
        forgotten.append(ForgottenPartitions(topic=topic, partitions=partitions, topic_id=topic_id))
    return tuple(forgotten)


def encode(writer: Writer, version: int, request: FetchRequest, response: FetchResponse) -> None:
    """The reply, one entry per partition of the request (or what `asked` names), in order; records as they are."""
    if version >= _FIRST_WITH_SESSION:
        error, session_id = ErrorCode.NONE, NO_SESSION
        if isinstance(response, KafkaFetchResponse):
            error, session_id = response.error, response.session_id
        writer.raw(_HEAD_7.pack(writer.throttle_ms, error, session_id))
    else:
        writer.int32(writer.throttle_ms)
    is_committed = request.isolation is Isolation.READ_COMMITTED
    if version >= _FIRST_WITH_TOPIC_ID:
        _write_identified_topics(writer, request, response, is_committed)
    else:
        topics = by_topic(response.partitions)
        writer.count(len(topics))
        for topic, partitions in topics:
            writer.string(topic)
            writer.count(len(partitions))
            for found in partitions:
                _write_found(writer, version, found, found.error, is_committed)
            writer.tags()
    writer.tags()


def failed(request: FetchRequest, error: ErrorResponse) -> KafkaFetchResponse:
    """The reply where the request failed as a whole: versions without an error of their own say so by partition."""
    return KafkaFetchResponse(
        error=error.error,
        partitions=tuple(
            [
                FetchedPartition(topic=asked.topic, partition=asked.partition, error=error.error)
                for asked in request.partitions
            ]
        ),
    )


def _write_identified_topics(
    writer: Writer, request: FetchRequest, response: FetchResponse, is_committed: bool
) -> None:
    asked: Sequence[Any] = request.partitions
    if isinstance(response, KafkaFetchResponse) and response.asked is not None:
        asked = response.asked
    runs = _by_topic_id(asked, response.partitions)
    writer.count(len(runs))
    for topic_id, topic, partitions in runs:
        writer.uuid(topic_id)
        writer.count(len(partitions))
        for found in partitions:
            error = found.error if topic != UNKNOWN_TOPIC_NAME else ErrorCode.UNKNOWN_TOPIC_ID
            _write_found(writer, _FIRST_WITH_TOPIC_ID, found, error, is_committed)
        writer.tags()


def _by_topic_id(
    asked: Iterable[Any], found: Iterable[FetchedPartition]
) -> list[tuple[bytes, str, list[FetchedPartition]]]:
    """What was found, in runs of the same topic: (id, name, partitions)."""
    runs: list[tuple[bytes, str, list[FetchedPartition]]] = []
    last_id = None
    for question, answer in zip(asked, found, strict=True):
        if question.topic_id != last_id:
            last_id = question.topic_id
            runs.append((last_id, question.topic, []))
        runs[-1][2].append(answer)
    return runs


def _write_found(writer: Writer, version: int, found: FetchedPartition, error: int, is_committed: bool) -> None:
    records = found.records
    if version >= _FIRST_FLEXIBLE:
        aborted = 1 if is_committed else 0  # flexible: none, or null for one who does not ask
        if not len(records):  # most partitions of most replies: all of it at once
            writer.raw(
                _NOTHING_FOUND_12.pack(
                    found.partition,
                    error,
                    found.high_watermark,
                    found.last_stable_offset,
                    found.log_start_offset,
                    aborted,
                    _NO_PREFERENCE,
                    _NO_RECORDS_NO_TAGS,
                )
            )
            return
        writer.raw(
            _FOUND_12.pack(
                found.partition,
                error,
                found.high_watermark,
                found.last_stable_offset,
                found.log_start_offset,
                aborted,
                _NO_PREFERENCE,
            )
        )
    else:
        _write_classic_start(writer, version, found, error, is_committed)
    writer.length(len(records))
    writer.slice(records)
    writer.tags()


def _write_classic_start(writer: Writer, version: int, found: FetchedPartition, error: int, is_committed: bool) -> None:
    if error == ErrorCode.KAFKA_STORAGE_ERROR and version <= _LAST_BEFORE_STORAGE_ERROR:
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER  # the older clients do not know the former, and would give up
    if version < _FIRST_WITH_START_OFFSET:
        writer.raw(_FOUND_4.pack(found.partition, error, found.high_watermark, found.last_stable_offset))
    else:
        writer.raw(
            _FOUND_5.pack(
                found.partition, error, found.high_watermark, found.last_stable_offset, found.log_start_offset
            )
        )
    writer.count(0 if is_committed else -1)
    if version >= _FIRST_WITH_RACK:
        writer.int32(_NO_PREFERENCE)

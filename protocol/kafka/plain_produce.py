"""Produce as nearly all producers send it, read and answered in a few steps: a short cut past `api` and `produce`.

Plain is a request of a flexible version, outside of transactions, with records for one partition and no tagged fields;
and a reply to such a request without an error. Of requests it is these that come by the ten thousand a second: the
short cut takes a fifth of the time that the readers of fields take where it is compiled (`_plain_produce.pyx`, the twin
of what is written here), else half of it.

    key int16, version int16, correlation id int32, client id int16 + text, tags 0, transactional id 0 (null),
    acks int16, timeout int32, topics 2, name uvarint + text (to 12) or id (13), partitions 2, index int32,
    records uvarint + bytes, tags 0 of partition, topic and request                  (a count is its number + 1)

Invariants:
1. What is read here is what `produce.decode` would read; whatever is not plain, or not sound, is None, and left to it.
2. `records` is a view of the frame.
"""

import struct
from contextlib import suppress
from struct import Struct
from typing import TypeAlias

from protocol.frame import LENGTH_SIZE
from protocol.kafka.values import IdentifiedRecords, KafkaProduceRequest, TopicNames
from protocol.records import codec
from protocol.request import PartitionRecords
from protocol.response import ProduceResponse

FIRST, LAST = 9, 13  # the flexible versions
_FIRST_WITH_TOPIC_ID = 13
_TOPIC_ID_SIZE = 16

_START = Struct(">hhih")  # key, version, correlation id, length of the client id
_BODY = Struct(">BBhiBB")  # tags, transactional id, acks, timeout, topics, length of the name + 1
_TOPICS_SIZE = _BODY.size - 1  # without the name's length, which an id has not
_PARTITION = Struct(">Bi")  # partitions, index
_REPLY_START = Struct(">iiBB")  # length, correlation id, tags, topics
# Partitions, index, error, base offset, log append time, log start offset, no record errors, no message, tags of
# partition and topic, throttle time, tags.
_REPLY_END = Struct(">BihqqqBBBBiB")
_ONE = 2  # a count of one
_CONTINUED = 0x80  # the bit of a uvarint's byte that is not the last
_MAX_SHIFT = 28  # of its fifth byte, beyond which no length goes: a frame full of such bytes would be one huge number
_TAGS_SIZE = 3  # of partition, topic and request, a byte each
_UNSOUND = (struct.error, IndexError, UnicodeDecodeError)


# What a plain request says: version, correlation id, client id, request.
PlainProduce: TypeAlias = tuple[int, int, str, KafkaProduceRequest]


def read_pure(frame: memoryview, names: TopicNames) -> PlainProduce | None:
    """A plain request, or None. `frame` holds a Produce request of whatever version, without its length."""
    try:
        return _read(frame, names)
    except _UNSOUND:
        return None


def _read(frame: memoryview, names: TopicNames) -> PlainProduce | None:
    _, version, correlation_id, client_length = _START.unpack_from(frame)
    if not FIRST <= version <= LAST or client_length < 0:
        return None
    at = _START.size + client_length
    tags, transactional_id, acks, timeout_ms, topics, name_length = _BODY.unpack_from(frame, at)
    if tags or transactional_id or topics != _ONE or not -1 <= acks <= 1 or timeout_ms < 0:
        return None
    if version >= _FIRST_WITH_TOPIC_ID:
        name_at, name_end = at + _TOPICS_SIZE, at + _TOPICS_SIZE + _TOPIC_ID_SIZE
    else:
        name_at, name_end = at + _BODY.size, at + _TOPICS_SIZE + name_length
        if not 1 < name_length < _CONTINUED:
            return None
    partitions, index = _PARTITION.unpack_from(frame, name_end)
    records = _records(frame, name_end + _PARTITION.size)
    if partitions != _ONE or records is None:
        return None
    partition: PartitionRecords
    if version >= _FIRST_WITH_TOPIC_ID:
        topic_id = bytes(frame[name_at:name_end])
        partition = IdentifiedRecords(topic=names(topic_id) or "", partition=index, records=records, topic_id=topic_id)
    else:
        partition = PartitionRecords(topic=str(frame[name_at:name_end], "utf-8"), partition=index, records=records)
    client_id = str(frame[_START.size : at], "utf-8")
    request = KafkaProduceRequest(acks=acks, timeout_ms=timeout_ms, partitions=(partition,))
    return version, correlation_id, client_id, request


def _records(frame: memoryview, at: int) -> memoryview | None:
    """What follows their length, up to the tags that end the frame; None where it is not so."""
    length = frame[at]
    shift = 7
    while length >> shift:  # the byte before says that another one follows
        if shift > _MAX_SHIFT:
            return None
        at += 1
        length += (frame[at] - 1) << shift
        shift += 7
    end = len(frame) - _TAGS_SIZE
    if not length or at + length != end or frame[end] or frame[end + 1] or frame[end + 2]:
        return None
    return frame[at + 1 : end]


def reply_pure(
    version: int, correlation_id: int, request: KafkaProduceRequest, response: ProduceResponse
) -> bytes | None:
    """The whole frame that answers a request of a flexible version, or None where the answer is not plain."""
    if len(response.partitions) != 1:
        return None
    outcome = response.partitions[0]
    if outcome.error or outcome.message is not None or outcome.record_errors:
        return None
    if version >= _FIRST_WITH_TOPIC_ID:
        topic: bytes = request.partitions[0].topic_id  # type: ignore[attr-defined]
    else:
        name = outcome.topic.encode()
        if len(name) + 1 >= _CONTINUED:
            return None
        topic = bytes((len(name) + 1,)) + name
    end = _REPLY_END.pack(
        _ONE, outcome.partition, 0, outcome.base_offset, outcome.log_append_time, outcome.log_start_offset,
        1, 0, 0, 0, 0, 0,
    )  # fmt: skip
    length = _REPLY_START.size + len(topic) + len(end) - LENGTH_SIZE
    return _REPLY_START.pack(length, correlation_id, 0, _ONE) + topic + end


read, reply = read_pure, reply_pure
if codec.compiled:
    with suppress(ImportError):
        from protocol.kafka._plain_produce import read, reply  # noqa: F401

"""Parts of Fetch outside the field tables: replicas, sessions, and errors unknown to older clients."""

from struct import pack

import pytest

from tests.protocol.kafka.messages import body, frame, parsed, reply_body
from warmlog.protocol.errors import ErrorCode, ProtocolError
from warmlog.protocol.kafka.api import API_BY_KEY, Call, Codec
from warmlog.protocol.kafka.messages.records.fetch import (
    CONSUMER,
    KafkaFetchPartition,
    KafkaFetchRequest,
    KafkaFetchResponse,
)
from warmlog.protocol.response import FetchedPartition

FETCH = API_BY_KEY[1]
EMPTY = {
    "max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1, "isolation_level": 0, "topics": (), "forgotten_topics_data": (),
}  # fmt: skip


def asked(version: int, tags: bytes | None = None, **fields: int) -> KafkaFetchRequest:
    data = body("FetchRequest", FETCH, version, {**EMPTY, **fields})
    if tags is not None:
        data = data[:-1] + tags
    request = Codec().decode(frame(FETCH, version, data)).request
    assert isinstance(request, KafkaFetchRequest)
    return request


@pytest.mark.parametrize("version", range(4, 15))
def test_a_replica_names_itself_first(version: int) -> None:
    assert asked(version, replica_id=5).replica == (5, -1)
    assert asked(version).replica == CONSUMER


@pytest.mark.parametrize("version", range(15, 19))
def test_a_replica_names_itself_in_a_tagged_field_later(version: int) -> None:
    state = pack(">iqB", 5, 77, 0)
    assert asked(version, b"\x01\x01" + bytes([len(state)]) + state).replica == (5, 77)
    two = b"\x02" + b"\x00\x02\x02a" + b"\x01" + bytes([len(state)]) + state  # the cluster id precedes it
    assert asked(version, two).replica == (5, 77)
    assert asked(version).replica == CONSUMER
    with pytest.raises(ProtocolError, match="tagged field 1 takes 13 bytes, not its 14"):
        asked(version, b"\x01\x01\x0e" + state + b"\x00")


def test_topics_are_named_by_id_from_version_13_on() -> None:
    assert not asked(12).uses_topic_ids
    assert asked(13).uses_topic_ids


@pytest.mark.parametrize("version", range(4, 12))
def test_a_client_that_does_not_know_storage_errors_must_look_for_the_leader(version: int) -> None:
    request = KafkaFetchRequest(partitions=(KafkaFetchPartition(topic="t", partition=0, offset=0),))
    found = FetchedPartition(topic="t", partition=0, error=ErrorCode.KAFKA_STORAGE_ERROR)
    pieces = Codec().encode(Call(FETCH, version, 7, "", request), KafkaFetchResponse(partitions=(found,)))
    (topic,) = parsed("FetchResponse", FETCH, version, reply_body(FETCH, version, pieces))["responses"]
    told = ErrorCode.KAFKA_STORAGE_ERROR if version > 5 else ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert topic["partitions"][0]["error_code"] == told


@pytest.mark.parametrize("version", range(7, 19))
def test_a_response_in_a_session_holds_its_changed_partitions(version: int) -> None:
    request = KafkaFetchRequest(partitions=(KafkaFetchPartition(topic="a", partition=0, offset=0),))
    changed = (
        KafkaFetchPartition(topic="b", partition=1, offset=0, topic_id=b"b" * 16),
        KafkaFetchPartition(topic="", partition=2, offset=0, topic_id=b"c" * 16),
    )
    found = tuple(FetchedPartition(topic=one.topic, partition=one.partition) for one in changed)
    response = KafkaFetchResponse(partitions=found, session_id=9, requested=changed)
    pieces = Codec().encode(Call(FETCH, version, 7, "", request), response)
    reply = parsed("FetchResponse", FETCH, version, reply_body(FETCH, version, pieces))
    assert reply["session_id"] == 9
    names = [topic["topic_id"] if version >= 13 else topic["topic"] for topic in reply["responses"]]
    assert names == ([b"b" * 16, b"c" * 16] if version >= 13 else ["b", ""])
    told = [one["error_code"] for topic in reply["responses"] for one in topic["partitions"]]
    assert told == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.NONE]

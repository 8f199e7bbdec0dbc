"""Messages written by Kafka's classes (interop/generate_messages.py), decoded and encoded."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

from tests.protocol.kafka.messages import (
    MESSAGES,
    TABLES,
    body,
    frame,
    from_kafka_json,
    parsed,
    reply_body,
    with_defaults,
)
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.api import APIS, Call, Codec
from warmlog.protocol.kafka.messages.common import UNKNOWN_TOPIC_NAME
from warmlog.protocol.kafka.messages.records.fetch import KafkaFetchPartition, KafkaFetchRequest, KafkaFetchResponse
from warmlog.protocol.kafka.messages.records.produce import IdentifiedRecords
from warmlog.protocol.request import Isolation, ProduceRequest
from warmlog.protocol.response import AbortedTransaction, FetchedPartition, ProducedPartition, ProduceResponse

GOLDEN = Path(__file__).parents[2] / "fixtures" / "kafka" / "4.4.0" / "messages.jsonl"
BY_NAME = {api.name: api for api in APIS}
READ_COMMITTED = 1


@cache
def golden() -> dict[tuple[str, int], list[tuple[dict[str, Any], bytes]]]:
    found: dict[tuple[str, int], list[tuple[dict[str, Any], bytes]]] = {}
    for line in map(json.loads, GOLDEN.read_text().splitlines()):
        name, version = line["message"], line["version"]
        values = from_kafka_json(TABLES[name], version, line["fields"])
        found.setdefault((name, version), []).append((values, bytes.fromhex(line["body"])))
    return found


def samples(name: str) -> list[Any]:
    return [
        pytest.param(version, values, data, id=f"{version}-{number}")
        for (message, version), found in golden().items()
        if message == name
        for number, (values, data) in enumerate(found)
    ]


def test_there_is_a_sample_of_every_message_and_version_served() -> None:
    assert set(golden()) == {(name, version) for name, _, version in MESSAGES}


@pytest.mark.parametrize(("name", "api", "version"), MESSAGES)
def test_tables_of_fields_read_and_write_what_kafka_wrote(name: str, api: Any, version: int) -> None:
    for values, data in golden()[name, version]:
        assert parsed(name, api, version, data) == with_defaults(TABLES[name], version, values)
        assert body(name, api, version, values) == data


@pytest.mark.parametrize(("version", "values", "data"), samples("ProduceRequest"))
def test_produce_requests_of_kafka_become_values(version: int, values: dict[str, Any], data: bytes) -> None:
    request = Codec(topic_names=bytes.hex).decode(frame(BY_NAME["Produce"], version, data)).request
    assert (request.transactional_id, request.acks) == (values["transactional_id"], values["acks"])
    assert request.timeout_ms == max(values["timeout_ms"], 0)
    assert [(one.topic, one.partition, bytes(one.records)) for one in request.partitions] == [
        (topic.get("name") if version < 13 else topic["topic_id"].hex(), one["index"], one["records"] or b"")
        for topic in values["topic_data"]
        for one in topic["partition_data"]
    ]
    if version >= 13:
        ids = [topic["topic_id"] for topic in values["topic_data"] for _ in topic["partition_data"]]
        assert [one.topic_id for one in request.partitions] == ids


@pytest.mark.parametrize(("version", "values", "data"), samples("FetchRequest"))
def test_fetch_requests_of_kafka_become_values(version: int, values: dict[str, Any], data: bytes) -> None:
    request = Codec(topic_names=bytes.hex).decode(frame(BY_NAME["Fetch"], version, data)).request
    full = with_defaults(TABLES["FetchRequest"], version, values)
    assert (request.max_wait_ms, request.min_bytes) == (max(full["max_wait_ms"], 0), max(full["min_bytes"], 0))
    assert (request.session_id, request.session_epoch) == (full["session_id"], full["session_epoch"])
    assert (request.isolation is Isolation.READ_COMMITTED) == (full["isolation_level"] == READ_COMMITTED)
    assert (request.max_bytes, request.rack) == (max(full["max_bytes"], 0), full["rack_id"])
    state = full["replica_state"] if version >= 15 else {"replica_id": full["replica_id"], "replica_epoch": -1}
    assert request.replica == (state["replica_id"], state["replica_epoch"])
    assert list(request.partitions) == [
        KafkaFetchPartition(
            topic=topic["topic"] if version < 13 else topic["topic_id"].hex(),
            topic_id=topic["topic_id"],
            partition=one["partition"],
            offset=one["fetch_offset"],
            max_bytes=max(one["partition_max_bytes"], 0),
            current_leader_epoch=one["current_leader_epoch"],
            last_fetched_epoch=one["last_fetched_epoch"],
            log_start_offset=one["log_start_offset"],
        )
        for topic in full["topics"]
        for one in topic["partitions"]
    ]
    assert [(one.topic_id, one.partitions) for one in request.forgotten] == [
        (one["topic_id"], one["partitions"]) for one in full["forgotten_topics_data"]
    ]


def entries(topics: Any, key: str) -> list[tuple[str, bytes, dict[str, Any]]]:
    return [(f"topic {number}", topic["topic_id"], one) for number, topic in enumerate(topics) for one in topic[key]]


def without_leaders(topics: Any, key: str) -> tuple[Any, ...]:
    """Drop what a reply says only of partitions whose leader or log is another one."""
    dropped = {"current_leader", "diverging_epoch", "snapshot_id"}
    return tuple(
        [
            topic | {key: tuple([{name: one[name] for name in one if name not in dropped} for one in topic[key]])}
            for topic in topics
        ]
    )


def without_empty(topics: Any, key: str) -> tuple[Any, ...]:
    """Drop topics without partitions, which the neutral values cannot represent."""
    return tuple([topic for topic in topics if topic[key]])


@pytest.mark.parametrize(("version", "values", "data"), samples("ProduceResponse"))
def test_produce_replies_are_written_from_values_as_kafka_writes_them(
    version: int, values: dict[str, Any], data: bytes
) -> None:
    api = BY_NAME["Produce"]
    replies = without_leaders(without_empty(values["responses"], "partition_responses"), "partition_responses")
    values = values | {"responses": replies, "node_endpoints": ()}
    full = with_defaults(TABLES["ProduceResponse"], version, values)
    found = entries(full["responses"], "partition_responses")
    names = [topic["name"] for topic in full["responses"] for _ in topic["partition_responses"]]
    response = ProduceResponse(
        partitions=tuple(
            ProducedPartition(
                topic=name if version < 13 else topic,
                partition=one["index"],
                base_offset=one["base_offset"],
                log_append_time=one["log_append_time_ms"],
                log_start_offset=one["log_start_offset"],
                error=ErrorCode(one["error_code"]),
                message=one["error_message"],
            )
            for (topic, _, one), name in zip(found, names, strict=True)
        )
    )
    request = ProduceRequest(
        partitions=tuple(
            IdentifiedRecords(topic=topic, partition=one["index"], records=memoryview(b""), topic_id=topic_id)
            for topic, topic_id, one in found
        )
    )
    pieces = Codec().encode(Call(api, version, 7, "", request), response, throttle_ms=values["throttle_time_ms"])
    assert reply_body(api, version, pieces) == body("ProduceResponse", api, version, values)


@pytest.mark.parametrize(("version", "values", "data"), samples("FetchResponse"))
def test_fetch_replies_are_written_from_values_as_kafka_writes_them(
    version: int, values: dict[str, Any], data: bytes
) -> None:
    api = BY_NAME["Fetch"]
    for aborted in ((), None, (AbortedTransaction(producer_id=7, first_offset=1 << 40),)):
        wanted = with_defaults(TABLES["FetchResponse"], version, values)
        wanted["responses"] = without_leaders(without_empty(wanted["responses"], "partitions"), "partitions")
        wanted["node_endpoints"] = ()
        for topic in wanted["responses"]:
            for one in topic["partitions"]:
                one["aborted_transactions"] = None if aborted is None else tuple(asdict(each) for each in aborted)
                one["records"] = one["records"] or b""
        found = entries(wanted["responses"], "partitions")
        names = [topic["topic"] for topic in wanted["responses"] for _ in topic["partitions"]]
        response = KafkaFetchResponse(
            error=ErrorCode(wanted["error_code"]),
            session_id=wanted["session_id"],
            partitions=tuple(
                FetchedPartition(
                    topic=name if version < 13 else topic,
                    partition=one["partition_index"],
                    high_watermark=one["high_watermark"],
                    last_stable_offset=one["last_stable_offset"],
                    log_start_offset=one["log_start_offset"],
                    error=ErrorCode(one["error_code"]),
                    aborted_transactions=aborted,
                    records=one["records"],
                )
                for (topic, _, one), name in zip(found, names, strict=True)
            ),
        )
        request = KafkaFetchRequest(
            partitions=tuple(
                KafkaFetchPartition(topic=topic, partition=one["partition_index"], offset=0, topic_id=topic_id)
                for topic, topic_id, one in found
            ),
        )
        pieces = Codec().encode(Call(api, version, 7, "", request), response, throttle_ms=wanted["throttle_time_ms"])
        assert reply_body(api, version, pieces) == body("FetchResponse", api, version, wanted)
        records = [one["records"] for _, _, one in found if one["records"]]
        assert [piece for piece in pieces if any(piece is one for one in records)] == records


def test_an_unknown_topic_id_is_answered_as_one() -> None:
    asked = IdentifiedRecords(topic=UNKNOWN_TOPIC_NAME, partition=3, records=memoryview(b""), topic_id=b"i" * 16)
    refused = ProducedPartition(topic="", partition=3, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    call = Call(BY_NAME["Produce"], 13, 7, "", ProduceRequest(partitions=(asked,)))
    pieces = Codec().encode(call, ProduceResponse(partitions=(refused,)))
    (topic,) = parsed("ProduceResponse", call.api, 13, reply_body(call.api, 13, pieces))["responses"]
    assert topic["topic_id"] == b"i" * 16
    assert topic["partition_responses"][0]["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", range(13, 19))
def test_an_unknown_topic_id_of_a_fetch_is_answered_as_one(version: int) -> None:
    names = {b"k" * 16: "known"}
    partition = {
        "partition": 3, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1,
        "log_start_offset": -1, "partition_max_bytes": 1,
    }  # fmt: skip
    values = {
        "max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1, "isolation_level": 0,
        "topics": [{"topic_id": name * 16, "partitions": [partition] * 2} for name in (b"k", b"u")],
        "forgotten_topics_data": (),
    }  # fmt: skip
    codec = Codec(topic_names=names.get)
    api = BY_NAME["Fetch"]
    call = codec.decode(frame(api, version, body("FetchRequest", api, version, values)))
    assert [asked.topic for asked in call.request.partitions] == ["known", "known", "", ""]
    answers = [
        FetchedPartition(
            topic=asked.topic,
            partition=3,
            error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if not asked.topic else ErrorCode.NONE,
        )
        for asked in call.request.partitions
    ]
    pieces = codec.encode(call, KafkaFetchResponse(partitions=tuple(answers)))
    topics = parsed("FetchResponse", api, version, reply_body(api, version, pieces))["responses"]
    assert [topic["topic_id"] for topic in topics] == [b"k" * 16, b"u" * 16]
    errors = [[one["error_code"] for one in topic["partitions"]] for topic in topics]
    assert errors == [[0, 0], [ErrorCode.UNKNOWN_TOPIC_ID] * 2]


def test_sized_records_of_several_partitions_are_passed_through() -> None:
    class Slice:
        def __init__(self, size: int) -> None:
            self.size = size

        def __len__(self) -> int:
            return self.size

    slices = [Slice(5), Slice(0), Slice(1 << 30)]
    asked = [KafkaFetchPartition(topic="t", partition=number, offset=0) for number in range(3)]
    found = [FetchedPartition(topic="t", partition=number, records=one) for number, one in enumerate(slices)]
    call = Call(BY_NAME["Fetch"], 12, 7, "", KafkaFetchRequest(partitions=tuple(asked)))
    pieces = Codec().encode(call, KafkaFetchResponse(partitions=tuple(found)))
    assert [type(piece) for piece in pieces] == [bytes, Slice, bytes, Slice, bytes]
    assert pieces[1] is slices[0]
    assert pieces[3] is slices[2]
    assert int.from_bytes(pieces[0][:4]) == sum(map(len, pieces)) - 4

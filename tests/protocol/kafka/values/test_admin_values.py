"""Messages of Kafka's admin tools, decoded to and encoded from the values of protocol/kafka/admin_values.py."""

import pytest

from tests.protocol.kafka.values.round_trip import decode_request, encode_response, expected, versions
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import PartitionEntry
from warmlog.protocol.kafka.messages.topics.assignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingReassignment,
)
from warmlog.protocol.kafka.messages.topics.log_dirs import (
    DescribedLogDir,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    LogDirPartition,
)
from warmlog.protocol.response import ErrorResponse
from warmlog.protocol.transactions import (
    ActiveProducer,
    DescribedProducers,
    DescribeProducersRequest,
    DescribeProducersResponse,
)

LOG_DIRS, REASSIGNMENTS, PRODUCERS = 35, 46, 61
PARTITIONS = (PartitionEntry(topic="a", partition=1), PartitionEntry(topic="a", partition=2))


@pytest.mark.parametrize("version", versions(LOG_DIRS))
def test_directories(version: int) -> None:
    topics = [{"topic": "a", "partitions": [1, 2]}]
    assert decode_request(LOG_DIRS, version, {"topics": topics}) == DescribeLogDirsRequest(partitions=PARTITIONS)
    assert decode_request(LOG_DIRS, version, {"topics": None}) == DescribeLogDirsRequest()
    lying = LogDirPartition(topic="a", partition=1, size=70, offset_lag=3, is_future=True)
    found = DescribedLogDir(path="/d", partitions=(lying,), total_bytes=9, usable_bytes=5, is_cordoned=True)
    failed = DescribedLogDir(path="/e", error=ErrorCode.KAFKA_STORAGE_ERROR)
    partition = {"partition_index": 1, "partition_size": 70, "offset_lag": 3, "is_future_key": True}
    results = (
        {"error_code": 0, "log_dir": "/d", "topics": ({"name": "a", "partitions": (partition,)},),
         "total_bytes": 9, "usable_bytes": 5, "is_cordoned": True},
        {"error_code": 56, "log_dir": "/e", "topics": (),
         "total_bytes": -1, "usable_bytes": -1, "is_cordoned": False},
    )  # fmt: skip
    values = {"throttle_time_ms": 0, "error_code": 0, "results": results}
    response = DescribeLogDirsResponse(log_dirs=(found, failed))
    assert encode_response(LOG_DIRS, version, response) == expected(LOG_DIRS, version, values)


def test_producers() -> None:
    request = decode_request(PRODUCERS, 0, {"topics": [{"name": "a", "partition_indexes": [1, 2]}]})
    assert request == DescribeProducersRequest(partitions=PARTITIONS)
    producer = ActiveProducer(
        producer_id=1 << 40, producer_epoch=2, last_sequence=8, last_timestamp=99, transaction_start_offset=5
    )
    described = DescribedProducers(topic="a", partition=1, producers=(producer,))
    unknown = DescribedProducers(topic="a", partition=2, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message="no")
    fields = {
        "producer_id": 1 << 40, "producer_epoch": 2, "last_sequence": 8, "last_timestamp": 99,
        "coordinator_epoch": -1, "current_txn_start_offset": 5,
    }  # fmt: skip
    partitions = (
        {"partition_index": 1, "error_code": 0, "error_message": None, "active_producers": (fields,)},
        {"partition_index": 2, "error_code": 3, "error_message": "no", "active_producers": ()},
    )
    assert encode_response(PRODUCERS, 0, DescribeProducersResponse(partitions=(described, unknown))) == {
        "throttle_time_ms": 0, "topics": ({"name": "a", "partitions": partitions},),
    }  # fmt: skip
    failed = encode_response(PRODUCERS, 0, ErrorResponse(error=ErrorCode.UNKNOWN_SERVER_ERROR, message="oh"), request)
    assert [one["error_code"] for one in failed["topics"][0]["partitions"]] == [-1, -1]


def test_partitions_being_moved() -> None:
    topics = [{"name": "a", "partition_indexes": [1, 2]}]
    request = decode_request(REASSIGNMENTS, 0, {"timeout_ms": 7, "topics": topics})
    assert request == ListPartitionReassignmentsRequest(partitions=PARTITIONS)
    everything = decode_request(REASSIGNMENTS, 0, {"timeout_ms": -1, "topics": None})
    assert everything == ListPartitionReassignmentsRequest()
    assert encode_response(REASSIGNMENTS, 0, ListPartitionReassignmentsResponse()) == {
        "throttle_time_ms": 0, "error_code": 0, "error_message": None, "topics": (),
    }  # fmt: skip
    moving = OngoingReassignment(topic="a", partition=1, replicas=(1, 2), adding=(2,), removing=(1,))
    fields = {"partition_index": 1, "replicas": (1, 2), "adding_replicas": (2,), "removing_replicas": (1,)}
    answer = encode_response(REASSIGNMENTS, 0, ListPartitionReassignmentsResponse(partitions=(moving,)))
    assert answer["topics"] == ({"name": "a", "partitions": (fields,)},)

"""The APIs of transactions that brokers of a cluster ask of each other, as in `peer_apis.py`."""

from collections.abc import Iterable, Mapping
from typing import Any

from warmlog.protocol.groups import TopicPartition
from warmlog.protocol.kafka.api import API_BY_KEY
from warmlog.protocol.kafka.messages.transactions import (
    AddedPartitions,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    PartitionsOfTransaction,
)
from warmlog.protocol.kafka.peer import PeerApi
from warmlog.protocol.kafka.peer_apis import by_topic, error_of
from warmlog.protocol.transaction_requests import (
    AddedPartition,
    MarkersOfTransaction,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    WrittenMarkers,
)

Fields = Mapping[str, Any]

_FIRST_BATCHED = 4  # of AddPartitionsToTxn: for brokers


def _topic(one: TopicPartition) -> str:
    return one.topic


def _topics(partitions: Iterable[TopicPartition], name: str) -> tuple[dict[str, Any], ...]:
    return tuple(
        [
            {"name": topic, name: tuple([one.partition for one in found])}
            for topic, found in by_topic(sorted(partitions, key=_topic), _topic)
        ]
    )


def _results(topics: Iterable[Fields], partitions: str, index: str, error: str) -> tuple[AddedPartition, ...]:
    return tuple(
        [
            AddedPartition(topic=topic["name"], partition=one[index], error=error_of(one[error]))
            for topic in topics
            for one in topic[partitions]
        ]
    )


# -- AddPartitionsToTxn --


def _add_fields(request: AddPartitionsToTxnRequest, _: int) -> dict[str, Any]:
    def fields(one: PartitionsOfTransaction) -> dict[str, Any]:
        return {
            "transactional_id": one.transactional_id,
            "producer_id": one.producer_id,
            "producer_epoch": one.producer_epoch,
            "verify_only": one.verify_only,
            "topics": _topics(one.partitions, "partitions"),
        }

    return {"transactions": tuple(map(fields, request.transactions))}


def _add_response(fields: Fields, _: AddPartitionsToTxnRequest, __: int) -> AddPartitionsToTxnResponse:
    found = [
        AddedPartitions(
            transactional_id=one["transactional_id"],
            partitions=_results(
                one["topic_results"], "results_by_partition", "partition_index", "partition_error_code"
            ),
        )
        for one in fields["results_by_transaction"]
    ]
    return AddPartitionsToTxnResponse(transactions=tuple(found))


ADD_PARTITIONS = PeerApi(API_BY_KEY[24], _FIRST_BATCHED, 5, _add_fields, _add_response)


# -- WriteTxnMarkers --


def _markers_fields(request: WriteTxnMarkersRequest, _: int) -> dict[str, Any]:
    def fields(one: MarkersOfTransaction) -> dict[str, Any]:
        return {
            "producer_id": one.producer_id,
            "producer_epoch": one.producer_epoch,
            "transaction_result": one.commits,
            "topics": _topics(one.partitions, "partition_indexes"),
            "coordinator_epoch": one.coordinator_epoch,
            "transaction_version": one.version,
        }

    return {"markers": tuple(map(fields, request.markers))}


def _markers_response(fields: Fields, _: WriteTxnMarkersRequest, __: int) -> WriteTxnMarkersResponse:
    found = [
        WrittenMarkers(
            producer_id=one["producer_id"],
            partitions=_results(one["topics"], "partitions", "partition_index", "error_code"),
        )
        for one in fields["markers"]
    ]
    return WriteTxnMarkersResponse(markers=tuple(found))


WRITE_MARKERS = PeerApi(API_BY_KEY[27], 1, 2, _markers_fields, _markers_response)

from collections.abc import Callable
from typing import Any

import pytest

from warmlog.cli.cluster import form, row, state_of, totals
from warmlog.protocol.response import BrokerMetadata, MetadataResponse, PartitionMetadata, TopicMetadata

Run = Callable[..., Any]


def partition(
    leader: int, replicas: tuple[int, ...], in_sync: tuple[int, ...], **more: tuple[int, ...]
) -> PartitionMetadata:
    return PartitionMetadata(partition=0, leader=leader, leader_epoch=4, replicas=replicas, in_sync=in_sync, **more)


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (partition(1, (1, 2), (2, 1)), ""),
        (partition(1, (1, 2), (1,)), "under-replicated"),
        (partition(-1, (1, 2), (1,)), "no leader"),
    ],
)
def test_a_partition_is_well_with_a_leader_and_all_replicas_in_sync(found: PartitionMetadata, state: str) -> None:
    assert state_of(found) == state


def test_what_brokers_lead_and_hold_is_counted() -> None:
    topic = TopicMetadata(name="t", partitions=(partition(1, (1, 2), (1,)), partition(2, (2, 1), (2, 1))))
    brokers = tuple([BrokerMetadata(node_id=number, host="h", port=number) for number in (1, 2)])
    found = MetadataResponse(cluster_id="c", controller=2, brokers=brokers, topics=(topic,))
    assert totals(found) == ({1: 1, 2: 1}, {1: 2, 2: 2})
    assert row(topic, topic.partitions[0]) == ("t", 0, 1, 4, "1 2", "1", "", "under-replicated")
    assert row(topic, partition(1, (1, 2, 3), (1,), eligible=(2, 3)))[4:7] == ("1 2 3", "1", "2 3")
    assert [one["state"] for one in form(found, ())["partitions"]] == ["under-replicated", "in sync"]
    assert form(found, ("other",))["partitions"] == []


def test_a_broker_by_itself_is_a_cluster_of_one(run: Run) -> None:
    run("topic", "create", "alone", "--partitions", 2)
    described = run("cluster", "describe", "--topic", "alone", "--json").json()[0]
    (broker,) = described["brokers"]
    assert described["controller"] == broker["node_id"]
    assert [one["in_sync"] for one in described["partitions"]] == [[broker["node_id"]]] * 2
    shown = run("cluster", "describe", "--topic", "alone").out.decode()
    assert "2 partitions, 0 without a leader or under-replicated" in shown
    run("topic", "delete", "alone")


def test_a_topic_that_does_not_exist_is_a_failure(run: Run) -> None:
    failed = run("cluster", "describe", "--topic", "absent")
    assert failed.status == 1
    assert "no such topic: absent" in failed.err

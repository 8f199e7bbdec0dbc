"""Data directories of the brokers of a cluster: replicas that others lead are shown and moved as well."""

import os
from typing import Any

import trio

from tests.broker.clustered.three_brokers import DIRECTORIES, IDS, LIMIT_S, NONE, Cluster, topic
from warmlog.protocol.errors import ErrorCode


async def places(cluster: Cluster, asked: Any, *, at: int) -> dict[str, int]:
    """Return the size of the topic's first partition by data directory."""
    reply = await cluster.clients[at].ask("DescribeLogDirs", topics=asked)
    return {
        os.path.basename(directory["log_dir"]).rpartition("-")[2]: one["partition_size"]
        for directory in reply["results"]
        for each in directory["topics"]
        for one in each["partitions"]
        if each["name"] == "t" and not one["is_future_key"]
    }


async def move(cluster: Cluster, path: str, *, at: int) -> int:
    asked = [{"path": path, "topics": [{"name": "t", "partitions": [0]}]}]
    reply = await cluster.clients[at].ask("AlterReplicaLogDirs", dirs=asked)
    return int(reply["results"][0]["partitions"][0]["error_code"])


async def path_of(cluster: Cluster, name: str, *, at: int) -> str:
    reply = await cluster.clients[at].ask("DescribeLogDirs", topics=[])
    (found,) = [one["log_dir"] for one in reply["results"] if one["log_dir"].endswith(f"-{name}")]
    return str(found)


async def test_every_replica_is_described_where_it_is(cluster: Cluster) -> None:
    await cluster.create(topic("t", [(1, 2)]))
    await cluster.produce("t", b"one")
    for asked in (None, [{"topic": "t", "partitions": [0]}]):
        sizes = [sum((await places(cluster, asked, at=at)).values()) for at in IDS]
        assert sizes[0] == sizes[1] > 0
        assert sizes[2] == 0


async def test_a_follower_moves_to_another_directory_and_goes_on(cluster: Cluster) -> None:
    await cluster.create(topic("t", [(1, 2)]))
    await cluster.produce("t", b"one")
    (old,) = await places(cluster, None, at=2)
    (new,) = set(DIRECTORIES) - {old}
    assert await move(cluster, await path_of(cluster, new, at=2), at=2) == NONE
    with trio.fail_after(LIMIT_S):
        while set(await places(cluster, None, at=2)) != {new}:
            pass
    await cluster.produce("t", b"two")
    assert (await cluster.partition("t"))["isr_nodes"] == (1, 2)
    assert (await places(cluster, None, at=2))[new] == sum((await places(cluster, None, at=1)).values())


async def test_a_replica_that_is_elsewhere_cannot_be_moved(cluster: Cluster) -> None:
    await cluster.create(topic("t", [(1, 2)]))
    await cluster.until("t", lambda one: True, at=3)
    path = await path_of(cluster, "x", at=3)
    assert await move(cluster, path, at=3) == ErrorCode.REPLICA_NOT_AVAILABLE

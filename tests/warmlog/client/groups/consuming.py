"""Settings of quick groups, and what tests of groups do with streams."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from warmlog.client import AsyncClient, GroupRecordStream

SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "group.consumer.assignment.interval.ms": 0,
    "group.consumer.min.heartbeat.interval.ms": 50,
    "group.consumer.heartbeat.interval.ms": 50,
    "group.consumer.min.session.timeout.ms": 100,
    "group.consumer.session.timeout.ms": 20_000,
    "offsets.topic.num.partitions": 2,
}
QUICK: dict[str, Any] = {"session_timeout_s": 0.9, "rebalance_timeout_s": 10}
# for members that must stay in the group even if the machine stalls
PATIENT = QUICK | {"session_timeout_s": 3}
Offsets = dict[tuple[str, int], int]


async def fill(client: AsyncClient, topic: str, *, partitions: int = 1, count: int = 10) -> None:
    """Produce values "0", "1" ... to the partitions in turn."""
    await client.create_topic(topic, partitions=partitions)
    for partition in range(partitions):
        values = [b"%d" % number for number in range(partition, count, partitions)]
        await client.produce_many(topic, values, partition=partition)


async def committed(client: AsyncClient, group: str) -> Offsets:
    (described,) = await client.describe_groups(group)
    return {(one.topic, one.partition): one.offset for one in described.positions}


async def take(stream: GroupRecordStream, count: int) -> list[int]:
    with anyio.fail_after(20):
        return [int((await anext(stream)).value or b"") for _ in range(count)]


async def until_empty(client: AsyncClient, group: str) -> None:
    async def is_empty() -> bool:
        return [one.state for one in await client.list_groups() if one.group == group] == ["Empty"]

    await until(is_empty)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Repeat until the condition holds; each check is a request to the broker."""
    with anyio.fail_after(20):
        while not await condition():
            await checkpoint()

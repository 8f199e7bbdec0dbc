"""Members of consumer groups (KIP-848): what they keep, give up and lose, and which type of group they join."""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from confluent_kafka import Consumer

from tests.warmlog.client.both_loops import on_both_loops
from tests.warmlog.client.groups.consuming import QUICK, SETTINGS, committed, fill, take, until
from warmlog import GroupMovedOnError, UnknownGroupError, connect
from warmlog.client import AsyncClient, GroupRecordStream
from warmlog.client.groups import consumer_member, membership
from warmlog.client.groups.coordinator_link import CoordinatorLink
from warmlog.protocol.groups import NO_GENERATION
from warmlog.protocol.native.groups import HeartbeatConsumerGroupRequest, HeartbeatConsumerGroupResponse
from warmlog.testing import Broker

PROMPT = {"group.consumer.session.timeout.ms": 1500}
KILLED = """
import sys
from warmlog import Client
with Client(sys.argv[1]) as client, client.consume(sys.argv[2], group=sys.argv[3], commit_interval_s=0.01) as stream:
    for record in stream:
        print(record.partition, record.offset, flush=True)
"""


class Diary(list[tuple[str, list[int]]]):
    """What the callbacks were called with."""

    def options(self) -> dict[str, Any]:
        """Return callbacks that write the diary."""
        return {f"on_{event}": self._writer(event) for event in ("assigned", "revoked", "lost")}

    def _writer(self, event: str) -> Any:
        def write(partitions: Sequence[tuple[str, int]]) -> None:
            self.append((event, sorted(partition for _, partition in partitions)))

        return write


@pytest.fixture(scope="module")
def prompt_broker() -> Iterator[Broker]:
    with Broker(settings=SETTINGS | PROMPT) as broker:
        yield broker


@pytest.fixture(scope="module")
def strict_broker() -> Iterator[Broker]:
    """A broker that converts no group that has members."""
    with Broker(settings=SETTINGS | {"group.consumer.migration.policy": "disabled"}) as broker:
        yield broker


async def read_until(
    stream: GroupRecordStream, condition: Any, into: list[tuple[int, int]] | None = None
) -> list[tuple[int, int]]:
    """Read until a condition holds, and return the partition and offset of each record; add them to `into`."""
    read = [] if into is None else into
    with anyio.fail_after(60):
        while not condition():
            with anyio.move_on_after(0.05):
                record = await anext(stream)
                read.append((record.partition, record.offset))
    return read


async def member_types(client: AsyncClient, group: str) -> tuple[str, int]:
    (described,) = await client.describe_groups(group)
    (listed,) = [each for each in await client.list_groups() if each.group == group]
    return listed.type, len(described.members)


@on_both_loops
async def test_partitions_that_a_member_keeps_are_read_on(module_broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    diary, second = Diary(), Diary()
    async with connect(module_broker.native) as client, connect(module_broker.native) as other:
        await fill(client, topic, partitions=4, count=40)
        async with client.consume(topic, group=group, **diary.options()) as stream:
            read = await read_until(stream, lambda: sum(stream.positions.values()) >= 8)
            before = stream.reader._stream
            async with (
                other.consume(topic, group=group, **second.options()) as follower,
                anyio.create_task_group() as tasks,
            ):

                async def follow() -> None:
                    read.extend(await read_until(follower, lambda: sum(map(len, (p for _, p in second))) >= 2))

                tasks.start_soon(follow)
                read += await read_until(stream, lambda: len(stream.positions) == 2)
                kept = set(stream.positions)
                assert stream.reader._stream is before  # the same fetches continue
            read += await read_until(stream, lambda: len(stream.positions) == 4)
            assert stream.reader._stream is before
            read += await read_until(stream, lambda: sum(stream.positions.values()) == 40)
        assert len(read) == len(set(read)) == 40
        assert [event for event, _ in diary] == ["assigned", "revoked", "assigned", "revoked"]
        assert diary[1][1] == diary[2][1] == sorted({0, 1, 2, 3} - {partition for _, partition in kept})
        assert committed_all(await committed(client, group)) == 40


def committed_all(offsets: dict[tuple[str, int], int]) -> int:
    return sum(offsets.values())


@on_both_loops
async def test_records_that_were_fetched_stay_in_order_when_another_partition_moves(
    module_broker: Broker, names: tuple[str, str]
) -> None:
    topic, group = names
    async with connect(module_broker.native) as client, connect(module_broker.native) as other:
        await fill(client, topic, partitions=2, count=200)
        async with client.consume(topic, group=group) as stream:
            await take(stream, 1)  # the rest of the list is at hand
            async with anyio.create_task_group() as tasks:

                async def follow() -> None:
                    async with other.consume(topic, group=group) as follower:
                        await read_until(follower, lambda: bool(follower.positions))

                tasks.start_soon(follow)
                read = await read_until(stream, lambda: len(stream.positions) == 1)
                ((_, kept),) = stream.positions
            read += await read_until(stream, lambda: sum(stream.positions.values()) >= 200)
        of_kept = [offset for partition, offset in read if partition == kept]
        assert of_kept == sorted(set(of_kept))
        assert of_kept[-1] == 99


@on_both_loops
async def test_a_killed_members_partitions_are_taken_over(prompt_broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(prompt_broker.native) as client:
        await fill(client, topic, partitions=4, count=400)
        arguments = [sys.executable, "-c", KILLED, prompt_broker.native, topic, group]
        killed = await anyio.open_process(arguments, stdout=subprocess.PIPE)
        async with killed:
            assert killed.stdout is not None
            with anyio.fail_after(60):
                first = await killed.stdout.receive()
            killed.kill()
        assert first
        async with client.consume(topic, group=group) as stream:
            start = await read_until(stream, lambda: len(stream.positions) == 4)
            read = start + await read_until(stream, lambda: sum(stream.positions.values()) == 400)
        for partition in range(4):  # from a committed offset to the end, each record once
            offsets = [offset for each, offset in read if each == partition]
            assert offsets == list(range(100 - len(offsets), 100))


@on_both_loops
async def test_a_member_that_does_not_give_up_its_partitions_in_time_loses_them(
    module_broker: Broker, names: tuple[str, str]
) -> None:
    topic, group = names
    diary = Diary()
    async with connect(module_broker.native) as client, connect(module_broker.native) as other:
        await fill(client, topic, partitions=2, count=2)
        options: dict[str, Any] = diary.options() | {"rebalance_timeout_s": 0.5}
        async with client.consume(topic, group=group, auto_commit=False, **options) as stream:
            await take(stream, 2)
            async with other.consume(topic, group=group, auto_commit=False) as follower:
                await take(follower, 1)  # while the first works on its record
                with pytest.raises(GroupMovedOnError):
                    await stream.commit()

                async def is_fenced() -> bool:
                    await checkpoint()
                    return stream.reader.membership.generation == NO_GENERATION

                await until(is_fenced)  # the member learns it by its next heartbeat
                await read_until(stream, lambda: len(diary) >= 3)
        assert diary[:2] == [("assigned", [0, 1]), ("lost", [0, 1])]


@on_both_loops
async def test_a_new_member_joins_classic_members_with_their_protocol(
    strict_broker: Broker, names: tuple[str, str]
) -> None:
    topic, group = names
    async with connect(strict_broker.native) as client, connect(strict_broker.native) as other:
        await fill(client, topic, partitions=2)
        async with client.consume(topic, group=group, group_protocol="classic", **QUICK) as stream:
            async with anyio.create_task_group() as tasks:

                async def follow() -> None:
                    async with other.consume(topic, group=group, **QUICK) as follower:
                        await read_until(follower, lambda: bool(follower.positions))
                        assert await member_types(other, group) == ("classic", 2)

                tasks.start_soon(follow)
                await read_until(stream, lambda: len(stream.positions) == 1)
            strict = other.consume(topic, group=group, group_protocol="consumer")
            with pytest.raises(UnknownGroupError, match="classic group that has members"):
                await strict.reader.open()
        async with client.consume(topic, group=group) as stream:
            assert await member_types(client, group) == ("consumer", 1)


@on_both_loops
async def test_without_groups_of_the_consumer_protocol_a_member_is_classic(
    module_broker: Broker, names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group = names
    monkeypatch.setattr(consumer_member, "FIRST_WITH_CONSUMER_GROUPS", 1000)
    async with connect(module_broker.native) as client:
        await fill(client, topic)
        async with client.consume(topic, group=group) as stream:
            await take(stream, 10)
            assert await member_types(client, group) == ("classic", 1)


@on_both_loops
async def test_members_of_both_protocols_share_a_group(module_broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(module_broker.native) as client, connect(module_broker.native) as other:
        await fill(client, topic, partitions=2)
        async with client.consume(topic, group=group, group_protocol="classic", **QUICK) as stream:
            async with anyio.create_task_group() as tasks:

                async def follow() -> None:
                    async with other.consume(topic, group=group, **QUICK) as follower:
                        await read_until(follower, lambda: bool(follower.positions))
                        assert await member_types(other, group) == ("consumer", 2)

                tasks.start_soon(follow)
                await read_until(stream, lambda: len(stream.positions) == 1)
            await read_until(stream, lambda: len(stream.positions) == 2)
            assert await member_types(client, group) == ("classic", 1)


@on_both_loops
async def test_a_static_member_waits_until_its_predecessor_has_left(
    module_broker: Broker, names: tuple[str, str]
) -> None:
    topic, group = names
    async with connect(module_broker.native) as client, connect(module_broker.native) as other:
        await fill(client, topic)
        read: list[int] = []

        async def follow() -> None:
            async with other.consume(topic, group=group, instance_id="i") as follower:
                read.extend(await take(follower, 6))

        async with anyio.create_task_group() as tasks, client.consume(topic, group=group, instance_id="i") as stream:
            read += await take(stream, 4)
            tasks.start_soon(follow)
        assert read == list(range(10))


@on_both_loops
@pytest.mark.parametrize("learns_last", [False, True])
async def test_until_the_end_a_second_member_waits_for_its_share(
    module_broker: Broker, names: tuple[str, str], monkeypatch: pytest.MonkeyPatch, learns_last: bool
) -> None:
    topic, group = names
    shared: list[int] = []
    followers: list[str] = []
    is_described, request = anyio.Event(), CoordinatorLink.request
    settled_partitions = membership.settled_partitions

    async def request_by_turns(link: CoordinatorLink, message: Any, *arguments: Any, **named: Any) -> Any:
        reply = await request(link, message, *arguments, **named)
        if isinstance(reply, HeartbeatConsumerGroupResponse) and reply.partitions and message.member_id in followers:
            await is_described.wait()
        return reply

    async def settled_by_turns(*arguments: Any) -> Any:
        settled = await settled_partitions(*arguments)
        if settled is not None:
            is_described.set()
        return settled

    if learns_last:  # it has its share before it receives the answer that says so
        monkeypatch.setattr(CoordinatorLink, "request", request_by_turns)
        monkeypatch.setattr(membership, "settled_partitions", settled_by_turns)
    async with connect(module_broker.native) as client, connect(module_broker.native) as other:
        await fill(client, topic, partitions=2)
        stream = client.consume(topic, group=group, auto_commit=False)
        async with stream, anyio.create_task_group() as tasks:

            async def follow() -> None:
                async with other.consume(topic, group=group, until_end=True, auto_commit=False) as follower:
                    followers.append(follower.member_id)
                    shared.extend([record.offset async for record in follower])
                tasks.cancel_scope.cancel()

            tasks.start_soon(follow)
            await read_until(stream, lambda: False)
        assert shared == list(range(5))


@on_both_loops
async def test_a_transaction_commits_with_the_members_epoch(module_broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(module_broker.native) as client:
        await fill(client, topic)
        async with client.consume(topic, group=group, auto_commit=False) as stream:
            await take(stream, 3)
            async with client.transaction(f"id-{group}") as transaction:
                await transaction.produce(f"out-{topic}", value=b"x")
                await transaction.commit_offsets(stream)
            assert await committed(client, group) == {(topic, 0): 3}


@on_both_loops
async def test_topics_that_are_created_later_match_a_pattern(module_broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(module_broker.native) as client:
        await fill(client, f"{topic}-a", count=1)
        pattern = re.compile(re.escape(topic) + "-.")
        async with client.consume(pattern, group=group, topics_interval_s=0.1) as stream:
            assert await take(stream, 1) == [0]
            await fill(client, f"{topic}-b", count=1)
            assert await take(stream, 1) == [0]
            assert set(stream.positions) == {(f"{topic}-a", 0), (f"{topic}-b", 0)}


@on_both_loops
async def test_members_with_confluents_client_share_the_partitions(
    module_broker: Broker, names: tuple[str, str]
) -> None:
    topic, group = names
    read: list[tuple[int, int]] = []
    options = {"group.id": group, "group.protocol": "consumer", "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": module_broker.kafka, **options})

    deadline = time.monotonic() + 30  # a thread cannot be cancelled

    def poll(condition: Callable[[], bool]) -> None:
        while not condition() and time.monotonic() < deadline:
            read.extend((m.partition(), m.offset()) for m in consumer.consume(10, timeout=0.05) if not m.error())

    async with connect(module_broker.native) as client:
        await fill(client, topic, partitions=4, count=40)
        consumer.subscribe([topic])
        await anyio.to_thread.run_sync(poll, lambda: len(read) >= 20)
        async with client.consume(topic, group=group) as stream, anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, poll, lambda: len(read) >= 44)  # librdkafka revokes in poll
            await read_until(stream, lambda: len(stream.positions) == 2, read)
            for partition in range(4):
                await client.produce(topic, value=b"x", partition=partition)

            async def is_shared() -> bool:
                (described,) = await client.describe_groups(group)
                return [len(member.partitions) for member in described.members] == [2, 2]

            await until(is_shared)
            await read_until(stream, lambda: len(read) >= 44, read)
        consumer.close()
    assert len(read) == len(set(read)) == 44


async def _leave(client: AsyncClient, group: str, member_id: str) -> None:
    request = HeartbeatConsumerGroupRequest(group=group, member_id=member_id, member_epoch=-1)
    await client._cluster.ask(request, HeartbeatConsumerGroupResponse)


@on_both_loops
async def test_a_removed_member_joins_again_and_reads_from_the_committed_offsets(
    module_broker: Broker, names: tuple[str, str]
) -> None:
    topic, group = names
    async with connect(module_broker.native) as client:
        await fill(client, topic)
        async with client.consume(topic, group=group, auto_commit=False) as stream:
            await take(stream, 2)
            await stream.commit()
            await take(stream, 2)
            await _leave(client, group, stream.member_id)

            async def is_lost() -> bool:
                return bool(stream.reader.membership.must_join)

            await until(is_lost)
            assert await take(stream, 8) == list(range(2, 10))
            await stream.commit()
        assert await committed(client, group) == {(topic, 0): 10}


@on_both_loops
async def test_three_members_read_each_record_once_across_a_restart_of_the_broker(names: tuple[str, str]) -> None:
    topic, group = names
    read: list[tuple[int, int]] = []
    with Broker(settings=SETTINGS) as broker:
        async with connect(broker.native) as client:
            await fill(client, topic, partitions=6, count=60)
            shares = dict.fromkeys("abc", 0)
            done = anyio.Event()

            async def member(name: str) -> None:
                async with connect(broker.native) as own, own.consume(topic, group=group) as stream:
                    while not done.is_set():
                        with anyio.move_on_after(0.05):
                            record = await anext(stream)
                            read.append((record.partition, record.offset))
                        shares[name] = len(stream.positions)

            async def are_shared(count: int) -> bool:
                await checkpoint()
                return list(shares.values()) == [2, 2, 2] and len(read) >= count

            async with anyio.create_task_group() as tasks:
                for name in shares:
                    tasks.start_soon(member, name)
                await until(partial(are_shared, 60))
                await anyio.to_thread.run_sync(broker.restart)
                for partition in range(6):
                    await client.produce_many(topic, [b"x"] * 10, partition=partition)
                await until(partial(are_shared, 120))
                done.set()
            assert len(read) == len(set(read)) == 120
            assert committed_all(await committed(client, group)) == 120

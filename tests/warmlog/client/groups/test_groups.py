"""Groups through the client: real sockets, real files, both event loops.

Members join at once (`group.initial.rebalance.delay.ms` is 0) and learn of a rebalance within a third of a short
session timeout.
"""

import gc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from protocol.errors import ErrorCode
from tests.warmlog.client.both_loops import on_both_loops
from warmlog import (
    BrokerError,
    Client,
    ClosedError,
    GroupMovedOnError,
    GroupNotEmptyError,
    Message,
    UnknownGroupError,
    UnknownTopicError,
    connect,
)
from warmlog.client import AsyncClient, GroupRecordStream
from warmlog.testing import Broker

SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "offsets.topic.num.partitions": 2,
}
QUICK: dict[str, Any] = {"session_timeout_s": 0.9, "rebalance_timeout_s": 10}
# for members that must stay in the group even if the machine stalls
PATIENT = QUICK | {"session_timeout_s": 3}
Offsets = dict[tuple[str, int], int]


@pytest.fixture(scope="module")
def module_broker() -> Iterator[Broker]:
    with Broker(settings=SETTINGS) as broker:
        yield broker


@pytest.fixture
def names(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Names of a topic and a group for this test only, in the module's broker."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    return f"t-{name}", f"g-{name}"


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


@on_both_loops
async def test_a_group_continues_at_its_committed_offsets(module_broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(module_broker.native) as client:
        await fill(client, topic)
        async with client.consume(topic, group=group) as stream:
            assert await take(stream, 4) == [0, 1, 2, 3]
            assert stream.positions == {(topic, 0): 4}
            assert stream.member_id
        assert await committed(client, group) == {(topic, 0): 4}
        async with client.consume(topic, group=group) as stream:
            assert await take(stream, 6) == [4, 5, 6, 7, 8, 9]
        async with client.consume(topic, "beginning", group=group, until_end=True) as stream:
            assert [record async for record in stream] == []
        await client.delete_group(group)


@on_both_loops
async def test_a_record_whose_processing_failed_is_read_again(module_broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(module_broker.native) as client:
        await fill(client, topic)
        with pytest.raises(ZeroDivisionError):
            async with client.consume(topic, group=group) as stream:
                async for record in stream:
                    1 // (record.offset - 3)
        assert await committed(client, group) == {(topic, 0): 3}
        async for record in client.consume(
            topic, group=group
        ):  # garbage collected: the last record does not count as processed
            assert record.offset == 3
            break
        await until_empty(client, group)
        async with client.consume(topic, group=group) as stream:
            assert (await anext(stream)).offset == 3
        await client.delete_group(group)


async def until_empty(client: AsyncClient, group: str) -> None:
    async def is_empty() -> bool:
        return [one.state for one in await client.list_groups() if one.group == group] == ["Empty"]

    await until(is_empty)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Repeat until the condition holds; each check is a request to the broker."""
    with anyio.fail_after(20):
        while not await condition():
            await checkpoint()


@on_both_loops
async def test_a_group_without_committed_offsets_begins_at_its_start(
    module_broker: Broker, names: tuple[str, str]
) -> None:
    topic, group = names
    async with connect(module_broker.native) as client:
        await fill(client, topic, partitions=2)
        async with client.consume(topic, "end", group=group) as stream:
            assert stream.positions == {(topic, 0): 5, (topic, 1): 5}
            await client.produce(topic, value=b"10", partition=1)
            assert await take(stream, 1) == [10]
        assert await committed(client, group) == {(topic, 0): 5, (topic, 1): 6}  # including the idle partition
        await client.delete_group(group)


@on_both_loops
async def test_a_list_is_committed_as_a_whole_or_up_to_a_record(module_broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(module_broker.native) as client:
        await fill(client, topic)
        async with client.consume_batches(topic, group=group) as stream:
            assert len(await anext(stream)) == 10
            await stream.stop_within(7)
        assert await committed(client, group) == {(topic, 0): 7}
        async with client.consume_batches(topic, group=group, until_end=True) as stream:
            assert [len(records) async for records in stream] == [3]
        assert await committed(client, group) == {(topic, 0): 10}
        await client.delete_group(group)


@on_both_loops
async def test_commits_on_demand(module_broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(module_broker.native) as client:
        await fill(client, topic)
        async with client.consume(topic, group=group, auto_commit=False) as stream:
            await take(stream, 4)
            assert await committed(client, group) == {(topic, 0): -1}
            await stream.commit()
            assert await committed(client, group) == {(topic, 0): 4}
            await stream.commit({(topic, 0): 2})
            assert await committed(client, group) == {(topic, 0): 2}
            await take(stream, 3)
        assert await committed(client, group) == {(topic, 0): 2}
        await client.delete_group(group)


@on_both_loops
async def test_commits_on_an_interval(module_broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(module_broker.native) as client:
        await fill(client, topic)
        async with client.consume(topic, group=group, commit_interval_s=0.05, **QUICK) as stream:
            await take(stream, 4)

            async def has_committed() -> bool:
                return await committed(client, group) == {(topic, 0): 3}  # the fourth record is being processed

            await until(has_committed)
        await client.delete_group(group)


class Team:
    """Members of one group that record what they are given."""

    def __init__(self, broker: Broker, topic: str, group: str, tasks: Any) -> None:
        self._broker, self._topic, self._group, self._tasks = broker, topic, group, tasks
        self.seen: list[tuple[str, int, int]] = []  # member, partition, offset
        self._changed = anyio.Event()

    @asynccontextmanager
    async def member(self, name: str, **options: Any) -> AsyncIterator[Callable[[], None]]:
        """Run a member with its own client; it leaves at the end, or dies when the yielded function is called."""
        scope = anyio.CancelScope()
        self._tasks.start_soon(self._consume, name, scope, options)
        try:
            yield scope.cancel
        finally:
            scope.cancel()

    async def _consume(self, name: str, scope: anyio.CancelScope, options: dict[str, Any]) -> None:
        with scope:
            async with (
                connect(self._broker.native, client=name) as client,
                client.consume(self._topic, group=self._group, **(QUICK | options)) as stream,
            ):
                async for record in stream:
                    self.seen.append((name, record.partition, record.offset))
                    self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(20):
            while not condition():
                self._changed = anyio.Event()
                await self._changed.wait()

    def owners(self, *, since: int) -> dict[int, set[str]]:
        """Return which members were given records of each partition."""
        found: dict[int, set[str]] = {}
        for name, partition, _ in self.seen[since:]:
            found.setdefault(partition, set()).add(name)
        return found


@on_both_loops
async def test_each_record_is_read_once_while_members_join_and_leave(
    module_broker: Broker, names: tuple[str, str]
) -> None:
    topic, group = names
    async with connect(module_broker.native) as client, anyio.create_task_group() as tasks:
        await client.create_topic(topic, partitions=4)
        team = Team(module_broker, topic, group, tasks)
        produced = 0

        async def produce() -> None:
            nonlocal produced
            for partition in range(4):
                await client.produce(topic, value=b"x", partition=partition)
            produced += 1

        async def shared_by(*members: str) -> None:
            """Wait until these members together read all partitions, and each of them reads."""
            with anyio.fail_after(20):
                while True:
                    since = len(team.seen)
                    await produce()
                    await team.until(lambda: len(team.seen) >= 4 * produced)
                    owners = team.owners(since=since)
                    if len(owners) == 4 and set().union(*owners.values()) == set(members):
                        return

        async with team.member("one", **PATIENT):
            await shared_by("one")
            async with team.member("two", **PATIENT):
                await shared_by("one", "two")
                async with team.member("three", **PATIENT):
                    await shared_by("one", "two", "three")
                await shared_by("one", "two")
            await shared_by("one")
        counts = Counter((partition, offset) for _, partition, offset in team.seen)
        doubled = [(number, one) for number, one in enumerate(team.seen) if counts[one[1:]] > 1]
        assert not doubled, team.seen[doubled[0][0] - 12 : doubled[-1][0] + 9]
        assert len(counts) == 4 * produced
    async with connect(module_broker.native) as client:
        await until_empty(client, group)
        assert set((await committed(client, group)).values()) == {produced}
        await client.delete_group(group)


@on_both_loops
async def test_without_commits_only_reassigned_partitions_are_read_again(
    module_broker: Broker, names: tuple[str, str]
) -> None:
    topic, group = names
    async with connect(module_broker.native) as client, anyio.create_task_group() as tasks:
        await fill(client, topic, partitions=2, count=2)
        team = Team(module_broker, topic, group, tasks)
        async with team.member("a", auto_commit=False):
            await team.until(lambda: len(team.seen) == 2)
            async with team.member("b", auto_commit=False):
                await team.until(lambda: len(team.seen) == 3)
                for partition in (0, 1):
                    await client.produce(topic, value=b"x", partition=partition)
                await team.until(lambda: len(team.seen) == 5)
        assert team.seen[2] == ("b", 1, 0)
        assert set(team.seen[3:]) == {("a", 0, 1), ("b", 1, 1)}


@on_both_loops
async def test_commits_are_retried_across_a_restart(names: tuple[str, str]) -> None:
    topic, group = names
    with Broker(settings=SETTINGS) as broker:
        async with connect(broker.native) as client:
            await fill(client, topic)
            async with client.consume(topic, group=group, auto_commit=False, session_timeout_s=20) as stream:
                await take(stream, 4)
                await anyio.to_thread.run_sync(broker.restart)
                await stream.commit()
                assert await committed(client, group) == {(topic, 0): 4}


@on_both_loops
async def test_a_member_without_partitions_waits_for_an_assignment(
    module_broker: Broker, names: tuple[str, str]
) -> None:
    topic, group = names
    async with connect(module_broker.native) as client, anyio.create_task_group() as tasks:
        await fill(client, topic, count=1)
        team = Team(module_broker, topic, group, tasks)
        async with team.member("one") as leave_one:
            await team.until(lambda: len(team.seen) == 1)
            async with team.member("two"):

                async def has_two() -> bool:
                    return len((await client.describe_groups(group))[0].members) == 2

                await until(has_two)
                leave_one()
                await client.produce(topic, value=b"1")
                await team.until(lambda: len(team.seen) == 2)
                assert team.seen[1] == ("two", 0, 1)


@on_both_loops
async def test_an_added_partition_is_assigned(module_broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(module_broker.native) as client:
        await fill(client, topic, count=1)
        async with client.consume(topic, group=group, **QUICK) as stream:
            assert await take(stream, 1) == [0]
            await client.alter_topic(topic, partitions=2)  # drops the cached metadata, as after five minutes
            await client.produce(topic, value=b"1", partition=1)
            assert await take(stream, 1) == [1]
            assert stream.positions == {(topic, 0): 1, (topic, 1): 1}
        await client.delete_group(group)


@on_both_loops
async def test_a_cancelled_step_consumes_nothing_and_joining_continues(
    module_broker: Broker, names: tuple[str, str]
) -> None:
    topic, group = names
    async with connect(module_broker.native) as client:
        await fill(client, topic)
        stream = client.consume(topic, group=group)
        seen: list[int] = []
        patience_s = 0.0001  # too short for any step at first; grows until it suffices
        with anyio.fail_after(20):
            while len(seen) < 10:
                with anyio.move_on_after(patience_s):
                    seen.append((await anext(stream)).offset)
                patience_s *= 1.2
        assert seen == list(range(10))
        await stream.aclose()
        await client.delete_group(group)


@on_both_loops
async def test_a_static_member_gets_its_partitions_back(module_broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(module_broker.native) as client:
        await fill(client, topic)
        async with client.consume(topic, group=group, instance_id="i", session_timeout_s=20) as stream:
            await take(stream, 4)
        (described,) = await client.describe_groups(group)
        assert [member.instance_id for member in described.members] == ["i"]  # it may rejoin
        async with client.consume(topic, group=group, instance_id="i", session_timeout_s=20) as stream:
            assert await take(stream, 1) == [4]
            (again,) = await client.describe_groups(group)
        assert len(again.members) == 1


@on_both_loops
async def test_a_member_with_the_same_instance_id_replaces_the_first(
    module_broker: Broker, names: tuple[str, str]
) -> None:
    topic, group = names
    async with connect(module_broker.native) as client, connect(module_broker.native) as other:
        await fill(client, topic)
        stream = client.consume(topic, group=group, instance_id="i", **QUICK)
        await take(stream, 10)
        async with other.consume(topic, group=group, instance_id="i", **QUICK) as follower:
            with anyio.fail_after(20), pytest.raises(GroupMovedOnError) as caught:
                await anext(stream)
            assert caught.value.code is ErrorCode.FENCED_INSTANCE_ID
            assert follower.member_id


@on_both_loops
async def test_a_group_survives_a_broker_restart(names: tuple[str, str]) -> None:
    topic, group = names
    with Broker(settings=SETTINGS) as broker:
        async with connect(broker.native) as client:
            await fill(client, topic)
            async with client.consume(topic, group=group, **QUICK) as stream:
                assert await take(stream, 4) == [0, 1, 2, 3]
                await anyio.to_thread.run_sync(broker.restart)
                await client.produce(topic, value=b"10")
                assert await take(stream, 7) == [4, 5, 6, 7, 8, 9, 10]
            assert await committed(client, group) == {(topic, 0): 11}


@on_both_loops
async def test_commits_of_a_removed_member_are_rejected(module_broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(module_broker.native) as client:
        await fill(client, topic)
        stream = client.consume(topic, group=group, auto_commit=False, **QUICK)
        with pytest.raises(GroupMovedOnError):
            await stream.commit({(topic, 0): 1})
        await take(stream, 1)
        await stream.aclose()
        with pytest.raises(GroupMovedOnError):
            await stream.commit()
        await client.delete_group(group)


@on_both_loops
async def test_groups_are_listed_described_altered_and_deleted(module_broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(module_broker.native, client="me") as client:
        await fill(client, topic, partitions=2)
        await client.commit_offsets(group, {(topic, 0): 2})
        async with client.consume(topic, group=group) as stream:
            (described,) = await client.describe_groups(group)
            assert (described.state, described.protocol_type, described.protocol) == ("Stable", "consumer", "range")
            (member,) = described.members
            assert (member.member_id, member.client_id, member.topics) == (stream.member_id, "me", (topic,))
            assert [(one.partition, one.offset, one.high_watermark, one.lag) for one in described.positions] == [
                (0, 2, 5, 3), (1, -1, 5, None),
            ]  # fmt: skip
            assert {one.member_id for one in described.positions} == {stream.member_id}
            assert group in [one.group for one in await client.list_groups(states=["stable"])]
            with pytest.raises(GroupNotEmptyError):
                await client.commit_offsets(group, {(topic, 0): 0})
            with pytest.raises(GroupNotEmptyError):
                await client.delete_group(group)
            with pytest.raises(BrokerError) as caught:
                await client.delete_offsets(group, [(topic, 0)])
            assert caught.value.code is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        assert group in [one.group for one in await client.list_groups(states=["Empty"])]
        await client.delete_offsets(group, [(topic, 0)])
        assert await committed(client, group) == {(topic, 1): 0}
        await client.delete_group(group)
        for ask in (client.describe_groups, client.delete_group):
            with pytest.raises(UnknownGroupError, match=group):
                await ask(group)


@on_both_loops
async def test_a_missing_topic_is_an_error_or_is_created(module_broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(module_broker.native) as client:
        with pytest.raises(UnknownTopicError):
            await anext(client.consume(topic, group=group, auto_create=False))
        async with client.consume(topic, group=group) as stream:
            assert stream.positions == {(topic, 0): 0}
        await client.delete_group(group)


@on_both_loops
async def test_a_client_that_is_cancelled_leaves_its_groups(module_broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(module_broker.native) as looker:
        await fill(looker, topic)
        with anyio.CancelScope() as scope:
            async with connect(module_broker.native) as client:
                async for record in client.consume(topic, group=group):
                    if record.offset == 5:
                        scope.cancel()
                        await checkpoint()
        await until_empty(looker, group)
        assert await committed(looker, group) == {(topic, 0): 5}
        await looker.delete_group(group)


def test_a_blocking_client_consumes_in_a_group(module_broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    with Client(module_broker.native) as client:
        client.produce_many(topic, (Message(b"%d" % number) for number in range(10)))
        with client.consume(topic, group=group) as stream:
            assert [next(stream).offset for _ in range(4)] == [0, 1, 2, 3]
            stream.commit()
            assert [one.offset for one in client.describe_groups(group)[0].positions] == [4]
            assert next(stream).offset == 4
        with client.consume(topic, group=group, until_end=True) as stream:
            assert stream.positions == {(topic, 0): 5}
            assert [record.offset for record in stream] == [5, 6, 7, 8, 9]
        with pytest.raises(ZeroDivisionError), client.consume(topic, group=group) as stream:
            client.produce(topic, value=b"10")
            for record in stream:
                1 // (record.offset - 10)
        assert [one.offset for one in client.describe_groups(group)[0].positions] == [10]
        with client.consume(topic, group=group, until_end=True) as stream:
            assert [len(records) for records in stream.batches()] == [1]
        assert [one.state for one in client.list_groups() if one.group == group] == ["Empty"]
        client.commit_offsets(group, {(topic, 0): 3})
        client.delete_offsets(group, [(topic, 0)])
        client.delete_group(group)
        left_open = client.consume(topic, group=group)
        next(left_open)
    with pytest.raises(ClosedError):
        next(left_open)
    left_open.close()


def test_a_garbage_collected_blocking_stream_leaves_the_group(module_broker: Broker, names: tuple[str, str]) -> None:
    # Regression: it kept its membership and partitions as long as the client was open.
    topic, group = names
    with Client(module_broker.native) as client:
        client.create_topic(topic)
        client.produce_many(topic, [b"0", b"1"])
        for record in client.consume(topic, group=group, **QUICK):
            assert record.value == b"0"
            break
        gc.collect()
        with client.consume(topic, group=group, **QUICK) as following:
            assert next(following).value == b"0"
            (described,) = client.describe_groups(group)
            assert len(described.members) == 1

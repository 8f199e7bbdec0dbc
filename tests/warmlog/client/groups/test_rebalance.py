"""Assignments while members join and leave, against a real broker."""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from tests.warmlog.client.both_loops import on_both_loops
from tests.warmlog.client.groups.consuming import PATIENT, QUICK, SETTINGS, committed, fill, take, until, until_empty
from warmlog import GroupMovedOnError, connect
from warmlog.protocol.errors import ErrorCode
from warmlog.testing import Broker


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
                client.consume(self._topic, group=self._group, **(PATIENT | options)) as stream,
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
async def test_in_a_classic_group_a_member_with_the_same_instance_id_replaces_the_first(
    module_broker: Broker, names: tuple[str, str]
) -> None:
    topic, group = names
    async with connect(module_broker.native) as client, connect(module_broker.native) as other:
        await fill(client, topic)
        options = QUICK | {"instance_id": "i", "group_protocol": "classic"}
        stream = client.consume(topic, group=group, **options)
        await take(stream, 10)
        async with other.consume(topic, group=group, **options) as follower:
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
            async with client.consume(topic, group=group, session_timeout_s=20) as stream:
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

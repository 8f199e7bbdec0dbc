"""What group streams tell a program about their partitions, against a real broker."""

from collections.abc import Sequence

import anyio
import pytest

from tests.warmlog.client.both_loops import on_both_loops
from tests.warmlog.client.groups.consuming import QUICK, committed, fill, take, until, until_empty
from warmlog import Client, connect
from warmlog.client import GroupProtocol
from warmlog.protocol.native.groups import HeartbeatConsumerGroupRequest, HeartbeatConsumerGroupResponse
from warmlog.testing import Broker

Partitions = Sequence[tuple[str, int]]


class Diary(list[tuple[str, set[int]]]):
    """What the callbacks were told: their names and the partitions."""

    def assigned(self, partitions: Partitions) -> None:
        self.append(("assigned", {partition for _, partition in partitions}))

    async def revoked(self, partitions: Partitions) -> None:
        self.append(("revoked", {partition for _, partition in partitions}))

    async def lost(self, partitions: Partitions) -> None:
        self.append(("lost", {partition for _, partition in partitions}))


@on_both_loops
async def test_partitions_are_assigned_at_first_and_revoked_in_the_end(
    module_broker: Broker, names: tuple[str, str]
) -> None:
    topic, group = names
    diary = Diary()
    async with connect(module_broker.native) as client:
        await fill(client, topic, partitions=2)
        options = {"on_assigned": diary.assigned, "on_revoked": diary.revoked}
        async with client.consume(topic, group=group, **options) as stream:
            assert diary == [("assigned", {0, 1})]
            await take(stream, 10)
        assert diary == [("assigned", {0, 1}), ("revoked", {0, 1})]
        await client.delete_group(group)


@pytest.mark.parametrize(("protocol", "moved"), [("consumer", 1), ("classic", 2)])
@on_both_loops
async def test_what_is_processed_can_be_committed_before_partitions_move(
    module_broker: Broker, names: tuple[str, str], protocol: GroupProtocol, moved: int
) -> None:
    topic, group = names
    diary = Diary()
    async with connect(module_broker.native) as client, anyio.create_task_group() as tasks:
        await fill(client, topic, partitions=2)

        async def revoked(partitions: Partitions) -> None:
            await stream.commit()
            await diary.revoked(partitions)

        options = QUICK | {"on_assigned": diary.assigned, "on_revoked": revoked, "auto_commit": False}
        options["group_protocol"] = protocol
        async with client.consume(topic, group=group, **options) as stream:
            assert len(await take(stream, 10)) == 10

            async def join() -> None:
                async with client.consume(topic, group=group, **QUICK | {"group_protocol": protocol}):
                    await anyio.sleep_forever()

            tasks.start_soon(join)
            with anyio.move_on_after(20) as scope:
                tasks.start_soon(_cancel_when, scope, lambda: len(diary) == 1 + moved)
                await anext(stream)
            assert [(event, len(partitions)) for event, partitions in diary] == [
                ("assigned", 2),
                ("revoked", moved),
                ("assigned", 1),
            ][: 1 + moved]
            assert await committed(client, group) == {(topic, 0): 5, (topic, 1): 5}
        tasks.cancel_scope.cancel()


async def _cancel_when(scope: anyio.CancelScope, condition: object) -> None:
    assert callable(condition)

    async def holds() -> bool:
        return bool(condition())

    await until(holds)
    scope.cancel()


@on_both_loops
async def test_a_failed_record_is_not_committed_by_the_callback(module_broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(module_broker.native) as client:
        await fill(client, topic)

        async def revoked(_: Partitions) -> None:
            await stream.commit()

        stream = client.consume(topic, group=group, auto_commit=False, on_revoked=revoked)
        with pytest.raises(ZeroDivisionError):
            async with stream:
                async for record in stream:
                    1 // (record.offset - 3)
        assert await committed(client, group) == {(topic, 0): 3}
        await client.delete_group(group)


@on_both_loops
async def test_partitions_of_a_removed_member_are_lost(module_broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    diary = Diary()
    async with connect(module_broker.native) as client:
        await fill(client, topic)
        options = QUICK | {"on_assigned": diary.assigned, "on_revoked": diary.revoked, "on_lost": diary.lost}
        async with client.consume(topic, group=group, **options) as stream:
            await take(stream, 10)
            leaving = HeartbeatConsumerGroupRequest(group=group, member_id=stream.member_id, member_epoch=-1)
            await client._cluster.ask(leaving, HeartbeatConsumerGroupResponse)
            await client.produce(topic, value=b"10")
            with anyio.move_on_after(20) as scope, anyio.CancelScope():
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_cancel_when, scope, lambda: len(diary) == 3)
                    while True:
                        await anext(stream)
            assert diary == [("assigned", {0}), ("lost", {0}), ("assigned", {0})]
        await until_empty(client, group)


@on_both_loops
async def test_an_error_of_a_callback_is_raised_by_the_step(module_broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names

    def fail(_: Partitions) -> None:
        raise ZeroDivisionError

    async with connect(module_broker.native) as client:
        await fill(client, topic)
        with pytest.raises(ZeroDivisionError):
            async with client.consume(topic, group=group, on_assigned=fail):
                pass
        with pytest.raises(ZeroDivisionError):
            async with client.consume(topic, group=group, on_revoked=fail) as stream:
                await take(stream, 1)
        await until_empty(client, group)


def test_callbacks_of_a_blocking_stream_may_use_it(module_broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    seen: list[str] = []
    with Client(module_broker.native) as client:
        client.create_topic(topic, partitions=1)
        client.produce_many(topic, [b"a", b"b", b"c"])

        def assigned(partitions: Partitions) -> None:
            seen.append(f"assigned {len(partitions)}")
            stream.seek(1)

        def revoked(_: Partitions) -> None:
            stream.commit()
            seen.append("revoked")

        options = {"on_assigned": assigned, "on_revoked": revoked, "auto_commit": False, "until_end": True}
        stream = client.consume(topic, group=group, **options)
        with stream:
            assert [record.value for record in stream] == [b"b", b"c"]
        assert seen == ["assigned 1", "revoked"]
        (described,) = client.describe_groups(group)
        assert [position.offset for position in described.positions] == [3]
        with pytest.raises(TypeError, match="must not be async"):
            client.consume(topic, group=group, on_assigned=_assigned)


async def _assigned(_: Partitions) -> None:
    pass

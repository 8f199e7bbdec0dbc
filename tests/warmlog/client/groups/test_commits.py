"""Offsets that consumers of a group commit, against a real broker."""

from collections.abc import Awaitable, Callable

import pytest

from tests.warmlog.client.both_loops import on_both_loops
from tests.warmlog.client.groups.consuming import QUICK, committed, fill, take, until, until_empty
from warmlog import connect
from warmlog.client.groups.membership import Membership
from warmlog.testing import Broker


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


@on_both_loops
async def test_a_member_does_not_repeat_a_commit_for_a_deleted_topic_when_it_ends(
    module_broker: Broker, names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group = names
    async with connect(module_broker.native) as client:
        await fill(client, topic, count=2)
        async with client.consume(topic, group=group, commit_interval_s=1000) as stream:
            await take(stream, 2)
            await client.delete_topic(topic)
            monkeypatch.setattr(Membership, "_repeat", no_second(Membership._repeat))
        assert stream._reader.membership.has_ended


def no_second(repeat: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Let `repeat` call what it is given only once."""

    async def repeated(self: Membership, attempt: Callable[[], Awaitable[None]], limit_s: float) -> None:
        calls = 0

        async def counted() -> None:
            nonlocal calls
            calls += 1
            assert calls == 1
            await attempt()

        await repeat(self, counted, limit_s)

    return repeated

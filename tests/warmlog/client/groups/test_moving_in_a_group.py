"""Seek, pause and resume in group streams, against a real broker."""

import pytest

from tests.warmlog.client.both_loops import on_both_loops
from tests.warmlog.client.groups.consuming import committed, fill, take
from warmlog import Client, connect
from warmlog.testing import Broker


@on_both_loops
async def test_a_member_moves_back_and_forth(module_broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(module_broker.native) as client:
        await fill(client, topic)
        async with client.consume(topic, group=group) as stream:
            assert await take(stream, 3) == [0, 1, 2]
            stream.seek(7)
            assert stream.positions == {(topic, 0): 7}
            assert await take(stream, 2) == [7, 8]
            stream.seek(4)
            await stream.commit()
            assert await committed(client, group) == {(topic, 0): 4}
            assert await take(stream, 2) == [4, 5]
            with pytest.raises(ValueError, match="does not read partition 1"):
                stream.seek(0, partition=1)
        assert await committed(client, group) == {(topic, 0): 6}
        await client.delete_group(group)


@on_both_loops
async def test_a_paused_partition_is_neither_delivered_nor_committed(
    module_broker: Broker, names: tuple[str, str]
) -> None:
    topic, group = names
    async with connect(module_broker.native) as client:
        await fill(client, topic, partitions=2)
        async with client.consume(topic, group=group) as stream:
            first = await anext(stream)
            stream.pause(first.partition)
            other = 1 - first.partition
            assert await take(stream, 5) == list(range(other, 10, 2))
            assert stream.positions == {(topic, first.partition): 1, (topic, other): 5}
            stream.resume()
            assert await take(stream, 4) == list(range(first.partition + 2, 10, 2))
        await client.delete_group(group)


@on_both_loops
async def test_a_pause_lasts_across_a_rebalance(module_broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(module_broker.native) as client:
        await fill(client, topic, partitions=2)
        async with client.consume(topic, group=group) as stream:
            stream.pause(0)
            assert await take(stream, 1) == [1]
            stream.reader.membership.rejoin()
            assert await take(stream, 4) == [3, 5, 7, 9]
            assert stream.positions == {(topic, 0): 0, (topic, 1): 5}
            stream.resume()
            assert await take(stream, 2) == [0, 2]


@on_both_loops
async def test_a_stream_must_be_open_to_be_moved(module_broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(module_broker.native) as client:
        stream = client.consume(topic, group=group)
        for move in (stream.pause, stream.resume):
            with pytest.raises(ValueError, match="not open"):
                move()
        with pytest.raises(ValueError, match="not open"):
            stream.seek(1)


def test_a_blocking_member_moves(module_broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    with Client(module_broker.native) as client:
        client.create_topic(topic, partitions=1)
        client.produce_many(topic, [b"%d" % number for number in range(5)])
        with client.consume(topic, group=group, until_end=True) as stream:
            assert next(stream).value == b"0"
            assert stream.lag == {(topic, 0): 4}
            stream.pause()
            stream.resume()
            assert next(stream).value == b"1"
            stream.seek(4)
            assert [record.value for record in stream] == [b"4"]

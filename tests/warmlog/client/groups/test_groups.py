"""Groups of a client: administration, missing topics, cancelled and blocking clients."""

import gc

import anyio
import pytest
from anyio.lowlevel import checkpoint

from tests.warmlog.client.both_loops import on_both_loops
from tests.warmlog.client.groups.consuming import QUICK, committed, fill, until_empty
from warmlog import (
    BrokerError,
    Client,
    ClosedError,
    GroupNotEmptyError,
    Message,
    UnknownGroupError,
    UnknownTopicError,
    connect,
)
from warmlog.client import GroupProtocol
from warmlog.protocol.errors import ErrorCode
from warmlog.testing import Broker


@pytest.mark.parametrize(("protocol", "assignor"), [("consumer", "uniform"), ("classic", "range")])
@on_both_loops
async def test_groups_are_listed_described_altered_and_deleted(
    module_broker: Broker, names: tuple[str, str], protocol: GroupProtocol, assignor: str
) -> None:
    topic, group = names
    async with connect(module_broker.native, client="me") as client:
        await fill(client, topic, partitions=2)
        await client.commit_offsets(group, {(topic, 0): 2})
        async with client.consume(topic, group=group, group_protocol=protocol) as stream:
            (described,) = await client.describe_groups(group)
            assert (described.state, described.protocol_type, described.protocol) == ("Stable", "consumer", assignor)
            (member,) = described.members
            assert (member.member_id, member.client_id, member.topics) == (stream.member_id, "me", (topic,))
            assert [(one.partition, one.offset, one.high_watermark, one.lag) for one in described.positions] == [
                (0, 2, 5, 3), (1, -1, 5, None),
            ]  # fmt: skip
            assert {one.member_id for one in described.positions} == {stream.member_id}
            assert (group, protocol) in [(one.group, one.type) for one in await client.list_groups(states=["stable"])]
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

"""Group streams of all topics that match a pattern, against a real broker."""

import re

import anyio
import pytest

from tests.warmlog.client.both_loops import on_both_loops
from tests.warmlog.client.groups.consuming import QUICK, committed, fill, until_empty
from warmlog import Client, connect
from warmlog.testing import Broker


@on_both_loops
async def test_a_pattern_selects_topics_by_their_whole_names(module_broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    async with connect(module_broker.native) as client:
        for name in (f"{topic}-a", f"{topic}-b", f"other-{topic}-a"):
            await fill(client, name, count=1)
        async with client.consume(re.compile(f"{topic}-."), group=group, until_end=True) as stream:
            assert {record.topic async for record in stream} == {f"{topic}-a", f"{topic}-b"}
        await until_empty(client, group)
        assert await committed(client, group) == {(f"{topic}-a", 0): 1, (f"{topic}-b", 0): 1}
        await client.delete_group(group)


@on_both_loops
async def test_new_topics_are_found_and_deleted_ones_left(module_broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    options = QUICK | {"topics_interval_s": 0.1}
    async with (
        connect(module_broker.native) as client,
        client.consume(re.compile(f"{topic}-.*"), group=group, **options) as stream,
    ):
        assert stream.positions == {}
        with anyio.fail_after(20):
            await fill(client, f"{topic}-a", count=1)
            assert (await anext(stream)).topic == f"{topic}-a"
            await client.delete_topic(f"{topic}-a")
            await fill(client, f"{topic}-b", count=1)
            assert (await anext(stream)).topic == f"{topic}-b"
        assert stream.positions == {(f"{topic}-b", 0): 1}


def test_internal_topics_match_no_pattern(module_broker: Broker, names: tuple[str, str]) -> None:
    topic, group = names
    with Client(module_broker.native) as client:
        client.produce(topic, value=b"x")
        with client.consume(re.compile(".*"), group=group, until_end=True) as stream:
            assert not [record for record in stream if record.topic.startswith("__")]


@on_both_loops
async def test_a_pattern_needs_a_group_and_text(module_broker: Broker) -> None:
    async with connect(module_broker.native) as client:
        with pytest.raises(TypeError, match="a pattern needs a group"):
            client.consume(re.compile("a"))  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="not of bytes"):
            client.consume(re.compile(b"a"), group="g")  # type: ignore[call-overload]
    with Client(module_broker.native) as blocking, pytest.raises(TypeError, match="a pattern needs a group"):
        blocking.consume(re.compile("a"))  # type: ignore[call-overload]

"""Fetch sessions on the Kafka listener: what is sent again, when it is, and topics that come and go."""

from pathlib import Path

import pytest

from tests.broker.clients import RawClient, Running, batch, running
from tests.broker.kafka_client import KafkaClient, kafka_client
from tests.broker.net.kafka.fetcher import FOREVER_MS, Fetcher, offsets_of, served
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.request import DeleteTopicsRequest

ALL = range(7, 19)
ONE = batch(b"x" * 100)


@pytest.mark.parametrize("version", ALL)
async def test_a_session_tells_what_has_changed_and_nothing_else(
    native: RawClient, kafka: KafkaClient, version: int
) -> None:
    await native.create("orders", partitions=3)
    fetcher = await Fetcher.of(kafka, native, version)
    first = await fetcher.fetch(offsets_of("orders", 3))
    assert list(first) == [("orders", 0), ("orders", 1), ("orders", 2)]
    assert {one["high_watermark"] for one in first.values()} == {0}
    assert fetcher.session_id > 0
    assert await fetcher.fetch({}) == {}
    await native.produce("orders", batch(b"a"), 1)
    told = await fetcher.fetch({})
    assert list(told) == [("orders", 1)]
    assert (told["orders", 1]["high_watermark"], told["orders", 1]["last_stable_offset"]) == (1, 1)
    assert len(told["orders", 1]["records"]) == len(batch(b"a"))
    assert list(await fetcher.fetch({})) == [("orders", 1)]  # the client has not said that it has it
    assert await fetcher.fetch({("orders", 1): 1}) == {}


async def test_a_fetch_in_a_session_waits_and_is_woken_by_one_of_its_partitions(
    broker: Running, native: RawClient, kafka: KafkaClient
) -> None:
    await native.create("orders", partitions=3)
    fetcher = await Fetcher.of(kafka, native, 18)
    await fetcher.fetch(offsets_of("orders", 3))
    for turn in range(3):
        await fetcher.send({("orders", 2): turn}, max_wait_ms=FOREVER_MS)
        await served(broker)
        await native.produce("orders", batch(b"a"), 2)
        assert list(await fetcher.reply()) == [("orders", 2)]


async def test_a_fetch_in_a_session_waits_for_as_many_bytes_as_it_asks_for(
    broker: Running, native: RawClient, kafka: KafkaClient
) -> None:
    await native.create("orders", partitions=3)
    fetcher = await Fetcher.of(kafka, native, 18)
    await fetcher.fetch(offsets_of("orders", 3))
    await fetcher.send({}, max_wait_ms=FOREVER_MS, min_bytes=3 * len(ONE))
    for index in range(3):
        await served(broker)
        await native.produce("orders", ONE, index)
    assert sorted(await fetcher.reply()) == [("orders", 0), ("orders", 1), ("orders", 2)]


async def test_what_came_too_late_or_too_little_is_told_when_the_time_is_over(
    native: RawClient, kafka: KafkaClient
) -> None:
    await native.create("orders", partitions=2)
    fetcher = await Fetcher.of(kafka, native, 18)
    await fetcher.fetch(offsets_of("orders", 2))
    await native.produce("orders", batch(b"a"), 1)
    assert list(await fetcher.fetch({}, max_wait_ms=20, min_bytes=1_000_000)) == [("orders", 1)]


async def test_partitions_are_added_changed_and_forgotten(native: RawClient, kafka: KafkaClient) -> None:
    await native.create("orders", partitions=4)
    for index in range(4):
        await native.produce("orders", batch(b"a"), index)
    fetcher = await Fetcher.of(kafka, native, 18)
    await fetcher.fetch(offsets_of("orders", 2, 1))
    assert list(await fetcher.fetch({("orders", 2): 1})) == [("orders", 2)]  # a new one is included in any case
    assert list(await fetcher.fetch({("orders", 0): 0})) == [("orders", 0)]
    assert list(await fetcher.fetch({("orders", 3): 0}, ("orders", 0))) == [("orders", 3)]
    await native.produce("orders", batch(b"a"), 0)
    assert list(await fetcher.fetch({("orders", 3): 1})) == []
    assert list(await fetcher.fetch({}, ("orders", 9))) == []  # one that was never there


async def test_a_session_that_forgets_everything_ends(native: RawClient, kafka: KafkaClient) -> None:
    await native.create("orders")
    fetcher = await Fetcher.of(kafka, native, 18)
    await fetcher.fetch({("orders", 0): 0})
    known = fetcher.session_id
    assert await fetcher.fetch({}, ("orders", 0)) == {}
    assert fetcher.session_id == 0
    assert await fetcher.refused(session_id=known, session_epoch=2) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_whoever_had_data_goes_to_the_end_so_that_nobody_starves(native: RawClient, kafka: KafkaClient) -> None:
    await native.create("orders", partitions=3)
    for index in range(3):
        for _ in range(3):
            await native.produce("orders", ONE, index)
    fetcher = await Fetcher.of(kafka, native, 18)
    read, wanted, turns = [0, 0, 0], offsets_of("orders", 3), []
    for _ in range(6):
        told = await fetcher.fetch(wanted, max_bytes=len(ONE))
        (index,) = [index for (_, index), one in told.items() if one["records"]]
        turns.append(index)
        read[index] += 1
        wanted = {("orders", index): read[index]}
    assert turns == [0, 0, 1, 2, 0, 1]


@pytest.mark.parametrize("epoch", [0, -1])
async def test_a_full_fetch_ends_the_session_it_names(native: RawClient, kafka: KafkaClient, epoch: int) -> None:
    await native.create("orders")
    fetcher = await Fetcher.of(kafka, native, 18)
    await fetcher.fetch({("orders", 0): 0})
    known = fetcher.session_id
    await fetcher.fetch({("orders", 0): 0}, session_epoch=epoch)
    assert (fetcher.session_id == 0) == (epoch == -1)
    assert fetcher.session_id != known
    assert await fetcher.refused(session_id=known, session_epoch=1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_sessions_and_epochs_that_are_not_are_refused(native: RawClient, kafka: KafkaClient) -> None:
    await native.create("orders")
    fetcher = await Fetcher.of(kafka, native, 12)
    await fetcher.fetch({("orders", 0): 0})
    assert await fetcher.refused(session_id=0, session_epoch=7) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert await fetcher.refused(session_id=-3, session_epoch=1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    for epoch in (2, 5, -7, FOREVER_MS):
        assert await fetcher.refused(session_epoch=epoch) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    fetcher.version = 13
    assert await fetcher.refused() is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    fetcher.version = 12
    assert await fetcher.fetch({}) == {}  # it is still there, and at that epoch
    assert await fetcher.refused(session_epoch=1) is ErrorCode.INVALID_FETCH_SESSION_EPOCH


async def test_a_fetch_whose_client_has_gone_on_ends(broker: Running, native: RawClient, kafka: KafkaClient) -> None:
    """A client that lost its connection goes on with the next epoch on another one; the session is the same."""
    await native.create("orders")
    fetcher = await Fetcher.of(kafka, native, 18)
    await fetcher.fetch({("orders", 0): 0})
    await fetcher.send({}, max_wait_ms=FOREVER_MS)
    await served(broker)
    async with kafka_client(broker.addresses.kafka) as other:
        again = Fetcher(other, 18, fetcher.names)
        again.session_id, again.epoch = fetcher.session_id, 2
        assert await again.fetch({}) == {}
        given_up = await kafka.reply()
        assert given_up["error_code"] == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        await native.produce("orders", batch(b"a"))
        assert list(await again.fetch({})) == [("orders", 0)]


async def test_a_session_outlives_a_connection_that_drops_while_its_fetch_waits(
    broker: Running, native: RawClient
) -> None:
    await native.create("orders")
    async with kafka_client(broker.addresses.kafka) as first:
        fetcher = await Fetcher.of(first, native, 18)
        await fetcher.fetch({("orders", 0): 0})
        await fetcher.send({}, max_wait_ms=FOREVER_MS)
        await served(broker)
    await served(broker)
    async with kafka_client(broker.addresses.kafka) as second:
        fetcher.client, fetcher.epoch = second, 2
        await fetcher.send({}, max_wait_ms=FOREVER_MS)
        await served(broker)
        await native.produce("orders", batch(b"a"))
        assert list(await fetcher.reply()) == [("orders", 0)]


async def test_a_waiting_fetch_holds_up_nobody_but_its_own_connection(
    broker: Running, native: RawClient, kafka: KafkaClient
) -> None:
    await native.create("orders")
    fetcher = await Fetcher.of(kafka, native, 18)
    await fetcher.fetch({("orders", 0): 0})
    await fetcher.send({}, max_wait_ms=FOREVER_MS)
    await kafka.send("ApiVersions", 0)
    async with kafka_client(broker.addresses.kafka) as other:
        assert (await other.ask("ApiVersions", 0))["error_code"] == ErrorCode.NONE
    await native.produce("orders", batch(b"a"))
    assert list(await fetcher.reply()) == [("orders", 0)]
    assert (await kafka.reply())["error_code"] == ErrorCode.NONE


async def test_without_slots_every_fetch_is_served_without_a_session(tmp_path: Path) -> None:
    async with running(tmp_path, {"max.incremental.fetch.session.cache.slots": 0}) as broker:
        native = await broker.connect()
        await native.create("orders")
        async with kafka_client(broker.addresses.kafka) as kafka:
            fetcher = await Fetcher.of(kafka, native, 18)
            assert list(await fetcher.fetch({("orders", 0): 0})) == [("orders", 0)]
            assert fetcher.session_id == 0


# -- topics that come and go --


@pytest.mark.parametrize("version", [12, 13, 18])
async def test_a_deleted_topic_is_told_of_once_a_fetch_and_others_are_waited_for(
    native: RawClient, kafka: KafkaClient, version: int
) -> None:
    await native.create("orders")
    await native.create("others")
    fetcher = await Fetcher.of(kafka, native, version)
    await fetcher.fetch({("orders", 0): 0, ("others", 0): 0})
    await fetcher.send({}, max_wait_ms=FOREVER_MS)
    await native.ask(DeleteTopicsRequest(topics=("orders",)))
    await native.produce("others", batch(b"a"))
    told = await fetcher.reply()
    assert told["orders", 0]["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert told["others", 0]["error_code"] == ErrorCode.NONE
    told = await fetcher.fetch({("others", 0): 1})
    assert list(told) == [("orders", 0)]
    assert await fetcher.fetch({}, ("orders", 0)) == {}


async def test_a_session_of_nothing_but_deleted_topics_is_answered_at_once(
    broker: Running, native: RawClient, kafka: KafkaClient
) -> None:
    await native.create("orders")
    fetcher = await Fetcher.of(kafka, native, 18)
    await fetcher.fetch({("orders", 0): 0})
    await fetcher.send({}, max_wait_ms=FOREVER_MS)
    await served(broker)
    await native.ask(DeleteTopicsRequest(topics=("orders",)))
    assert list(await fetcher.reply()) == [("orders", 0)]
    assert list(await fetcher.fetch({}, max_wait_ms=FOREVER_MS)) == [("orders", 0)]


@pytest.mark.parametrize("version", [12, 18])
async def test_a_topic_of_the_same_name_is_another_one_to_who_asks_by_id(
    native: RawClient, kafka: KafkaClient, version: int
) -> None:
    await native.create("orders")
    await native.produce("orders", batch(b"a"))
    fetcher = await Fetcher.of(kafka, native, version)
    assert list(await fetcher.fetch({("orders", 0): 1})) == [("orders", 0)]
    await native.ask(DeleteTopicsRequest(topics=("orders",)))
    await native.create("orders")
    told = await fetcher.fetch({}, max_wait_ms=FOREVER_MS)
    wanted = ErrorCode.OFFSET_OUT_OF_RANGE if version < 13 else ErrorCode.INCONSISTENT_TOPIC_ID
    assert told["orders", 0]["error_code"] == wanted
    told = await fetcher.fetch({("orders", 0): 0})
    assert told["orders", 0]["error_code"] == (ErrorCode.NONE if version < 13 else wanted)


async def test_an_unknown_topic_id_is_told_and_found_when_it_gets_a_name(native: RawClient, kafka: KafkaClient) -> None:
    await native.create("others")
    fetcher = await Fetcher.of(kafka, native, 18)
    fetcher.names["nobody"] = b"n" * 16
    told = await fetcher.fetch({("nobody", 0): 0, ("others", 0): 0})
    assert told["nobody", 0]["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID
    assert told["others", 0]["error_code"] == ErrorCode.NONE
    assert list(await fetcher.fetch({})) == [("nobody", 0)]


async def test_a_partition_that_is_made_later_is_found(native: RawClient, kafka: KafkaClient) -> None:
    await native.create("others")
    fetcher = await Fetcher.of(kafka, native, 12)
    fetcher.names["orders"] = bytes(16)
    told = await fetcher.fetch({("orders", 0): 0, ("others", 0): 0})
    assert told["orders", 0]["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await native.create("orders")
    told = await fetcher.fetch({})
    assert told["orders", 0]["error_code"] == ErrorCode.NONE
    assert await fetcher.fetch({}) == {}
    await native.produce("orders", batch(b"a"))
    assert list(await fetcher.fetch({})) == [("orders", 0)]


async def test_a_log_start_that_moves_is_told_when_the_time_is_over(native: RawClient, kafka: KafkaClient) -> None:
    """No log tells its waiters of it: a session looks for it at each end of a wait."""
    await native.create("orders", partitions=2)
    await native.produce("orders", batch(b"a", b"b"), 1)
    fetcher = await Fetcher.of(kafka, native, 18)
    await fetcher.fetch({("orders", 0): 0, ("orders", 1): 2})
    assert await fetcher.fetch({}) == {}
    moved = {"name": "orders", "partitions": ({"partition_index": 1, "offset": 1},)}
    await kafka.ask("DeleteRecords", topics=(moved,), timeout_ms=1000)
    told = await fetcher.fetch({}, max_wait_ms=20)
    assert list(told) == [("orders", 1)]
    assert told["orders", 1]["log_start_offset"] == 1
    assert await fetcher.fetch({}) == {}

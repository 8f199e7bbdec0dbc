"""Consumers read from followers, and are sent to the one in their rack (KIP-392), over a simulated network."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from interop.warmlog_nodes import RACK_AWARE
from tests.broker.replication.simulated_brokers import Brokers, simulate
from tests.cluster.simulation.machine import PORT, host_of, rack_of
from warmlog.broker.replication.peers.connection import PeerConnection, PeerSettings
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.records.fetch import (
    CONSUMER,
    DEBUGGER,
    FetchingReplica,
    KafkaFetchedPartition,
    KafkaFetchPartition,
    KafkaFetchRequest,
    KafkaFetchResponse,
    RedirectedPartition,
)
from warmlog.protocol.kafka.peer import PeerApi
from warmlog.protocol.kafka.peer_apis import FETCH
from warmlog.protocol.records.reader import decoded_batches

pytestmark = pytest.mark.timeout(240)
RACKED = ("replica.lag.time.max.ms=10000", f"replica.selector.class={RACK_AWARE}")
OLD_FETCH = PeerApi(FETCH.api, 4, 10)  # as consumers sent it before KIP-392
TOOL = FetchingReplica(DEBUGGER)
LEADER, NEAR, FAR = 1, 2, 3


class Reader:
    """A consumer of one partition on a machine of its own."""

    def __init__(self, brokers: Brokers, nursery: trio.Nursery) -> None:
        self._brokers = brokers
        self._nursery = nursery

    async def fetch(
        self,
        broker: int,
        offset: int,
        *,
        rack: str = "",
        epoch: int = -1,
        wait_s: float = 0.0,
        replica: FetchingReplica = CONSUMER,
        api: PeerApi[KafkaFetchRequest, KafkaFetchResponse] = FETCH,
    ) -> KafkaFetchedPartition:
        settings = PeerSettings(client_id="reader", connect_timeout_s=5.0, request_timeout_s=5.0)
        connection = await PeerConnection.connect(host_of(broker), PORT, settings, self._nursery)
        wanted = KafkaFetchPartition(
            topic="t",
            topic_id=self._brokers.key().topic_id.bytes,
            partition=0,
            offset=offset,
            current_leader_epoch=epoch,
            max_bytes=1 << 20,
        )
        request = KafkaFetchRequest(
            partitions=(wanted,),
            max_wait_ms=int(wait_s * 1000),
            rack=rack,
            replica=replica,
            uses_topic_ids=api is FETCH,
        )
        response = await connection.ask(api, request, waits_s=wait_s)
        [found] = response.received
        return found


@asynccontextmanager
async def reader(brokers: Brokers) -> AsyncIterator[Reader]:
    async with trio.open_nursery() as nursery:
        yield Reader(brokers, nursery)
        nursery.cancel_scope.cancel()


def read(main: Callable[[Brokers, Reader], Awaitable[None]]) -> None:
    """Run a test with three brokers in racks of their own, whose topic has a replica on each."""

    async def begin(brokers: Brokers) -> None:
        await brokers.start(LEADER, NEAR, FAR)
        await brokers.create([LEADER, NEAR, FAR])
        async with reader(brokers) as one:
            await main(brokers, one)

    simulate(begin, settings=RACKED)


def values(found: KafkaFetchedPartition, from_offset: int = 0) -> list[bytes]:
    batches = decoded_batches(found.records, from_offset=from_offset)
    return [bytes(record.value or b"") for _, records in batches for record in records]


def preferred(found: KafkaFetchedPartition) -> int | None:
    """Return the broker that a consumer is sent to."""
    return found.preferred_replica if isinstance(found, RedirectedPartition) else None


def test_a_follower_shows_what_is_below_the_high_watermark_it_knows() -> None:
    async def main(brokers: Brokers, one: Reader) -> None:
        await brokers.stored(b"shown")
        await brokers.until(lambda: brokers.log(NEAR).offsets.high_watermark == 1)
        brokers.cut(FAR, LEADER)
        await brokers.append(b"hidden", replicas_ms=-1)
        await brokers.until(lambda: brokers.log(NEAR).offsets.log_end_offset == 2)
        found = await one.fetch(NEAR, 0)
        assert (found.error, found.high_watermark, values(found)) == (ErrorCode.NONE, 1, [b"shown"])
        for offset in (1, 2):
            found = await one.fetch(NEAR, offset)
            assert (found.error, found.high_watermark, values(found)) == (ErrorCode.NONE, 1, [])
        assert (await one.fetch(NEAR, 3)).error is ErrorCode.OFFSET_OUT_OF_RANGE

    read(main)


def test_a_follower_compares_the_epoch_of_its_leader() -> None:
    async def main(brokers: Brokers, one: Reader) -> None:
        await brokers.kill(LEADER)
        await brokers.until(lambda: brokers.state().leader_id == NEAR)
        await brokers.stored(b"a")
        epoch = brokers.state().leader_epoch
        await brokers.until(lambda: brokers.log(FAR).offsets.high_watermark == 1)
        assert values(await one.fetch(FAR, 0, epoch=epoch)) == [b"a"]
        assert (await one.fetch(FAR, 0, epoch=epoch - 1)).error is ErrorCode.FENCED_LEADER_EPOCH
        assert (await one.fetch(FAR, 0, epoch=epoch + 1)).error is ErrorCode.UNKNOWN_LEADER_EPOCH

    read(main)


def test_a_fetch_that_waits_at_a_follower_ends_with_the_leader() -> None:
    async def main(brokers: Brokers, one: Reader) -> None:
        await brokers.stored(b"a")
        epoch, found = brokers.state().leader_epoch, list[KafkaFetchedPartition]()

        async def wait_for_more() -> None:
            found.append(await one.fetch(FAR, 1, epoch=epoch, wait_s=100.0))

        await brokers.until(lambda: brokers.log(FAR).offsets.high_watermark == 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_more)
            await trio.sleep(1)
            await brokers.kill(LEADER)
            before_s = trio.current_time()
        assert trio.current_time() - before_s < 10
        assert found[0].error in {ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER}

    read(main)


def test_consumers_from_before_followers_were_read_are_sent_to_the_leader() -> None:
    async def main(brokers: Brokers, one: Reader) -> None:
        await brokers.stored(b"a")
        await brokers.until(lambda: brokers.log(NEAR).offsets.high_watermark == 1)
        assert (await one.fetch(NEAR, 0, api=OLD_FETCH)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert values(await one.fetch(LEADER, 0, api=OLD_FETCH)) == [b"a"]

    read(main)


def test_tools_that_compare_replicas_read_each_of_them() -> None:
    async def main(brokers: Brokers, one: Reader) -> None:
        await brokers.stored(b"a")
        for number in (LEADER, NEAR, FAR):
            await brokers.until(lambda number=number: brokers.log(number).offsets.high_watermark == 1)
            assert values(await one.fetch(number, 0, replica=TOOL)) == [b"a"]

    read(main)


def test_the_leader_names_the_follower_in_the_rack_of_a_consumer() -> None:
    async def main(brokers: Brokers, one: Reader) -> None:
        await brokers.stored(b"a")
        await brokers.until(lambda: brokers.log(NEAR).offsets.high_watermark == 1)
        redirected = await one.fetch(LEADER, 0, rack=rack_of(NEAR), wait_s=100.0)
        assert (redirected.error, preferred(redirected)) == (ErrorCode.NONE, NEAR)
        assert (redirected.high_watermark, values(redirected)) == (1, [])
        for rack in ("", rack_of(LEADER), "elsewhere"):
            found = await one.fetch(LEADER, 0, rack=rack)
            assert (preferred(found), values(found)) == (None, [b"a"])
        # a follower names nobody
        found = await one.fetch(NEAR, 0, rack=rack_of(FAR))
        assert (preferred(found), values(found)) == (None, [b"a"])

    read(main)


def test_a_follower_without_the_offset_is_not_named() -> None:
    async def main(brokers: Brokers, one: Reader) -> None:
        await brokers.stored(b"a")
        brokers.cut(NEAR, LEADER)
        await brokers.append(b"b", b"c", replicas_ms=-1)
        named = await one.fetch(LEADER, 1, rack=rack_of(NEAR))
        assert preferred(named) == NEAR
        found = await one.fetch(LEADER, 2, rack=rack_of(NEAR))
        assert (found.error, preferred(found)) == (ErrorCode.NONE, None)

    read(main)


def test_a_follower_that_is_not_in_sync_is_not_read() -> None:
    async def main(brokers: Brokers, one: Reader) -> None:
        await brokers.stored(b"a")
        await brokers.until(lambda: brokers.log(NEAR).offsets.high_watermark == 1)
        waiting: list[KafkaFetchedPartition] = []

        async def wait_in_vain() -> None:
            waiting.append(await one.fetch(NEAR, 1, wait_s=1000.0))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_in_vain)
            await trio.sleep(1)
            brokers.cut(NEAR, LEADER)
            await brokers.stored(b"b")
        assert brokers.in_sync() == {LEADER, FAR}
        assert waiting[0].error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert preferred(await one.fetch(LEADER, 0, rack=rack_of(NEAR))) is None
        assert values(await one.fetch(NEAR, 0, replica=TOOL)) == [b"a"]
        brokers.network.heal()
        await brokers.until(lambda: NEAR in brokers.in_sync() and brokers.log(NEAR).offsets.high_watermark == 2)
        assert values(await one.fetch(NEAR, 0)) == [b"a", b"b"]
        assert preferred(await one.fetch(LEADER, 0, rack=rack_of(NEAR))) == NEAR

    read(main)


def test_a_consumer_at_a_follower_gets_a_record_as_soon_as_all_have_it() -> None:
    """The next fetch of the follower would tell it of the high watermark, up to `replica.fetch.wait.max.ms` later."""

    async def main(brokers: Brokers, one: Reader) -> None:
        await brokers.stored(b"a")
        await one.fetch(LEADER, 0, rack=rack_of(NEAR))  # sends the consumer to a follower
        for offset in range(1, 6):
            took: list[float] = []

            async def wait_for_one(offset: int = offset, took: list[float] = took) -> None:
                found = await one.fetch(NEAR, offset, wait_s=100.0)
                assert values(found, offset) == [b"v%d" % offset]
                took.append(trio.current_time())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait_for_one)
                await trio.sleep(0.1)
                await brokers.stored(b"v%d" % offset)
                stored_s = trio.current_time()
            assert took[0] - stored_s < 0.1

    read(main)

"""Share coordinators on other brokers: requests sent together, repeated, and given up."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.broker.rig import rig
from warmlog.broker.coordinator.runtime import CoordinatorRuntime
from warmlog.broker.share.persister import InitialState, Outcome
from warmlog.broker.share.state.client import LIMIT_S, MAX_ITEMS, StatePersister
from warmlog.broker.share.state.coordinator import ShareCoordinator
from warmlog.broker.share.state.shard import ShareStateShard
from warmlog.broker.share.state.topic import SHARE_STATE_TOPIC
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.share import state as messages
from warmlog.protocol.kafka.messages.share.state import SharePartitionResult, StateBatch
from warmlog.protocol.kafka.share_state_records import SharePartitionKey

TOPIC_ID = b"\1" * 16
DONE = Outcome()


class Elsewhere(CoordinatorRuntime[ShareStateShard]):
    """A runtime whose topic is led by another broker."""

    def leads(self, name: str) -> bool:
        return False

    async def ensure(self) -> ErrorCode:
        return ErrorCode.NONE


class FakePeers:
    """Broker 2, whose answers are given; None where it does not answer. An error is of every share-partition."""

    def __init__(self, *answers: ErrorCode | None) -> None:
        self.answers = [*answers]
        self.requests: list[Any] = []
        self.leader: int | None = 2
        self.is_held: trio.Event | None = None

    def leader_id(self, topic: str, partition: int) -> int | None:
        return self.leader

    async def answer(self, broker: int, api: Any, request: Any, number: int) -> Any:
        self.requests.append(request)
        if self.is_held is not None:
            await self.is_held.wait()
        error = self.answers.pop(0) if self.answers else ErrorCode.NONE
        if error is None:
            return None
        results = [
            SharePartitionResult(topic_id=each.topic_id, partition=each.partition, error=error)
            for each in request.partitions
        ]
        return messages.WriteShareGroupStateResponse(partitions=tuple(results))


@asynccontextmanager
async def reaching(directory: Path, peers: FakePeers) -> AsyncIterator[StatePersister]:
    async with rig(directory) as made:
        runtime = Elsewhere(SHARE_STATE_TOPIC, made.partitions, made.writer, lambda: 0)
        coordinator = ShareCoordinator(runtime, made.partitions.settings, lambda: 0, lambda *_: True)
        persister = StatePersister(coordinator, runtime, peers)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(persister.run)
            yield persister
            nursery.cancel_scope.cancel()


async def write(persister: StatePersister, partition: int = 0, group: str = "g", last: int = 5) -> Outcome:
    return await persister.write(
        SharePartitionKey(group, TOPIC_ID, partition),
        state_epoch=1,
        leader_epoch=2,
        start_offset=3,
        delivery_complete_count=4,
        batches=[StateBatch(3, last, 2, 1)],
    )


async def all_written(persister: StatePersister, partitions: Sequence[int], outcomes: list[Outcome]) -> None:
    async def one(partition: int) -> None:
        outcomes.append(await write(persister, partition))

    async with trio.open_nursery() as nursery:
        for partition in partitions:
            nursery.start_soon(one, partition)


async def test_writes_of_the_same_turn_are_one_request(tmp_path: Path) -> None:
    peers, outcomes = FakePeers(), []
    async with reaching(tmp_path, peers) as persister:
        await all_written(persister, range(50), outcomes)
    assert outcomes == [DONE] * 50
    assert [len(request.partitions) for request in peers.requests] == [50]
    assert [each.partition for each in peers.requests[0].partitions] == [*range(50)]


async def test_what_comes_while_a_request_is_under_way_is_the_next_one(tmp_path: Path) -> None:
    peers, outcomes = FakePeers(), []
    peers.is_held = trio.Event()
    async with reaching(tmp_path, peers) as persister, trio.open_nursery() as nursery:
        nursery.start_soon(all_written, persister, [0], outcomes)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(all_written, persister, range(1, MAX_ITEMS + 2), outcomes)
        await trio.testing.wait_all_tasks_blocked()
        assert len(peers.requests) == 1
        peers.is_held.set()
    assert [len(request.partitions) for request in peers.requests] == [1, MAX_ITEMS, 1]


async def test_two_changes_of_a_share_partition_are_two_requests(tmp_path: Path) -> None:
    peers = FakePeers()
    async with reaching(tmp_path, peers) as persister, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: write(persister, last=5))
        nursery.start_soon(lambda: write(persister, last=6))
    assert sorted(request.partitions[0].batches[0].last_offset for request in peers.requests) == [5, 6]


async def test_groups_are_different_requests(tmp_path: Path) -> None:
    peers = FakePeers()
    async with reaching(tmp_path, peers) as persister, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: write(persister, group="g"))
        nursery.start_soon(lambda: write(persister, group="h"))
    assert sorted(request.group for request in peers.requests) == ["g", "h"]


@pytest.mark.parametrize(
    "error",
    [None, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS],
)
async def test_what_passes_is_tried_again(tmp_path: Path, error: ErrorCode | None, autojump_clock: MockClock) -> None:
    peers = FakePeers(error, error)
    async with reaching(tmp_path, peers) as persister:
        assert await write(persister) == DONE
    assert len(peers.requests) == 3


@pytest.mark.parametrize("error", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH])
async def test_other_errors_are_results(tmp_path: Path, error: ErrorCode) -> None:
    peers = FakePeers(error)
    async with reaching(tmp_path, peers) as persister:
        assert (await write(persister)).error is error
        outcomes = await persister.initialize("g", [InitialState(TOPIC_ID, 7, 0, 1)])
        assert outcomes == {(TOPIC_ID, 7): DONE}
    assert len(peers.requests) == 2


@pytest.mark.parametrize("leader", [None, 2])
async def test_a_coordinator_that_never_answers_is_given_up(
    tmp_path: Path, leader: int | None, autojump_clock: MockClock
) -> None:
    peers = FakePeers(*[None] * 1000)
    peers.leader = leader
    async with reaching(tmp_path, peers) as persister:
        began = trio.current_time()
        assert (await write(persister)).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert trio.current_time() - began == pytest.approx(LIMIT_S)


async def test_a_broker_that_stops_tries_once(tmp_path: Path) -> None:
    peers = FakePeers(ErrorCode.NOT_COORDINATOR)
    async with reaching(tmp_path, peers) as persister:
        persister._runtime.is_stopped = True
        assert (await write(persister)).error is ErrorCode.NOT_COORDINATOR
    assert len(peers.requests) == 1

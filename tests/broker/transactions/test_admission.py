"""Admission of batches whose transaction another broker coordinates, while markers are written here."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.broker.log.producers.transactions import transactional
from tests.broker.rig import rig
from warmlog.broker.api.transactions.admission import OpenGuards
from warmlog.broker.log.producers.transactions import TransactionMarker
from warmlog.broker.settings.settings import Settings
from warmlog.broker.transactions.admission import Admission
from warmlog.broker.transactions.effects import Producer
from warmlog.broker.transactions.verification import TransactionSupport
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.markers import Outcome

ORDERS = ("orders", 0)
PRODUCER = Producer(7, 1)
END_OF_PREVIOUS = TransactionMarker(7, 1, 0, Outcome.COMMIT, raises_epoch=True)  # of epoch 0
SUPPORTS = (TransactionSupport.ADDING, TransactionSupport.ABORTABLE)


class Elsewhere:
    """A coordinator on another broker: agrees, after it has done something else."""

    def __init__(self, meanwhile: Callable[[int], Awaitable[None]]) -> None:
        self.asked = 0
        self._meanwhile = meanwhile

    async def ask(
        self, broker: int, name: str, producer: Producer, places: Sequence[TopicPartition], *, verify_only: bool
    ) -> Mapping[TopicPartition, ErrorCode]:
        self.asked += 1
        await self._meanwhile(self.asked)
        return dict.fromkeys(places, ErrorCode.NONE)


class NotHere:
    """This broker's coordinator, which leads nothing, and the peers, of which broker 2 leads everything."""

    def leads(self, name: str) -> bool:
        return False

    def partition_of(self, name: str) -> int:
        return 0

    def leader_id(self, topic: str, partition: int) -> int:
        return 2


async def admitted(
    guards: OpenGuards, elsewhere: Any, support: TransactionSupport
) -> Mapping[TopicPartition, ErrorCode]:
    here: Any = NotHere()
    admission = Admission(here, Settings(), here, elsewhere)
    return await admission.admit("id", PRODUCER, [ORDERS], support, guards)


@pytest.mark.parametrize("support", SUPPORTS)
async def test_a_batch_is_admitted_again_after_a_marker_that_came_meanwhile(
    tmp_path: Path, autojump_clock: MockClock, support: TransactionSupport
) -> None:
    async with rig(tmp_path) as made:
        orders = await made.create("orders")
        orders.append(transactional(7, 0), guard=orders.log.producers.guards.open(7))
        guards = OpenGuards(made.partitions, PRODUCER, {ORDERS: 0}, restarts=True)

        async def complete(attempt: int) -> None:
            await trio.sleep(0.01)
            if attempt == 1:
                orders.append_marker(END_OF_PREVIOUS)

        elsewhere = Elsewhere(complete)
        assert await admitted(guards, elsewhere, support) == {}
        assert elsewhere.asked == 2
        orders.append(transactional(7, 0, epoch=1), guard=guards.numbers[ORDERS])


async def test_a_batch_is_not_admitted_again_if_another_one_has_begun_the_transaction(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with rig(tmp_path) as made:
        orders = await made.create("orders")
        guards = OpenGuards(made.partitions, PRODUCER, {ORDERS: 0}, restarts=True)

        async def begin(attempt: int) -> None:
            orders.append(transactional(7, 0, epoch=1), guard=guards.numbers[ORDERS])
            made.writer.write_queued()

        elsewhere = Elsewhere(begin)
        assert await admitted(guards, elsewhere, TransactionSupport.ADDING) == {}
        assert elsewhere.asked == 1


@pytest.mark.parametrize("support", SUPPORTS)
async def test_a_client_has_to_retry_if_markers_come_all_the_time(
    tmp_path: Path, autojump_clock: MockClock, support: TransactionSupport
) -> None:
    async with rig(tmp_path) as made:
        orders = await made.create("orders")
        guards = OpenGuards(made.partitions, PRODUCER, {ORDERS: 0}, restarts=True)

        async def end_again(_: int) -> None:
            await trio.sleep(0.01)
            orders.append_marker(END_OF_PREVIOUS)

        assert await admitted(guards, Elsewhere(end_again), support) == {ORDERS: ErrorCode.CONCURRENT_TRANSACTIONS}

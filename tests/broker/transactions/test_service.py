"""The transaction coordinator on real logs: what it stores, restarts from, and does when time passes."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.log.producers.transactions import transactional
from tests.broker.transactions.serving import TV_2, Markers, Serving, append_record, serving
from warmlog.broker.api.transactions.admission import OpenGuards
from warmlog.broker.log.errors import InvalidTransactionStateError
from warmlog.broker.partitions.partition import Append, Partition, StorageError
from warmlog.broker.transactions.coordinator import InitRequest
from warmlog.broker.transactions.effects import Producer
from warmlog.broker.transactions.markers import Marker, MarkerWriter, append_marker
from warmlog.broker.transactions.verification import TransactionSupport
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.markers import Outcome

ORDERS = ("orders", 0)
GONE = ("gone", 0)


class NoGuards:
    """The guards of partitions that this broker does not lead."""

    def open(self) -> None:
        pass

    def lapsed(self) -> list[TopicPartition]:
        return []


async def test_a_commit_writes_a_marker_to_every_partition_and_completes(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker:
        await broker.rig.create("orders")
        await broker.rig.create("stock")
        producer = await broker.producer()
        assert await broker.add(producer, ORDERS, ("stock", 0)) is ErrorCode.NONE
        assert broker.state() == "Ongoing"
        following = await broker.commit(producer)
        assert following == Producer(producer.id, producer.epoch + 1)
        await wait_all_tasks_blocked()
        assert broker.state() == "CompleteCommit"
        assert [(topic, marker.outcome) for topic, _, marker in broker.markers.written] == [
            ("orders", Outcome.COMMIT),
            ("stock", Outcome.COMMIT),
        ]


async def test_a_marker_that_is_stored_counts_while_another_one_waits_for_its_replicas(tmp_path: Path) -> None:
    waiting: dict[str, Append] = {}

    def append(partition: Partition, marker: Marker) -> Append:
        slow = waiting[partition.topic] = Append(partition.log)
        slow.planned = append_record(partition, marker).planned
        return slow

    def report(results: Mapping[TopicPartition, ErrorCode]) -> None:
        reports.append(dict(results))

    async with serving(tmp_path) as broker:
        for topic in ("orders", "stock"):
            await broker.rig.create(topic)
        reports: list[dict[TopicPartition, ErrorCode]] = []
        marker = Marker(Producer(7, 0), Outcome.COMMIT, 0, TV_2)
        MarkerWriter(broker.rig.partitions, broker.rig.writer, append).write(marker, [ORDERS, ("stock", 0)], report)
        await wait_all_tasks_blocked()
        waiting["stock"].settle()
        await wait_all_tasks_blocked()
        assert reports == [{("stock", 0): ErrorCode.NONE}]
        waiting["orders"].settle(StorageError("no space"))
        await wait_all_tasks_blocked()
        assert reports[1:] == [{ORDERS: ErrorCode.KAFKA_STORAGE_ERROR}]


async def test_a_restart_knows_ids_epochs_and_open_transactions(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker:
        await broker.rig.create("orders")
        producer = await broker.producer()
        assert await broker.add(producer, ORDERS) is ErrorCode.NONE
    async with serving(tmp_path) as broker:
        assert broker.state() == "Ongoing"
        assert await broker.commit(producer) == Producer(producer.id, producer.epoch + 1)


async def test_a_transaction_that_was_decided_before_a_kill_is_completed_after_the_restart(tmp_path: Path) -> None:
    async with serving(tmp_path, Markers(failing={"orders"})) as broker:
        await broker.rig.create("orders")
        producer = await broker.producer()
        await broker.add(producer, ORDERS)
        await broker.commit(producer)
        assert broker.state() == "PrepareCommit"
    async with serving(tmp_path) as broker:
        await wait_all_tasks_blocked()
        assert broker.state() == "CompleteCommit"
        [(topic, index, marker)] = broker.markers.written
        assert ((topic, index), marker.outcome, marker.producer.id) == (ORDERS, Outcome.COMMIT, producer.id)


async def test_markers_that_fail_are_written_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with serving(tmp_path, Markers(failing={"orders"})) as broker:
        await broker.rig.create("orders")
        producer = await broker.producer()
        await broker.add(producer, ORDERS)
        await broker.commit(producer)
        broker.markers.failing.clear()
        await trio.sleep(0.15)
        assert broker.state() == "CompleteCommit"
        assert len(broker.markers.written) == 1


async def test_a_batch_waits_for_the_previous_transaction_to_be_completed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    markers = Markers(failing={"orders"})
    async with serving(tmp_path, markers, add_partitions_to_txn_retry_backoff_max_ms=490) as broker:
        await broker.rig.create("orders")
        producer = await broker.producer()
        await broker.add(producer, ORDERS)
        producer = await broker.commit(producer)
        admit = partial(broker.service.admission.admit, "id", producer, [ORDERS], TransactionSupport.ADDING, NoGuards())
        before = trio.current_time()
        assert await admit() == {ORDERS: ErrorCode.CONCURRENT_TRANSACTIONS}
        assert trio.current_time() - before == pytest.approx(0.5)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_is_admitted, admit)
            await wait_all_tasks_blocked()
            broker.markers.failing.clear()
        assert broker.state() == "Ongoing"


async def test_a_waiting_batch_is_admitted_once_the_previous_transaction_is_completed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    waits = {"add_partitions_to_txn_retry_backoff_ms": 5_000, "add_partitions_to_txn_retry_backoff_max_ms": 10_000}
    async with serving(tmp_path, Markers(failing={"orders"}), **waits) as broker:
        await broker.rig.create("orders")
        producer = await broker.producer()
        await broker.add(producer, ORDERS)
        producer = await broker.commit(producer)
        broker.markers.failing.clear()
        before = trio.current_time()
        admit = partial(broker.service.admission.admit, "id", producer, [ORDERS], TransactionSupport.ADDING)
        assert await admit(NoGuards()) == {}
        assert trio.current_time() - before < 1  # the markers are written again after 0.1 s


async def test_a_batch_that_waited_for_the_marker_of_its_partition_may_begin_the_next_transaction(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    markers = Markers(failing={"orders"}, append=append_marker)
    async with serving(tmp_path, markers, add_partitions_to_txn_retry_backoff_max_ms=490) as broker:
        orders = await broker.rig.create("orders")
        producer = await broker.producer()
        await broker.add(producer, ORDERS)
        producer = await broker.commit(producer)
        earlier = orders.log.producers.guards.open(producer.id)
        guards = OpenGuards(broker.rig.partitions, producer, {ORDERS: 0}, restarts=True)

        async def wait_for_admission() -> None:
            admit = broker.service.admission.admit
            assert await admit("id", producer, [ORDERS], TransactionSupport.ADDING, guards) == {}

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_admission)
            await wait_all_tasks_blocked()
            markers.failing.clear()
        first = transactional(producer.id, 0, epoch=producer.epoch)
        with pytest.raises(InvalidTransactionStateError):
            orders.append(first, guard=earlier)
        orders.append(first, guard=guards.numbers[ORDERS])


async def _is_admitted(admit: Callable[[], Awaitable[object]]) -> None:
    assert await admit() == {}


async def test_a_partition_that_was_deleted_needs_no_marker(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker:
        producer = await broker.producer()
        await broker.add(producer, GONE)
        await broker.commit(producer)
        await wait_all_tasks_blocked()
        assert broker.state() == "CompleteCommit"
        assert broker.markers.written == []


async def test_a_transaction_that_times_out_is_aborted_and_its_producer_fenced(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with serving(tmp_path) as broker:
        await broker.rig.create("orders")
        producer = await broker.producer(timeout_ms=1_000)
        await broker.add(producer, ORDERS)
        broker.rig.now_ms += 1_001
        await trio.sleep(10.1)
        assert broker.state() == "CompleteAbort"
        answer = await broker.service.end("id", producer, Outcome.COMMIT, TV_2)
        assert answer.error is not ErrorCode.NONE
        assert await broker.add(producer, ORDERS) is ErrorCode.PRODUCER_FENCED


async def test_an_unused_id_expires_and_is_unknown_after_a_restart(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with serving(tmp_path, transactional_id_expiration_ms=5_000) as broker:
        await broker.producer()
        broker.rig.now_ms += 5_001
        await trio.sleep(3_601)
        assert broker.state() == "TRANSACTIONAL_ID_NOT_FOUND"
    async with serving(tmp_path) as broker:
        assert broker.state() == "TRANSACTIONAL_ID_NOT_FOUND"


async def test_the_deletion_of_the_topic_resets_the_coordinator(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker:
        await broker.producer()
        await broker.rig.partitions.delete("__transaction_state")
        answer = await broker.service.initialize(InitRequest(transactional_id="id", timeout_ms=1))
        assert answer.error is ErrorCode.NOT_COORDINATOR
        assert await broker.service.ensure() is ErrorCode.NONE
        assert broker.state() == "TRANSACTIONAL_ID_NOT_FOUND"


async def test_a_stopped_coordinator_answers_and_serves_no_more(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker:
        await broker.producer()
        broker.service.stop()
        answer = await broker.service.initialize(InitRequest(transactional_id="id", timeout_ms=1))
        assert answer.error is ErrorCode.NOT_COORDINATOR
        assert await broker.service.ensure() is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_ids_given_while_the_topic_is_created_twice_at_once_are_kept(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker:
        await broker.producer("earlier")
        await broker.rig.partitions.delete("__transaction_state")
        async with trio.open_nursery() as nursery:
            for name in ("one", "two", "three"):
                nursery.start_soon(_begin, broker, name)
        assert [broker.state(name) for name in ("one", "two", "three")] == ["Empty"] * 3


async def _begin(broker: Serving, name: str) -> None:
    assert await broker.service.ensure() is ErrorCode.NONE
    await broker.producer(name)


async def test_a_completion_is_written_once_a_failed_log_is_rebuilt(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with serving(tmp_path, Markers(failing={"orders"})) as broker:
        await broker.rig.create("orders")
        producer = await broker.producer()
        await broker.add(producer, ORDERS)
        await broker.commit(producer)
        log = broker.rig.partitions.get("__transaction_state", broker.service.runtime.partition_of("id"))
        assert log is not None
        log.log.fail("Input/output error")
        broker.markers.failing.clear()
        await trio.sleep(1)
        assert broker.state() == "PrepareCommit"
        await log.reopen()
        await trio.sleep(1)
        assert broker.state() == "CompleteCommit"

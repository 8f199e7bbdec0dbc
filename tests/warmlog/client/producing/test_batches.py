"""Batches and partition queues, without a connection."""

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.client.errors import BrokerError
from warmlog.client.producing.batches import Batch, Delivery, PartitionQueue
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.records.builder import Codec
from warmlog.protocol.records.reader import records_in

REFUSED = BrokerError("no", ErrorCode.INVALID_RECORD)


def batch_of(count: int) -> Batch:
    batch = Batch("t", 3, (1,), 0.0)
    for number in range(count):
        batch.append(None, b"%d" % number, number, ())
    return batch


def settle(batch: Batch, base_offset: int) -> Batch | None:
    return batch.settle(base_offset, -1, None)


def test_offsets_count_from_the_base_offset() -> None:
    batch = batch_of(3)
    deliveries = [Delivery(batch, index, 100 + index) for index in range(3)]
    assert settle(batch, 70) is batch
    assert [delivery.metadata() for delivery in deliveries] == [("t", 3, 70 + n, 100 + n) for n in range(3)]


def test_an_unacknowledged_record_has_no_offset() -> None:
    batch = batch_of(1)
    settle(batch, -1)
    assert batch.metadata(0, 5) == ("t", 3, -1, 5)


def test_log_append_time_replaces_the_timestamp() -> None:
    batch = batch_of(1)
    batch.settle(0, 999, None)
    assert batch.metadata(0, 5).timestamp == 999


def test_a_failed_batch_raises_for_each_record() -> None:
    batch = batch_of(2)
    batch.settle(-1, -1, REFUSED)
    for index in range(2):
        with pytest.raises(BrokerError, match="no"):
            Delivery(batch, index, 0).metadata()


def test_append_returns_the_growth_in_size() -> None:
    batch = Batch("t", 0, (1,), 0.0)
    grown = sum(batch.append(b"key", b"v" * n, 5, (("h", b"x"),)) for n in range(10))
    assert grown == batch.size == len(batch.encoded(Codec.NONE)) - 61


def test_a_rejected_record_leaves_the_batch_unchanged() -> None:
    batch = batch_of(1)
    before = (batch.size, batch.count)
    with pytest.raises(TypeError):
        batch.append(None, "text", 0, ())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timestamp"):
        batch.append(None, b"", -5, ())
    assert (batch.size, batch.count) == before


@given(count=st.integers(2, 40), codec=st.sampled_from(Codec), data=st.data())
def test_split_again_and_again_every_record_keeps_its_place(count: int, codec: Codec, data: st.DataObject) -> None:
    """A batch that was too large is split until its pieces fit; offsets stay those of the records."""
    whole = batch_of(count)
    whole.encoded(codec)
    queue, offset, stored = PartitionQueue("t", 3), 0, []
    queue.put_back(whole)
    while queue:
        batch = queue.take()
        records = list(records_in(batch.encoded(codec)))
        assert len(records) == batch.count
        if batch.count > 1 and data.draw(st.booleans()):
            for half in reversed(batch.split()):
                queue.put_back(half)
            continue
        stored += [record.value for record in records]
        assert (settle(batch, offset) is whole) == (not queue)
        offset += batch.count
    assert stored == [b"%d" % number for number in range(count)]
    assert [whole.metadata(index, -1).offset for index in range(count)] == list(range(count))


def test_of_halves_one_may_fail() -> None:
    whole = batch_of(4)
    whole.encoded(Codec.NONE)
    first, second = whole.split()
    assert first.settle(-1, -1, REFUSED) is None
    assert not whole.done
    assert settle(second, 10) is whole
    assert whole.error is REFUSED
    assert whole.metadata(3, 0).offset == 11
    with pytest.raises(BrokerError):
        whole.metadata(1, 0)


@given(st.permutations(range(6)))
def test_batches_that_come_back_take_their_old_places(order: list[int]) -> None:
    queue = PartitionQueue("t", 0)
    batches = []
    for _ in range(6):
        batches.append(queue.begin(0.0))
        queue.close()
    sent = [queue.take() for _ in range(6)]
    assert sent == batches
    begun_later = queue.begin(0.0)
    for place in order:
        queue.put_back(sent[place])
    assert [queue.take() for _ in range(7)] == [*batches, begun_later]
    assert not queue


def test_when_a_queue_is_ready() -> None:
    queue = PartitionQueue("t", 0)
    batch = queue.begin(10.0)
    assert queue.ready_at(0.5) == 10.5
    queue.close()
    assert queue.ready_at(0.5) == 10.0
    batch.not_before = 12.0
    assert queue.ready_at(0.5) == 12.0
    queue.begin(11.0)
    assert queue.head is batch


async def test_waiting_ends_when_settled_and_an_awaited_error_counts_as_seen() -> None:
    batch = batch_of(1)
    delivery = Delivery(batch, 0, 0)
    seen = []

    async def wait() -> None:
        seen.append(await delivery.wait())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        assert not seen
        assert batch.watched
        settle(batch, 5)
    assert seen == [("t", 3, 5, 0)]

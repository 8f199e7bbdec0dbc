"""The rules of epochs and sequences, against a reference that remembers everything."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmlog.broker.log.errors import InvalidProducerEpochError, InvalidTransactionStateError, OutOfOrderSequenceError
from warmlog.broker.log.producers.state import BATCHES_KEPT, MAX_SEQUENCE, ProducerBatch, ProducerState
from warmlog.broker.log.producers.table import Producers
from warmlog.broker.log.producers.transitions import after_batch, after_marker
from warmlog.broker.log.segments.tail import BatchExtent
from warmlog.protocol.records.batch import read_header
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader

NOW_MS = 1_700_000_000_000


def header(sequence: int, count: int = 1, *, producer_id: int = 7, epoch: int = 0, attributes: int = 0) -> BatchHeader:
    rows = [(NOW_MS + i, None, b"v", ()) for i in range(count)]
    return read_header(
        build_batch(rows, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, attributes=attributes)
    )


class Log:
    """The producers of a log that is nothing but its end."""

    def __init__(self, states: Sequence[ProducerState] = ()) -> None:
        self.producers = Producers()
        for state in states:
            self.producers[state.producer_id] = state
        self.end = self.planned_end = 0
        self.plans: list[tuple[int, Sequence[ProducerState]]] = []

    def plan(self, *headers: BatchHeader) -> list[int]:
        """The base offset of each batch: of the originals, where they are duplicates."""
        checked = [(0, each) for each in headers]
        known = self.producers.find_duplicates(checked)
        extents, fresh, next_offset = [], [], self.planned_end
        fresh_headers = headers[len(known) :]
        for each in fresh_headers:
            fresh.append(next_offset)
            extents.append(BatchExtent(next_offset + each.last_offset_delta, each.max_timestamp, each.size))
            next_offset = extents[-1].last_offset + 1
        states = self.producers.plan(checked[len(known) :], extents)
        self.planned_end = next_offset
        self.plans.append((next_offset, states))
        fresh = [
            extent.last_offset - each.last_offset_delta
            for extent, each in zip(extents, headers[len(known) :], strict=True)
        ]
        return [batch.base_offset for batch in known] + fresh

    def commit(self) -> None:
        for end, states in self.plans:
            self.producers.commit(states)
            self.end = end
        self.plans = []

    def abandon(self) -> None:
        self.producers.abandon()
        self.planned_end, self.plans = self.end, []

    def append(self, *headers: BatchHeader) -> list[int]:
        offsets = self.plan(*headers)
        self.commit()
        return offsets


def test_a_producer_that_is_not_known_may_begin_anywhere() -> None:
    log = Log()
    assert log.append(header(1234, 3)) == [0]
    assert log.append(header(1237)) == [3]


def test_a_batch_that_does_not_follow_is_out_of_order() -> None:
    log = Log()
    log.append(header(0, 3))
    for sequence in (1, 2, 4, MAX_SEQUENCE):
        with pytest.raises(
            OutOfOrderSequenceError, match=f"producer 7, epoch 0, sequence {sequence}: expected sequence 3"
        ):
            log.append(header(sequence))
    assert log.append(header(3)) == [3]


def test_the_last_five_batches_are_answered_with_where_they_are() -> None:
    log = Log()
    for sequence in range(0, 14, 2):
        log.append(header(sequence, 2))
    for sequence in range(4, 14, 2):
        assert log.append(header(sequence, 2)) == [sequence]
    assert log.end == 14
    with pytest.raises(OutOfOrderSequenceError):
        log.append(header(2, 2))


def test_a_batch_with_another_end_is_no_duplicate() -> None:
    log = Log()
    log.append(header(0, 3))
    for count in (1, 2, 4):
        with pytest.raises(OutOfOrderSequenceError):
            log.append(header(0, count))


def test_sequences_begin_again_after_the_largest() -> None:
    log = Log()
    log.append(header(MAX_SEQUENCE - 1, 2))
    assert log.append(header(0)) == [2]
    log = Log()
    log.append(header(MAX_SEQUENCE, 3))  # MAX_SEQUENCE, 0, 1
    assert log.append(header(2)) == [3]
    assert log.append(header(MAX_SEQUENCE, 3)) == [0]
    (state,) = log.producers.capture()
    assert (state.batches[0].base_sequence, state.batches[0].last_sequence) == (MAX_SEQUENCE, 1)


def test_a_newer_epoch_begins_with_sequence_0_and_shuts_out_the_older() -> None:
    log = Log()
    log.append(header(0, 5))
    with pytest.raises(OutOfOrderSequenceError, match="begins with sequence 0"):
        log.append(header(5, epoch=1))
    assert log.append(header(0, epoch=1)) == [5]
    with pytest.raises(InvalidProducerEpochError, match="epoch is now 1"):
        log.append(header(5))
    with pytest.raises(InvalidProducerEpochError):
        log.append(header(0, 5))  # also what was a duplicate in its own epoch
    assert log.append(header(1, epoch=1)) == [6]


def test_producers_do_not_know_of_each_other() -> None:
    log = Log()
    assert log.append(header(0, producer_id=1), header(50, producer_id=2), header(1, producer_id=1)) == [0, 1, 2]
    assert log.append(header(51, producer_id=2)) == [3]
    assert log.producers.largest_id == 2


def test_a_batch_without_a_producer_changes_nothing() -> None:
    log = Log()
    log.append(header(-1, producer_id=-1, epoch=-1), header(0), header(-1, producer_id=-1, epoch=-1))
    assert [state.producer_id for state in log.producers.capture()] == [7]
    assert next(iter(log.producers.capture())).batches[0].last_offset == 1
    log.append(header(0), header(-1, producer_id=-1, epoch=-1))  # the first is known, the rest is one batch
    assert (log.end, len(log.producers)) == (4, 1)


def test_a_plan_of_several_batches_that_is_refused_leaves_nothing() -> None:
    log = Log()
    log.append(header(0))
    with pytest.raises(OutOfOrderSequenceError):
        log.plan(header(1), header(3))
    assert log.append(header(1)) == [1]


def test_the_new_end_of_a_request_whose_start_is_known_is_taken() -> None:
    log = Log()
    log.append(header(0, 2), header(2, 2))
    assert log.append(header(0, 2), header(2, 2), header(4)) == [0, 2, 4]
    assert log.end == 5


def test_a_duplicate_after_something_new_is_out_of_order() -> None:
    log = Log()
    log.append(header(0))
    with pytest.raises(OutOfOrderSequenceError):
        log.append(header(1), header(0))


def test_batches_outside_their_transaction_are_refused() -> None:
    log = Log()
    with pytest.raises(InvalidTransactionStateError, match="is in no open transaction"):
        log.append(header(0, attributes=TRANSACTIONAL_BIT))
    open_since = ProducerState(7, epoch=0, transaction_first_offset=40, batches=(ProducerBatch(4, 44, 4, NOW_MS),))
    with pytest.raises(InvalidTransactionStateError, match="outside the open transaction"):
        Log([open_since]).append(header(5))


def test_a_markers_epoch_ends_what_was_known_of_the_one_before() -> None:
    state = after_batch(ProducerState(7), header(0, 3, attributes=TRANSACTIONAL_BIT), 12, NOW_MS)
    assert state.transaction_first_offset == 10
    same = after_marker(state, 0, 4, NOW_MS + 1)
    assert (same.last_sequence, same.coordinator_epoch, same.transaction_first_offset) == (2, 4, -1)
    newer = after_marker(state, 1, 4, NOW_MS + 1)
    assert (newer.epoch, newer.last_sequence, newer.last_timestamp) == (1, -1, NOW_MS + 1)
    assert Log([newer]).append(header(0, epoch=1)) == [0]
    assert CONTROL_BIT  # markers themselves never come from clients: `check_batches` refuses them


class Reference:
    """The same rules, said plainly: every batch of every producer is remembered, in the order it was taken."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int, int, int]] = []  # producer, epoch, first sequence, count

    def offer(self, producer_id: int, epoch: int, sequence: int, count: int) -> int | type[Exception]:
        """Its base offset, or what it is refused with."""
        mine = [(at, batch) for at, batch in enumerate(self.taken) if batch[0] == producer_id]
        batch = (producer_id, epoch, sequence, count)
        latest = mine[-1][1][1] if mine else epoch
        for at, other in [pair for pair in mine if pair[1][1] == latest][-BATCHES_KEPT:]:
            if other == batch:
                return sum(each[3] for each in self.taken[:at])
        if epoch < latest:
            return InvalidProducerEpochError
        expected = 0 if epoch > latest else (mine[-1][1][2] + mine[-1][1][3]) % (MAX_SEQUENCE + 1) if mine else sequence
        if sequence != expected:
            return OutOfOrderSequenceError
        self.taken.append(batch)
        return sum(each[3] for each in self.taken[:-1])


near_the_turn = st.one_of(st.integers(0, 12), st.integers(MAX_SEQUENCE - 6, MAX_SEQUENCE))
offers = st.tuples(st.integers(1, 2), st.integers(0, 2), near_the_turn, st.integers(1, 3))
steps = st.one_of(
    st.tuples(st.just("offer"), offers),
    st.tuples(st.just("follow"), st.integers(1, 3)),
    st.tuples(st.just("repeat"), st.integers(0, 7)),
    st.tuples(st.just("commit"), st.none()),
    st.tuples(st.just("abandon"), st.none()),
)


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(steps, max_size=40))
def test_every_batch_is_judged_as_the_reference_does(steps: list[tuple[str, object]]) -> None:
    log, reference, committed = Log(), Reference(), 0
    for step, what in steps:
        taken = reference.taken
        if step == "commit":
            log.commit()
            committed = len(taken)
        elif step == "abandon":
            log.abandon()
            del taken[committed:]
        elif step == "offer" or not taken:
            producer_id, epoch, sequence, count = what if isinstance(what, tuple) else (1, 0, 0, 1)
            judge(log, reference, producer_id, epoch, sequence, count)
        elif step == "follow":
            producer_id, epoch, sequence, count = taken[-1]
            judge(log, reference, producer_id, epoch, (sequence + count) % (MAX_SEQUENCE + 1), int(str(what)))
        else:
            judge(log, reference, *taken[-1 - int(str(what)) % len(taken)])


def judge(log: Log, reference: Reference, producer_id: int, epoch: int, sequence: int, count: int) -> None:
    offered = header(sequence, count, producer_id=producer_id, epoch=epoch)
    expected = reference.offer(producer_id, epoch, sequence, count)
    if isinstance(expected, int):
        assert log.plan(offered) == [expected]
    else:
        with pytest.raises(expected):
            log.plan(offered)

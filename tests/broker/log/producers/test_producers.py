"""Which producers a log knows: at work, at rest, captured, forgotten; names hold the invariants of `producers`."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmlog.broker.log.errors import TooManyProducersError
from warmlog.broker.log.producers.idle import ProducerBudget
from warmlog.broker.log.producers.snapshot import decode_entries, encode_entry
from warmlog.broker.log.producers.state import ProducerBatch, ProducerState
from warmlog.broker.log.producers.table import MAX_ACTIVE, Producers
from warmlog.broker.log.segments.tail import BatchExtent
from warmlog.protocol.records.batch import read_header
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import BatchHeader

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
MANY = 3 * MAX_ACTIVE


class Rig:
    """The producers of a log that is nothing but its end, and a clock."""

    def __init__(self, budget: ProducerBudget | None = None) -> None:
        self.now_ms = NOW_MS
        self.budget = budget or ProducerBudget()
        self.producers = Producers(lambda: self.now_ms, self.budget)
        self.end = 0

    def append(self, producer_id: int, sequence: int = 0) -> None:
        header = read_header(
            build_batch(
                [(self.now_ms, None, b"v", ())], producer_id=producer_id, producer_epoch=0, base_sequence=sequence
            )
        )
        self.append_headers(header)

    def append_headers(self, header: BatchHeader) -> None:
        plan = self.producers.plan([(0, header)], [BatchExtent(self.end, header.max_timestamp, header.size)])
        self.producers.commit(plan)
        self.end += 1

    def ids(self) -> list[int]:
        return sorted(state.producer_id for state in self.producers.capture())

    def rest(self) -> None:
        """Let those that are known now be idle, since now."""
        for _ in range(2):
            self.producers.age(0)


def header_of(producer_id: int, sequence: int, timestamp: int = NOW_MS) -> BatchHeader:
    rows = [(timestamp, None, b"v", ())]
    return read_header(build_batch(rows, producer_id=producer_id, producer_epoch=0, base_sequence=sequence))


def state(producer_id: int, batches: int, *, epoch: int = 3, open_since: int = -1) -> ProducerState:
    made = [ProducerBatch(10 * at, 100 * at, at, NOW_MS + at) for at in range(batches)]
    return ProducerState(producer_id, epoch, 7, NOW_MS + 99, open_since, tuple(made))


@pytest.mark.parametrize("batches", range(6))
def test_a_producer_at_rest_is_remembered_with_all_its_batches(batches: int) -> None:
    made = Rig()
    known = state(1 << 40, batches, open_since=-1 if batches % 2 else 17)
    made.producers[known.producer_id] = known
    made.rest()
    assert made.producers.get(known.producer_id) == known
    assert list(made.producers.capture()) == [known]
    assert list(made.producers.open_transactions.values()) == ([] if batches % 2 else [17])


def test_far_more_producers_than_any_bound_of_old_are_recognized_when_they_send_again() -> None:
    """Above 10,000, active ones were forgotten, and what they sent again was stored twice."""
    made = Rig()
    for producer_id in range(12_000):
        made.append(producer_id)
    for producer_id in (0, 1, 5_999, 11_999):
        known = made.producers.get(producer_id)
        assert known is not None
        assert (known.last_sequence, known.last_offset) == (0, producer_id)
    assert len(made.producers) == made.budget.count == 12_000
    made.append(0, sequence=1)
    assert len(made.producers) == 12_000
    assert made.producers.largest_id == 11_999


ids = st.integers(0, 3000)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("touch"), ids),
        st.tuples(st.just("touch many"), ids),
        st.tuples(st.just("rest"), st.none()),
        st.tuples(st.just("capture"), st.none()),
        st.tuples(st.just("forget"), st.integers(1, 2000)),
    ),
    max_size=30,
)


@settings(max_examples=60)
@given(operations)
def test_what_is_captured_stays_as_it_was_whatever_happens_afterwards(steps: list[tuple[str, int | None]]) -> None:
    made = Rig()
    known: dict[int, ProducerState] = {}
    captured: list[tuple[object, dict[int, ProducerState]]] = []
    for step, argument in steps:
        made.now_ms += 1
        if step == "rest":
            made.rest()
        elif step == "capture":
            captured.append((made.producers.capture(), dict(known)))
        elif step == "forget":
            assert argument is not None
            made.producers.forget_idle(made.now_ms, most=argument)
            known = {each.producer_id: each for each in made.producers.capture()}
        else:
            assert argument is not None
            for producer_id in range(argument, argument + (700 if step == "touch many" else 1)):
                before = known.get(producer_id)
                known[producer_id] = state(producer_id, 1 + (0 if before is None else len(before.batches)) % 5)
                made.producers[producer_id] = known[producer_id]
        assert len(made.producers) == made.budget.count == len(known)
    captured.append((made.producers.capture(), known))
    for found, expected in captured:
        assert {each.producer_id: each for each in found} == expected  # type: ignore[attr-defined]
        assert len(found) == len(expected)  # type: ignore[arg-type]
        assert list(entries(found)) == sorted(map(encode_entry, expected.values()))


def entries(captured: object) -> list[bytes]:
    data = b"".join(captured.pieces())  # type: ignore[attr-defined]
    return sorted(map(encode_entry, decode_entries(memoryview(data))))


def test_a_snapshot_is_taken_in_and_counts_as_idle_from_then_on() -> None:
    made = Rig()
    data = b"".join(encode_entry(state(producer_id, 1)) for producer_id in range(MANY))
    made.producers.load(memoryview(data))
    assert made.ids() == list(range(MANY))
    assert made.budget.count == MANY
    made.now_ms += HOUR_MS - 1
    made.producers.forget_idle(made.now_ms - HOUR_MS, most=MANY)
    assert len(made.producers) == MANY
    made.now_ms += 1
    made.producers.forget_idle(made.now_ms - HOUR_MS, most=MANY)
    assert len(made.producers) == made.budget.count == 0


# -- forgetting --------------------------------------------------------------------------------------------------------


def forget(made: Rig, idle_ms: int) -> None:
    while made.producers.forget_idle(made.now_ms - idle_ms, most=100):
        pass


def test_only_those_that_are_idle_for_so_long_are_forgotten() -> None:
    made = Rig()
    for producer_id in range(MANY):
        made.append(producer_id)
    made.rest()
    made.now_ms += HOUR_MS // 2
    for producer_id in range(MANY, 2 * MANY):
        made.append(producer_id)
    made.append(5, sequence=1)  # it comes back
    made.rest()
    made.now_ms += HOUR_MS // 2
    forget(made, HOUR_MS)
    assert made.ids() == [5, *range(MANY, 2 * MANY)]
    made.now_ms += HOUR_MS // 2
    forget(made, HOUR_MS)
    assert made.ids() == []
    assert made.budget.count == 0


def test_a_producer_is_never_taken_for_idle_earlier_than_it_is() -> None:
    made = Rig()
    made.append(1)
    made.producers.age(0)
    made.now_ms += HOUR_MS - 1
    made.append(2)
    made.producers.age(0)
    made.producers.age(0)
    forget(made, HOUR_MS)
    assert made.ids() == [1, 2]
    made.now_ms += 1
    forget(made, HOUR_MS)
    assert made.ids() == [2]


def test_one_with_an_open_transaction_or_young_records_stays() -> None:
    made = Rig()
    made.producers[1] = state(1, 1)
    made.producers[2] = state(2, 1, open_since=5)
    made.producers[3] = ProducerState(
        3, 0, -1, NOW_MS + 5 * HOUR_MS, -1, (ProducerBatch(0, 9, 0, NOW_MS + 5 * HOUR_MS),)
    )
    made.rest()
    made.now_ms += HOUR_MS
    limit = made.now_ms - HOUR_MS + 99
    made.producers.forget_idle(limit, limit, most=100)
    assert made.ids() == [2, 3]
    made.producers[2] = state(2, 1)  # it ends
    made.rest()
    made.now_ms += 5 * HOUR_MS
    limit = made.now_ms - HOUR_MS
    made.producers.forget_idle(limit, limit, most=100)
    assert made.ids() == []


def test_what_is_planned_outlives_the_state_it_stands_on() -> None:
    made = Rig()
    made.append(7)
    made.rest()
    header = header_of(7, 1)
    plan = made.producers.plan([(0, header)], [BatchExtent(1, NOW_MS, header.size)])
    made.now_ms += HOUR_MS
    forget(made, HOUR_MS)
    assert len(made.producers) == 0
    made.producers.commit(plan)
    assert made.ids() == [7]
    assert made.budget.count == 1


# -- the bound ---------------------------------------------------------------------------------------------------------


def test_where_all_logs_together_know_enough_a_new_producer_is_refused_and_a_known_one_goes_on() -> None:
    budget = ProducerBudget(10)
    one, other = Rig(budget), Rig(budget)
    for producer_id in range(5):
        one.append(producer_id)
        other.append(producer_id)
    for made in (one, other):
        with pytest.raises(TooManyProducersError, match=r"cannot add producer 99: 10 .*warmlog\.producers\.max"):
            made.append(99, sequence=3)
        made.append(3, sequence=1)
    assert budget.refused == 2
    one.producers.release()
    assert budget.count == 5
    other.append(99, sequence=3)


def test_several_batches_are_refused_together() -> None:
    made = Rig(ProducerBudget(1))
    made.append(1)
    headers = [header_of(producer_id, 1) for producer_id in (1, 2)]
    extents = [BatchExtent(at, NOW_MS, 1) for at in range(2)]
    with pytest.raises(TooManyProducersError):
        made.producers.plan([(0, header) for header in headers], extents)
    made.append(1, sequence=1)


# -- what it costs -----------------------------------------------------------------------------------------------------


def test_ids_that_are_chosen_to_be_together_are_spread() -> None:
    made = Rig()
    for producer_id in range(0, 20_000 << 20, 1 << 20):
        made.producers[producer_id] = ProducerState(producer_id, 0, -1, NOW_MS, -1, ())
    made.rest()
    sizes = sorted(map(len, made.producers._buckets.values()))
    assert sum(sizes) == 20_000
    assert sizes[-1] < 200


def test_a_log_with_few_producers_has_few_buckets() -> None:
    made = Rig()
    for producer_id in range(1000, 1200):
        made.append(producer_id)
    made.rest()
    assert len(made.producers._buckets) <= 2

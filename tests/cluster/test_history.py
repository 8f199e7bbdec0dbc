"""The history checker finds each anomaly that is planted in a good history, and none in a good one."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.history import Outcome, PartitionHistory, Poll, Read, Sent


def good() -> PartitionHistory:
    values = [f"v{number}".encode() for number in range(6)]
    return PartitionHistory(
        sent=[
            *(Sent("a", number, values[number], Outcome.STORED, offset) for number, offset in ((0, 0), (1, 1), (2, 4))),
            *(Sent("b", number, values[number], Outcome.STORED, offset) for number, offset in ((3, 2), (4, 5))),
            Sent("b", 5, values[5], Outcome.UNKNOWN),
            Sent("b", 6, b"refused", Outcome.REFUSED),
        ],
        # offset 3 is a gap, as a marker of a transaction or a compaction leaves it
        log=[Read(0, values[0]), Read(1, values[1]), Read(2, values[3]), Read(4, values[2]), Read(5, values[4])],
        polls=[
            Poll("c", (Read(0, values[0]), Read(1, values[1])), 2),
            Poll("c", (Read(2, values[3]), Read(4, values[2])), 5),
            Poll("d", (Read(1, values[1]),), 2),
            Poll("c", (Read(1, values[1]),), 6, is_new=True),
        ],
    )


def lose(history: PartitionHistory) -> None:
    history.log.pop()


def lose_at_its_offset(history: PartitionHistory) -> None:
    history.log[-1] = Read(6, history.log[-1].value)


def fork(history: PartitionHistory) -> None:
    history.polls[0] = Poll("c", (Read(0, b"v5"),), 2)


def duplicate(history: PartitionHistory) -> None:
    history.log.append(Read(6, history.log[0].value))


def invent(history: PartitionHistory) -> None:
    history.log.append(Read(6, b"from nowhere"))


def show_refused(history: PartitionHistory) -> None:
    history.polls.append(Poll("e", (Read(6, b"refused"),)))


def go_back(history: PartitionHistory) -> None:
    history.polls[1] = Poll("c", (Read(1, b"v1"), Read(2, b"v3")), 5)


def skip(history: PartitionHistory) -> None:
    history.polls[1] = Poll("c", (Read(4, b"v2"),), 5)


def reorder(history: PartitionHistory) -> None:
    history.sent[0] = history.sent[0]._replace(number=1)
    history.sent[1] = history.sent[1]._replace(number=0)


def fall(history: PartitionHistory) -> None:
    history.polls[1] = history.polls[1]._replace(high_watermark=1)


PLANTED: list[tuple[str, Callable[[PartitionHistory], None]]] = [
    ("lost", lose),
    ("lost", lose_at_its_offset),
    ("forked", fork),
    ("duplicated", duplicate),
    ("never sent", invent),
    ("aborted read", show_refused),
    ("backward", go_back),
    ("skipped", skip),
    ("reordered", reorder),
    ("fallen", fall),
]


def test_a_good_history_has_no_anomaly() -> None:
    assert good().anomalies() == []


@pytest.mark.parametrize(("kind", "plant"), PLANTED)
def test_a_planted_anomaly_is_found(kind: str, plant: Callable[[PartitionHistory], None]) -> None:
    history = good()
    plant(history)
    assert kind in {anomaly.kind for anomaly in history.anomalies()}


@given(st.lists(st.binary(min_size=1, max_size=3), unique=True, max_size=30), st.randoms())
def test_polls_of_any_sizes_over_a_whole_log_have_no_anomaly(values: list[bytes], random: object) -> None:
    log = [Read(2 * offset, value) for offset, value in enumerate(values)]
    sent = [Sent("p", number, value, Outcome.STORED, 2 * number) for number, value in enumerate(values)]
    polls, at = [], 0
    while at < len(log):
        size = random.randint(1, 5)  # type: ignore[attr-defined]
        polls.append(Poll("c", tuple(log[at : at + size]), at + size))
        at += size
    assert PartitionHistory(sent=sent, polls=polls, log=log).anomalies() == []


def test_many_of_a_kind_are_counted_rather_than_listed() -> None:
    history = PartitionHistory(sent=[Sent("p", n, b"%d" % n, Outcome.STORED, n) for n in range(100)])
    found = history.anomalies()
    assert len(found) == 6
    assert found[-1].detail == "100 in all"

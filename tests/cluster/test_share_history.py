"""The judge of what members of share groups saw."""

import pytest

from tests.cluster.share_history import Event, anomalies, parse, stale

RECORD, LIMIT = (0, 7), 5


def event(kind: str, at_ms: int, member: str = "1-0", *, started_ms: int = 0, deliveries: int = 1) -> Event:
    return Event(kind, at_ms, started_ms, member, RECORD, deliveries)


GOOD = (event("delivered", 1), event("accepting", 2), event("accepted", 3))


def test_a_record_that_is_acknowledged_once_is_right() -> None:
    assert anomalies([RECORD], GOOD, LIMIT) == []


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ((event("accepted", 9, "2-0"),), "acknowledged twice"),
        ((event("delivered", 9, "2-0", started_ms=5),), "delivered after it was acknowledged"),
        ((event("delivered", 2, deliveries=6),), "delivery count 6"),
        ((event("released", 1, deliveries=2), event("delivered", 3, started_ms=2)), "delivery count has not grown"),
    ],
)
def test_what_contradicts_an_invariant_is_reported(more: tuple[Event, ...], text: str) -> None:
    (wrong,) = anomalies([RECORD], (*GOOD, *more), LIMIT)
    assert text in wrong


def test_a_record_whose_acknowledgement_was_never_sent_is_reported() -> None:
    (wrong,) = anomalies([RECORD], GOOD[:1], LIMIT)
    assert "not acknowledged" in wrong


def test_deliveries_to_members_that_ran_before_are_only_counted() -> None:
    late = event("delivered", 9, "2-0", started_ms=1)
    assert anomalies([RECORD], (*GOOD, late), LIMIT) == []
    assert stale((*GOOD, late)) == 1


def test_lines_of_members_are_parsed() -> None:
    assert parse("delivered 12 0 3 44 2\n", "p", 5) == Event("delivered", 12, 5, "p-0", (3, 44), 2)
    assert parse("failed 12 0 Some Error: text\n", "p", 5) == "Some Error: text"
    assert parse("delivered 12 0 3 4", "p", 5) is None

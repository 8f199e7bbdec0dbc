"""What the judge of consumer groups under kills notices."""

from tests.cluster.consumer_history import Event, anomalies, parse

GOOD = [
    Event("assigned", 10, "1-0", 0, -1),
    Event("consumed", 20, "1-0", 0, 0),
    Event("consumed", 21, "1-0", 0, 1),
    Event("committed", 30, "1-0", 0, 1),
    Event("revoked", 40, "1-0", 0, -1),
    Event("assigned", 50, "2-0", 0, -1),
    Event("consumed", 60, "2-0", 0, 1),
]
RECORDS = [(0, 0), (0, 1)]


def test_a_record_may_be_consumed_again_that_was_not_committed() -> None:
    assert anomalies(RECORDS, GOOD, {}) == []


def test_lines_of_members_are_events_or_failures() -> None:
    assert parse("consumed 20 0 3 7\n", "1") == Event("consumed", 20, "1-0", 3, 7)
    assert parse("failed 20 0 no broker: gone\n", "1") == "no broker: gone"
    assert parse("consumed 20 0 3", "1") is None


def test_a_lost_record_is_noticed() -> None:
    assert anomalies([*RECORDS, (1, 0)], GOOD, {}) == ["(1, 0): not consumed"]


def test_a_committed_record_that_is_consumed_again_is_noticed() -> None:
    (text,) = anomalies(RECORDS, [*GOOD, Event("consumed", 61, "2-0", 0, 0)], {})
    assert text == "0: 2-0 consumed 0 to 0 again, committed before up to 1"


def test_two_members_with_one_partition_are_noticed() -> None:
    events = [event for event in GOOD if event.kind != "revoked"]
    assert anomalies(RECORDS, events, {}) == ["0: assigned to 2-0 at 50 while 1-0 had it from 10"]
    assert anomalies(RECORDS, events, {"1": 45}) == []
    assert anomalies(RECORDS, events, {"1": 55}) != []

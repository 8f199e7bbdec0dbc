"""Which data continues the history of a broker's latest registration."""

from uuid import UUID

import pytest

from warmlog.broker.cluster.history import ScannedDirectory, history_of
from warmlog.broker.cluster.values import NO_EPOCH, Registration

FIRST, SECOND = UUID(int=1), UUID(int=2)
KNOWN = Registration(broker=1, since=5, epoch=9, directories=(FIRST, SECOND))


def found(first: int | None = 9, second: int | None = 9) -> list[ScannedDirectory]:
    return [ScannedDirectory("/a", FIRST, first), ScannedDirectory("/b", SECOND, second)]


def refused(
    known: Registration | None, epoch: int, directories: list[ScannedDirectory], missing: dict[UUID, str] | None = None
) -> list[str]:
    since, objections = history_of(known, epoch, directories, missing or {})
    assert since == NO_EPOCH
    return list(objections)


def test_directories_of_the_latest_registration_continue_its_history() -> None:
    assert history_of(KNOWN, 9, found(), {}) == (5, ())


def test_a_new_empty_directory_changes_nothing() -> None:
    new = ScannedDirectory("/c", UUID(int=3), None, is_empty=True)
    assert history_of(KNOWN, 9, [*found(), new], {}) == (5, ())


def test_a_new_broker_begins_a_history() -> None:
    assert refused(None, NO_EPOCH, [ScannedDirectory("/a", FIRST, None, is_empty=True)]) == []


def test_a_broker_that_the_store_does_not_know_begins_another_history() -> None:
    assert refused(None, 9, found()) == ["the store does not know the broker: it was unregistered"]


@pytest.mark.parametrize(
    ("epoch", "directories", "said"),
    [
        (9, found(second=7), "/b is an older copy, closed in registration 7"),
        (7, found(first=7), "/a is an older copy, last used in registration 7"),
        (NO_EPOCH, found(), "/a remembers no registration"),
        (9, found(second=None), "/b was not closed cleanly"),
        (9, found(second=NO_EPOCH), "/b was changed or closed outside of the cluster"),
    ],
)
def test_each_directory_has_to_prove_that_it_is_the_newest(
    epoch: int, directories: list[ScannedDirectory], said: str
) -> None:
    assert refused(KNOWN, epoch, directories)[0].startswith(said)


def test_a_directory_that_was_offline_in_the_latest_registration_is_not_the_newest() -> None:
    returned = ScannedDirectory("/c", UUID(int=3), 4)
    assert refused(KNOWN, 9, [*found(), returned])[0].startswith("/c is an older copy, closed in registration 4")


def test_a_missing_directory_is_named() -> None:
    assert refused(KNOWN, 9, found()[:1], {SECOND: "/b was emptied"}) == ["/b was emptied"]
    assert refused(KNOWN, 9, found()[:1]) == [f"the data directory with the id {SECOND} is missing"]

import pytest

from warmlog.broker.metadata.topic import (
    InvalidPartitionsError,
    InvalidTopicError,
    check_collision,
    check_name,
    check_partitions,
    folded,
)


@pytest.mark.parametrize("name", ["orders", "a", "A.b_c-9", "x" * 249, "...", "__consumer_offsets"])
def test_legal_names_are_accepted(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "x" * 250, "a b", "a/b", "../etc", "ä", "a\n", "a\0b", "a:b", "тема", "a,b"]
)
def test_illegal_and_overlong_names_are_rejected(name: str) -> None:
    with pytest.raises(InvalidTopicError):
        check_name(name)


def test_names_that_differ_only_by_dot_and_underscore_collide() -> None:
    with pytest.raises(InvalidTopicError, match=r"'a_b' collides with 'a\.b'"):
        check_collision("a_b", "a.b")
    assert folded("a_b") == folded("a.b")


def test_a_name_does_not_collide_with_itself_or_with_others() -> None:
    check_collision("a.b", "a.b")
    check_collision("a.b", None)
    assert len({folded(name) for name in ("a.b", "a-b", "ab")}) == 3


@pytest.mark.parametrize("count", [0, -1, 100_001])
def test_partition_counts_outside_the_range_are_rejected(count: int) -> None:
    with pytest.raises(InvalidPartitionsError, match=r"1 to 100,000 partitions"):
        check_partitions(count)

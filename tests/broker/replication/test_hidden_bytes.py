"""Count the bytes that become visible."""

from hypothesis import given
from hypothesis import strategies as st

from warmlog.broker.replication.hidden_bytes import MAX_WRITES, HiddenBytes


def test_bytes_are_counted_once_the_high_watermark_covers_their_write() -> None:
    hidden = HiddenBytes(10, 10)
    hidden.written(12, 100)
    hidden.written(15, 200)
    assert [hidden.show(end) for end in (11, 12, 14, 15)] == [1, 100, 1, 200]


def test_what_was_written_before_is_not_known() -> None:
    hidden = HiddenBytes(10, 20)
    hidden.written(21, 100)
    assert [hidden.show(end) for end in (15, 21)] == [None, None]
    hidden.written(22, 7)
    assert hidden.show(22) == 7


@given(st.lists(st.integers(1, 1000), max_size=3 * MAX_WRITES))
def test_nothing_is_counted_twice_or_forgotten(sizes: list[int]) -> None:
    hidden = HiddenBytes(0, 0)
    for end, size in enumerate(sizes, 1):
        hidden.written(end, size)
    shown = hidden.show(len(sizes)) if sizes else 0
    assert shown == sum(sizes)

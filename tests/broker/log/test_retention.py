"""The rules of retention against a plain model, and one by one."""

from hypothesis import given
from hypothesis import strategies as st

from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.retention.rules import Candidate, RemovalReason, removal_reasons

START, SIZE, TIME = RemovalReason


def candidates(*sizes: int) -> list[Candidate]:
    """Segments of ten offsets each."""
    last = len(sizes) - 1
    return [Candidate(10 * (slot + 1), size, slot == last) for slot, size in enumerate(sizes)]


def reasons(
    segments: list[Candidate],
    *,
    log_start_offset: int = 0,
    high_watermark: int = 1000,
    expired: int = 0,
    **config: object,
) -> list[RemovalReason]:
    """With the first `expired` segments past their time."""
    return removal_reasons(
        segments,
        LogConfig(**config),  # type: ignore[arg-type]
        log_start_offset=log_start_offset,
        high_watermark=high_watermark,
        is_expired=lambda slot: slot < expired,
    )


def test_by_size_the_oldest_go_while_what_is_left_is_still_enough() -> None:
    segments = candidates(10, 10, 10, 5)
    assert reasons(segments, retention_bytes=26) == []
    assert reasons(segments, retention_bytes=25) == [SIZE]
    assert reasons(segments, retention_bytes=15) == [SIZE, SIZE]
    assert reasons(segments, retention_bytes=1) == [SIZE, SIZE, SIZE]
    assert reasons(segments, retention_bytes=0) == [SIZE, SIZE, SIZE, SIZE]
    assert reasons(segments, retention_bytes=-1) == []


def test_by_time_the_active_segment_goes_too_but_not_an_empty_one() -> None:
    assert reasons(candidates(10, 10, 5), expired=3) == [TIME, TIME, TIME]
    assert reasons(candidates(10, 10, 0), expired=3) == [TIME, TIME]
    assert reasons(candidates(10, 10, 5), expired=3, retention_ms=-1) == []


def test_a_segment_that_stays_keeps_those_after_it() -> None:
    assert reasons(candidates(10, 10, 10, 5), expired=1) == [TIME]


def test_no_more_times_are_asked_for_than_need_be() -> None:
    asked: list[int] = []
    config = LogConfig(retention_bytes=35)
    removal_reasons(
        candidates(10, 10, 10, 10, 5),
        config,
        log_start_offset=0,
        high_watermark=50,
        is_expired=lambda slot: asked.append(slot) or slot < 2,  # type: ignore[func-returns-value]
    )
    assert asked == [1, 2]


def test_nothing_at_or_past_the_high_watermark_goes() -> None:
    segments = candidates(10, 10, 10, 5)
    assert reasons(segments, expired=4, high_watermark=29) == [TIME, TIME]
    assert reasons(segments, retention_bytes=0, high_watermark=10) == [SIZE]
    assert reasons(segments, retention_bytes=0, high_watermark=9) == []


def test_what_lies_before_the_start_goes_whatever_the_policy() -> None:
    segments = candidates(10, 10, 10, 5)
    for policy in ("delete", "compact", "compact,delete", ""):
        assert reasons(segments, log_start_offset=20, cleanup_policy=policy) == [START, START]
        assert reasons(segments, log_start_offset=19, cleanup_policy=policy) == [START]
        assert reasons(segments, log_start_offset=40, cleanup_policy=policy) == [START, START, START]


def test_only_the_policy_delete_removes_by_size_and_time() -> None:
    segments = candidates(10, 10, 10, 5)
    for policy in ("compact", ""):
        assert reasons(segments, expired=4, retention_bytes=0, cleanup_policy=policy) == []
    assert reasons(segments, expired=2, cleanup_policy="compact,delete") == [TIME, TIME]


def test_size_counts_what_the_start_has_left() -> None:
    assert reasons(candidates(100, 10, 10, 5), log_start_offset=10, retention_bytes=20) == [START]
    assert reasons(candidates(100, 10, 10, 5), log_start_offset=10, retention_bytes=15, expired=3) == [
        START,
        SIZE,
        TIME,
    ]


@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=8),
    active_size=st.integers(0, 50),
    ages=st.lists(st.integers(0, 100), min_size=9, max_size=9),
    retention_bytes=st.integers(-1, 200),
    retention_ms=st.integers(-1, 100),
    log_start_offset=st.integers(0, 90),
    high_watermark=st.integers(0, 90),
    policy=st.sampled_from(["delete", "compact", "compact,delete", ""]),
)
def test_against_a_list_from_which_one_segment_is_taken_at_a_time(
    sizes: list[int],
    active_size: int,
    ages: list[int],
    retention_bytes: int,
    retention_ms: int,
    log_start_offset: int,
    high_watermark: int,
    policy: str,
) -> None:
    segments = candidates(*sizes, active_size)
    left = list(segments)
    while left:
        oldest = left[0]
        by_start = not oldest.active and oldest.end_offset <= log_start_offset
        by_size = 0 <= retention_bytes <= sum(each.size for each in left[1:])
        by_time = 0 <= retention_ms < ages[len(segments) - len(left)]
        wanted = by_start or ("delete" in policy and (by_size or by_time))
        if not wanted or oldest.end_offset > high_watermark or (oldest.active and not oldest.size):
            break
        left.pop(0)
    found = removal_reasons(
        segments,
        LogConfig(retention_bytes=retention_bytes, retention_ms=retention_ms, cleanup_policy=policy),
        log_start_offset=log_start_offset,
        high_watermark=high_watermark,
        is_expired=lambda slot: ages[slot] > retention_ms,
    )
    assert len(found) == len(segments) - len(left)

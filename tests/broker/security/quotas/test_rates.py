"""Rates and token buckets against naive models, and the example of Kafka's TokenBucket."""

from hypothesis import given
from hypothesis import strategies as st

from warmlog.broker.security.quotas.rates import Rate, TokenBucket, Windows

GAPS = st.one_of(st.integers(0, 300), st.integers(900, 1100), st.integers(0, 20_000))
RECORDS = st.lists(st.tuples(GAPS, st.integers(0, 5_000)), min_size=1, max_size=40)


class ModelRate:
    """Every window that ever was: [began, last, total]."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self.all: list[list[int]] = []

    def record(self, value: int, now: int) -> None:
        samples, window_ms = self.windows
        if not self.all or now - self.all[-1][0] >= window_ms or now - self.all[-1][1] >= samples * window_ms:
            self.all.append([now, now, 0])
        self.all[-1][1] = now
        self.all[-1][2] += value

    def throttle_ms(self, bound: float, now: int) -> float:
        samples, window_ms = self.windows
        kept = [each for each in self.all if now - each[1] < samples * window_ms]
        elapsed = now - min([each[0] for each in kept], default=now)
        while elapsed < (samples - 1) * window_ms:
            elapsed += window_ms
        elapsed = max(elapsed, 1)
        # what is above the rate, at the rate
        return sum(each[2] for each in kept) * 1000 / bound - elapsed


@given(st.integers(1, 12), st.sampled_from([1000, 2000]), st.floats(1, 5_000), RECORDS)
def test_a_rate_throttles_as_its_model(
    samples: int, window_ms: int, bound: float, records: list[tuple[int, int]]
) -> None:
    windows = Windows(samples, window_ms)
    rate, model, now = Rate(windows), ModelRate(windows), 1_000
    for gap, value in records:
        now += gap
        rate.record(value, now)
        model.record(value, now)
        expected = model.throttle_ms(bound, now)
        found = rate.throttle_ms(bound, now)
        assert abs(found - max(0.0, expected)) <= 0.51


def test_what_is_taken_back_leaves_the_rate_as_it_was() -> None:
    rate = Rate(Windows())
    rate.record(5_000, 0)
    rate.record(9_000, 100)
    assert rate.throttle_ms(1_000, 100) == 4_000 - 100
    rate.record(-9_000, 100)
    assert rate.throttle_ms(1_000, 100) == 0
    assert rate.total(100) == 5_000


def test_a_rate_that_recorded_nothing_for_all_windows_is_as_new() -> None:
    rate = Rate(Windows())
    rate.record(50_000, 0)
    assert rate.throttle_ms(1_000, 0) == 40_000
    assert rate.throttle_ms(1_000, 10_999) > 0
    assert rate.throttle_ms(1_000, 11_000) == 0
    assert rate.total(11_000) == 0


def test_a_pause_is_no_longer_than_a_response_can_say() -> None:
    rate, bucket = Rate(Windows()), TokenBucket(Windows())
    rate.record(1e9, 0)
    bucket.record(1e9, 1e-300, 0)
    assert rate.throttle_ms(1.0, 0) == rate.throttle_ms(1e-300, 0) == 2**31 - 1
    assert bucket.throttle_ms(1e-300, 0) == 2**31 - 1


class ModelBucket:
    """Credits, filled a millisecond at a time."""

    def __init__(self, windows: Windows, bound: float) -> None:
        self.burst = windows.samples * windows.window_ms / 1000 * bound
        self.bound = bound
        self.credits = self.burst
        self.at = 0

    def fill(self, now: int) -> None:
        self.credits = min(self.burst, self.credits + self.bound * (now - self.at) / 1000)
        self.at = now


@given(st.floats(0.5, 1_000), RECORDS)
def test_a_bucket_throttles_as_its_model(bound: float, records: list[tuple[int, int]]) -> None:
    bucket, model, now = TokenBucket(Windows()), ModelBucket(Windows(), bound), 0
    for gap, value in records:
        now += gap
        model.fill(now)
        assert abs(bucket.throttle_ms(bound, now) - max(0.0, -model.credits / bound * 1000)) <= 1
        bucket.record(value, bound, now)
        model.credits -= value


def test_a_burst_of_kafkas_example_is_waited_for_as_long_as_there() -> None:
    bucket = TokenBucket(Windows(samples=100, window_ms=1000))
    bucket.record(560, 5.0, 0)
    assert bucket.throttle_ms(5.0, 0) == 12_000
    assert bucket.throttle_ms(5.0, 12_000) == 0

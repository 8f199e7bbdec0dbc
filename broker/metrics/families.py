"""Families of counters, histograms and read values: one metric name, with a series for each set of label values."""

from collections.abc import Callable, Iterable

from warmlog.broker.metrics import requests

# 50 us to 10 s: a request served from memory takes 0.1 ms, a stalled disk seconds.
LATENCY_BOUNDS_S = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
# 0.5 us to 10 ms: an index lookup in memory takes 1 to 5 us, a page fault up to milliseconds.
LOOKUP_BOUNDS_S = (0.0000005, 0.000001, 0.0000025, 0.000005, 0.00001, 0.000025, 0.0001, 0.001, 0.01)


class SeriesCounter(requests.Counter):
    """A counter for one set of label values."""

    __slots__ = ()


class SeriesHistogram(requests.Histogram):
    """A histogram in seconds for one set of label values."""

    __slots__ = ()

    def cumulative(self) -> list[tuple[str, float]]:
        """Return (upper bound, number of observations at or below it) for each bucket."""
        seen, rows = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            seen += count
            rows.append((bound, float(seen)))
        return rows


class CounterFamily:
    """Counters of one name. Callers keep the result of `labels(...)`, which is a lookup."""

    def __init__(self, name: str, documentation: str, labels: tuple[str, ...] = ()) -> None:
        self.name, self.documentation, self.label_names = name, documentation, labels
        self._children: dict[tuple[str, ...], SeriesCounter] = {}

    def labels(self, *values: str) -> SeriesCounter:
        """Return the counter of these label values."""
        return self._children.setdefault(values, SeriesCounter())

    def children(self) -> list[tuple[tuple[str, ...], SeriesCounter]]:
        """Return the label values and the counter of each series."""
        return list(self._children.items())


class HistogramFamily:
    """Histograms of one name. Callers keep the result of `labels(...)`, which is a lookup."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: tuple[str, ...] = (),
        bounds: tuple[float, ...] = LATENCY_BOUNDS_S,
    ) -> None:
        self.name, self.documentation, self.label_names, self._bounds = name, documentation, labels, bounds
        self._children: dict[tuple[str, ...], SeriesHistogram] = {}

    def labels(self, *values: str) -> SeriesHistogram:
        """Return the histogram of these label values."""
        child = self._children.get(values)
        if child is None:
            child = self._children[values] = SeriesHistogram(self._bounds)
        return child

    def children(self) -> list[tuple[tuple[str, ...], SeriesHistogram]]:
        """Return the label values and the histogram of each series."""
        return list(self._children.items())


Reading = Callable[[], Iterable[tuple[tuple[str, ...], float]]]  # returns (label values, value) pairs


class ReadFamily:
    """A gauge, or a counter if `monotonic`, whose values are read from their owner when metrics are scraped."""

    def __init__(
        self, name: str, documentation: str, read: Reading, labels: tuple[str, ...], *, monotonic: bool
    ) -> None:
        self.name, self.documentation, self.label_names = name, documentation, labels
        self.read, self.monotonic = read, monotonic


Family = CounterFamily | HistogramFamily | ReadFamily

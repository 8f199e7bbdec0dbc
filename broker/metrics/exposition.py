"""Present the metrics to Prometheus with prometheus_client.

This is a separate module because importing prometheus_client takes 50 to 70 ms: `Metrics` imports it at the first
scrape, in that scrape's worker thread, and not while the broker starts.
"""

from collections.abc import Iterable, Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from warmlog.broker.metrics.families import CounterFamily, Family, HistogramFamily, ReadFamily


class Exposition:
    """A registry of prometheus_client over a growing list of families, whose values are read at each scrape."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics of all families."""
        for family in list(self._families):  # the event loop may declare more in the meantime
            yield _metric(family)

    def text(self) -> tuple[str, bytes]:
        """Return the content type and the body of a scrape."""
        return CONTENT_TYPE_LATEST, generate_latest(self.registry)


def _metric(family: Family) -> Metric:
    """Return a family's current values as prometheus_client's metric."""
    match family:
        case CounterFamily():
            counter = CounterMetricFamily(family.name, family.documentation, labels=family.label_names)
            for values, child in family.children():
                counter.add_metric(values, child.value)
            return counter
        case HistogramFamily():
            histogram = HistogramMetricFamily(family.name, family.documentation, labels=family.label_names)
            for values, observed in family.children():
                histogram.add_metric(values, buckets=observed.cumulative(), sum_value=observed.total)
            return histogram
        case ReadFamily():
            kind = CounterMetricFamily if family.monotonic else GaugeMetricFamily
            metric = kind(family.name, family.documentation, labels=family.label_names)
            for values, value in family.read():
                metric.add_metric([_printable(text) for text in values], value)
            return metric


def _printable(text: str) -> str:
    """Return a label value without control characters, which terminals interpret; clients choose names of groups."""
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)

"""Metrics of calls to a store in another process."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from warmlog.broker.cluster.store import LeaseExpiredError, StoreError
from warmlog.broker.metrics.registry import Metrics


@contextmanager
def measured(metrics: Metrics, call: str) -> Iterator[None]:
    """Record the duration of a call, or count its failure."""
    errors = metrics.cluster_store_errors.labels(call)  # exported as 0 from the first call on
    began_at = perf_counter()
    try:
        yield
    except LeaseExpiredError:
        raise
    except StoreError:
        errors.add()
        raise
    metrics.cluster_store_seconds.labels(call).observe(perf_counter() - began_at)

"""What a broker that cannot start, or cannot go on, tells its user."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from warmlog.broker.log.errors import LogError
from warmlog.broker.metadata.store import MetadataError


class StartError(Exception):
    """The broker cannot start.

    A port is taken, or the data directory is in use or cannot be served. `str()` is a one-line message for users.
    """


class BrokenError(StartError):
    """The running broker had to stop, since the disk with the metadata failed. `str()` is a message for users."""


@contextmanager
def start_errors() -> Iterator[None]:
    """Raise expected errors as StartError, including those in a nursery's exception group."""
    try:
        yield
    except _expected() as error:
        raise StartError(str(error)) from error
    except ExceptionGroup as group:
        expected: tuple[type[Exception], ...] = (*_expected(), StartError)
        known, others = group.split(expected)
        if known is None or others is not None:
            raise
        first = first_of(known)
        raise (first if isinstance(first, StartError) else StartError(str(first))) from group


def _expected() -> tuple[type[Exception], ...]:
    """Return the expected errors of a start; those of a cluster can be raised only if its modules are there."""
    failures: list[type[Exception]] = [LogError, MetadataError]
    if "warmlog.broker.clustered" in sys.modules:
        from warmlog.broker.cluster.node import UsedIdError
        from warmlog.broker.cluster.store import StoreMismatchError, StoreRefusedError
        from warmlog.broker.clustered import ClusterStartError

        failures += [UsedIdError, StoreMismatchError, StoreRefusedError, ClusterStartError]
    return tuple(failures)


def first_of(group: BaseExceptionGroup[Exception]) -> BaseException:
    """Return the first exception of nested groups."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

"""Errors with which a broker fails to start or stops."""

from collections.abc import Iterator
from contextlib import contextmanager

from warmlog.broker.log.errors import LogError
from warmlog.broker.metadata.errors import CannotJoinError, MetadataError


class StartError(Exception):
    """The broker cannot start.

    A port is taken, or the data directory is in use or cannot be served. `str()` is a one-line message for users.
    """


class BrokenError(StartError):
    """The running broker had to stop because the disk with the metadata failed. `str()` is a message for users."""


EXPECTED = (LogError, MetadataError, CannotJoinError)


@contextmanager
def start_errors() -> Iterator[None]:
    """Raise expected errors as StartError, including those in a nursery's exception group."""
    try:
        yield
    except EXPECTED as error:
        raise StartError(str(error)) from error
    except ExceptionGroup as group:
        expected: tuple[type[Exception], ...] = (*EXPECTED, StartError)
        known, others = group.split(expected)
        if known is None or others is not None:
            raise
        first = first_of(known)
        raise (first if isinstance(first, StartError) else StartError(str(first))) from group


def first_of(group: BaseExceptionGroup[Exception]) -> BaseException:
    """Return the first exception of nested groups."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

"""The interface of request handlers and of the classes that provide them."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeAlias

from warmlog.broker.api.context import Context

Handler: TypeAlias = Callable[[Any, Context], Awaitable[Any]]  # (request, context) -> response


class Family(Protocol):
    """A class that handles several related requests."""

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by the `api` of their requests."""

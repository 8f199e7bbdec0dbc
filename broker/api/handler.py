"""What a handler of requests is: the shape that every family of them has."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeAlias

from broker.api.context import Context

Handler: TypeAlias = Callable[[Any, Context], Awaitable[Any]]  # a request and who asks, to the response


class Family(Protocol):
    """Handlers that belong together."""

    def handlers(self) -> Mapping[str, Handler]:
        """Each handler by the `api` of the requests it answers."""

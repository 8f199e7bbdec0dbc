"""A member's connection to the coordinator of its group."""

import logging
from typing import TypeVar

from warmlog.client.connection.background import TaskStarter
from warmlog.client.connection.cluster import Cluster
from warmlog.client.connection.connection import Connection
from warmlog.client.errors import ClosedError, ConnectionLostError, WarmlogError, broker_error
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import CoordinatorType
from warmlog.protocol.native.messages import NativeRequest
from warmlog.protocol.request import Value

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=Value)


class CoordinatorLink:
    """Connects to the coordinator when needed. `tasks`: task group of the connection, None for the client's."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._connection: Connection | None = None
        self.tasks: TaskStarter | None = None

    async def request(self, request: NativeRequest, response_type: type[R], *, extra_s: float = 0, since: int = 1) -> R:
        """Send a request and return the response, which may take `extra_s` longer than usual. Raises WarmlogError.

        `since`: the protocol version that the request needs.
        """
        if self._connection is None or self._connection.closed:
            self._connection = await self._cluster.open_coordinator(CoordinatorType.GROUP, self._group, self.tasks)
        if self._connection.version < since:
            raise broker_error(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{request.api} needs version {since} of the native protocol: update the broker",
            )
        connection = self._connection
        try:
            return await connection.submit(request, response_type, extra_s=extra_s).wait()
        except ClosedError as error:
            if connection is self._connection:
                raise
            raise ConnectionLostError("another request to the coordinator has failed") from error

    async def close_after(self, error: WarmlogError) -> None:
        """Disconnect, and look up the coordinator again if the error shows that it has moved."""
        self.close()
        try:
            await self._cluster.lose_coordinator(CoordinatorType.GROUP, self._group, error, self.tasks)
        except WarmlogError as problem:
            logger.info("group %s: coordinator unknown: %s", self._group, problem.message)

    def close(self) -> None:
        """Disconnect."""
        if self._connection is not None and not self._connection.closed:
            self._connection.close()
        self._connection = None

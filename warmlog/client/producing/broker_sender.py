"""Produce requests to one broker: the connection, its reconnects and the number of requests in flight."""

from collections.abc import Callable
from random import Random

import anyio
from msgspec import UNSET

from warmlog.client.connection.background import TaskStarter
from warmlog.client.connection.cluster import Cluster
from warmlog.client.connection.connection import Connection, Reply
from warmlog.client.errors import WarmlogError
from warmlog.client.producing.batches import Batch
from warmlog.client.producing.identity import ProducerIdentity
from warmlog.client.settings import Settings
from warmlog.protocol.backoff import delays_s
from warmlog.protocol.request import PartitionRecords, ProduceRequest
from warmlog.protocol.response import ProduceResponse

# How long the broker may wait for its replicas (ProduceRequest.timeoutMs); the request's own timeout applies as well.
REPLICA_TIMEOUT_MS = 30_000


class BrokerSender:
    """Requests to one broker, at most `settings.max_in_flight` at a time. Not thread-safe."""

    def __init__(
        self,
        node_id: int,
        cluster: Cluster,
        tasks: TaskStarter,
        settings: Settings,
        random: Random,
        *,
        identity: ProducerIdentity | None = None,
    ) -> None:
        self.node_id = node_id
        self.in_flight = 0
        self._cluster = cluster
        self._tasks = tasks
        self._settings = settings
        self._random = random
        self._identity = identity
        self._connection: Connection | None = None
        self._connecting = False

    @property
    def is_connected(self) -> bool:
        """Whether the connection is open."""
        return self._connection is not None and not self._connection.closed

    @property
    def can_send(self) -> bool:
        """Whether another request may be sent."""
        return self.in_flight < self._settings.max_in_flight

    def connect(self, attempted: Callable[["BrokerSender", WarmlogError | None], None]) -> None:
        """Connect in a background task, unless one runs. It retries until it succeeds or is cancelled.

        `attempted` is called after each attempt, with the error or None.
        """
        if not self._connecting:
            self._connecting = True
            self._tasks.start_soon(self._connect, attempted)

    async def _connect(self, attempted: Callable[["BrokerSender", WarmlogError | None], None]) -> None:
        for delay_s in delays_s(self._random):
            try:
                self._connection = await self._cluster.open(self.node_id)
            except WarmlogError as error:
                attempted(self, error)
                await anyio.sleep(delay_s)
            else:
                break
        self._connecting = False
        attempted(self, None)

    def send(self, batches: list[Batch], replied: Callable[[list[Batch], Reply[ProduceResponse]], None]) -> None:
        """Send one request. `replied` is called when it is acknowledged or has failed. Must be connected."""
        assert self._connection is not None
        request = self._request(batches)
        self.in_flight += 1

        def settled(reply: Reply[ProduceResponse]) -> None:
            self.in_flight -= 1
            replied(batches, reply)

        if request.acks:
            self._connection.submit(request, ProduceResponse).when_done(settled)
        else:
            self._connection.post(request, ProduceResponse(partitions=())).when_done(settled)

    def _request(self, batches: list[Batch]) -> ProduceRequest:
        codec = self._settings.codec
        return ProduceRequest(
            transactional_id=UNSET if self._identity is None else self._identity.transactional_id,
            acks=self._settings.required_acks,
            timeout_ms=REPLICA_TIMEOUT_MS,
            partitions=tuple(
                PartitionRecords(topic=batch.topic, partition=batch.partition, records=memoryview(batch.encoded(codec)))
                for batch in batches
            ),
        )

"""The way of produce requests to one broker.

Owns: the connection, how many requests are in flight on it, and coming back after it is lost. Must not know: batches'
queues, or what becomes of a batch (`producer`).
"""

from collections.abc import Callable
from random import Random

import anyio
from anyio.abc import TaskGroup

from protocol.request import PartitionRecords, ProduceRequest
from protocol.response import ProduceResponse
from warmlog.client.backoff import delays_s
from warmlog.client.batches import Batch
from warmlog.client.cluster import Cluster
from warmlog.client.connection import Connection, Reply
from warmlog.client.errors import WarmlogError
from warmlog.client.settings import Settings

# A broker may wait for its replicas that long before it answers; then comes the request's own time limit.
REPLICA_TIMEOUT_MS = 30_000


class Lane:
    """Requests to one broker, `settings.max_in_flight` at a time.

    Not thread-safe.
    """

    def __init__(self, node_id: int, cluster: Cluster, tasks: TaskGroup, settings: Settings, random: Random) -> None:
        self.node_id = node_id
        self.in_flight = 0
        self._cluster = cluster
        self._tasks = tasks
        self._settings = settings
        self._random = random
        self._connection: Connection | None = None
        self._connecting = False

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None and not self._connection.closed

    @property
    def has_room(self) -> bool:
        """Whether another request may be sent."""
        return self.in_flight < self._settings.max_in_flight

    def connect(self, tried: Callable[["Lane", WarmlogError | None], None]) -> None:
        """Connect in a task of its own, if that has not begun; it goes on until it succeeds or its task is cancelled.

        `tried` is called after each attempt, with its error or None.
        """
        if not self._connecting:
            self._connecting = True
            self._tasks.start_soon(self._connect, tried)

    async def _connect(self, tried: Callable[["Lane", WarmlogError | None], None]) -> None:
        for delay_s in delays_s(self._random):
            try:
                self._connection = await self._cluster.open(self.node_id)
            except WarmlogError as error:
                tried(self, error)
                await anyio.sleep(delay_s)
            else:
                break
        self._connecting = False
        tried(self, None)

    def send(self, batches: list[Batch], answered: Callable[[list[Batch], Reply[ProduceResponse]], None]) -> None:
        """Send one request; `answered` is called when its reply is there, or will not come. The lane is connected."""
        assert self._connection is not None
        request = self._request(batches)
        self.in_flight += 1

        def settled(reply: Reply[ProduceResponse]) -> None:
            self.in_flight -= 1
            answered(batches, reply)

        if request.acks:
            self._connection.submit(request, ProduceResponse).when_done(settled)
        else:
            self._connection.post(request, ProduceResponse(partitions=())).when_done(settled)

    def _request(self, batches: list[Batch]) -> ProduceRequest:
        codec = self._settings.codec
        return ProduceRequest(
            acks=self._settings.required_acks,
            timeout_ms=REPLICA_TIMEOUT_MS,
            partitions=tuple(
                PartitionRecords(topic=batch.topic, partition=batch.partition, records=memoryview(batch.encoded(codec)))
                for batch in batches
            ),
        )

"""When batches are sent, and what happens when they come back.

Owns: the queues of all partitions, their turns, the lanes to the brokers, trying again. Must not know: who produces,
and how much may wait (`producer`); what a request is made of (`lane`).

    queue -> pump -> lane of the partition's leader -> _answered -> settled, or back into the queue

Nothing in here waits. `pump` runs whenever something has changed (a full batch, a reply, a connection, a time that has
come) and sends all that can be sent.

Invariants:
1. Every batch is settled, at the latest when `delivery_timeout_s` is over and its last attempt has ended, or at
   `close`.
2. A request holds at most one batch of each partition. Partitions that have been served go to the back.
"""

from collections.abc import Callable
from math import inf
from random import Random

import anyio
from anyio.abc import TaskGroup

from protocol.errors import ErrorCode
from protocol.response import ProducedPartition, ProduceResponse
from warmlog.client.backoff import delay_s
from warmlog.client.batches import Batch, PartitionQueue
from warmlog.client.cluster import NO_LEADER, Cluster
from warmlog.client.connection import Reply
from warmlog.client.errors import ClosedError, RequestTimeoutError, WarmlogError, broker_error
from warmlog.client.lane import Lane
from warmlog.client.settings import Settings

MAX_REQUEST_BYTES = 1 << 20  # Kafka's max.request.size; a single batch may be larger

# After these the metadata is out of date.
_MOVED = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)


class Sender:
    """Sends batches. `run` it in a task, `close` it at the end. Not thread-safe.

    `settled`: called with each batch that was acknowledged or has failed for good.
    """

    def __init__(
        self,
        cluster: Cluster,
        tasks: TaskGroup,
        settings: Settings,
        random: Random,
        *,
        settled: Callable[[Batch], None],
    ) -> None:
        self._cluster = cluster
        self._tasks = tasks
        self._settings = settings
        self._random = random
        self._settled = settled
        self._linger_s = settings.linger_ms / 1000
        self._queues: dict[tuple[str, int], PartitionQueue] = {}
        self._busy: dict[PartitionQueue, None] = {}  # those with a batch, in the order of their turns
        self._lanes: dict[int, Lane] = {}
        self._looking_up: set[str] = set()
        self._next_at = inf  # when a batch gets ready by itself
        self._armed_at = inf  # until when `run` waits
        self._wake = anyio.Event()
        self._pumping = False
        self._closed = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight."""
        return not any(lane.in_flight for lane in self._lanes.values())

    async def run(self) -> None:
        """Pump when a time has come, or at the loop's next turn after a `kick`. Runs until cancelled."""
        while True:
            self._armed_at = self._next_at
            with anyio.CancelScope(deadline=self._armed_at):
                await self._wake.wait()
            self._wake = anyio.Event()
            self.pump()

    def open_batch(self, topic: str, partition: int) -> Batch:
        """The batch of the partition that records can be added to."""
        queue = self._queues.get((topic, partition))
        if queue is None:
            queue = self._queues[topic, partition] = PartitionQueue(topic, partition)
        if queue.open is None:
            queue.begin(anyio.current_time())
            self._busy.setdefault(queue)
        assert queue.open is not None
        return queue.open

    def close_batch(self, batch: Batch) -> None:
        """Nothing is added to this batch any more, if it was still open."""
        queue = self._queues[batch.topic, batch.partition]
        if queue.open is batch:
            queue.close()

    def drop_batch(self, batch: Batch) -> None:
        """The open batch holds nothing, because its first record was refused."""
        queue = self._queues[batch.topic, batch.partition]
        queue.open = None
        if not queue:
            del self._busy[queue]

    def close_all_batches(self) -> None:
        """Nothing waits for more records any longer."""
        for queue in self._busy:
            queue.close()

    def kick(self) -> None:
        """Pump at the loop's next turn, when those who are about to add records have done so."""
        self._wake.set()

    def close(self) -> None:
        """Give up what is not settled."""
        self._closed = True
        for queue in list(self._busy):
            self._give_up(queue, ClosedError("the client was closed before the record was acknowledged"))

    # -- sending --

    def pump(self) -> None:
        """Send all that can be sent now."""
        if self._pumping:  # a request failed while it was sent; the loop below goes on
            return
        self._pumping = True
        try:
            while self._send_round():
                pass
        finally:
            self._pumping = False
        if self._next_at < self._armed_at:
            self._wake.set()

    def _send_round(self) -> bool:
        """At most one request to each broker. Gives whether there was any."""
        now = anyio.current_time()
        requests: dict[Lane, list[Batch]] = {}
        self._next_at = inf
        for queue in list(self._busy):
            ready_at = queue.ready_at(self._linger_s)
            if ready_at > now:
                self._next_at = min(self._next_at, ready_at)
            elif (lane := self._usable_lane(queue)) is not None:
                batches = requests.setdefault(lane, [])
                if not batches or sum(batch.size for batch in batches) + queue.head.size <= MAX_REQUEST_BYTES:
                    batches.append(queue.take())
                    self._end_turn(queue)
        for lane, batches in requests.items():
            lane.send(batches, self._answered)
        return bool(requests)

    def _usable_lane(self, queue: PartitionQueue) -> Lane | None:
        """The lane to the partition's leader, if a request can be sent there now; else what is missing is set going."""
        leader = self._cluster.leader(queue.topic, queue.partition)
        if leader == NO_LEADER:
            self._look_up(queue.topic)
            return None
        lane = self._lanes.get(leader)
        if lane is None:
            lane = self._lanes[leader] = Lane(leader, self._cluster, self._tasks, self._settings, self._random)
        if not lane.is_connected:
            lane.connect(self._tried)
            return None
        return lane if lane.has_room else None

    def _end_turn(self, queue: PartitionQueue) -> None:
        del self._busy[queue]
        if queue:
            self._busy[queue] = None

    # -- coming back --

    def _answered(self, batches: list[Batch], reply: Reply[ProduceResponse]) -> None:
        try:
            outcomes: tuple[ProducedPartition | None, ...] = reply.result().partitions
        except WarmlogError as error:
            for batch in batches:
                self._failed(batch, error)
        else:
            if not self._settings.required_acks:
                outcomes = (None,) * len(batches)
            for batch, outcome in zip(batches, outcomes, strict=True):
                self._take_outcome(batch, outcome)
        self.pump()

    def _take_outcome(self, batch: Batch, outcome: ProducedPartition | None) -> None:
        if outcome is None:
            self._settle(batch)
        elif not outcome.error:
            self._settle(batch, outcome.base_offset, outcome.log_append_time)
        else:
            about = f"{batch.topic}-{batch.partition}"
            self._failed(batch, broker_error(outcome.error, outcome.message, about=about))

    def _failed(self, batch: Batch, error: WarmlogError) -> None:
        """Settle the batch, or put it back: in halves if it was too large, later if the error may pass."""
        if error.code is ErrorCode.MESSAGE_TOO_LARGE and batch.count > 1:
            for half in batch.split(self._settings.codec):
                self._put_back(half)
        elif error.is_retriable and not self._closed and not self._is_overdue(batch):
            if error.code in _MOVED:
                self._cluster.forget_leaders(batch.topic)
            batch.attempts += 1
            batch.not_before = anyio.current_time() + delay_s(batch.attempts, self._random)
            self._put_back(batch)
        else:
            self._settle(batch, error=error)

    def _put_back(self, batch: Batch) -> None:
        queue = self._queues[batch.topic, batch.partition]
        queue.put_back(batch)
        self._busy.setdefault(queue)

    def _settle(
        self, batch: Batch, base_offset: int = -1, log_append_time: int = -1, *, error: WarmlogError | None = None
    ) -> None:
        settled = batch.settle(base_offset, log_append_time, error)
        if settled is not None:
            self._settled(settled)

    def _is_overdue(self, batch: Batch) -> bool:
        return anyio.current_time() >= batch.born_at + self._settings.delivery_timeout_s

    # -- what is missing --

    def _look_up(self, topic: str) -> None:
        """Ask who leads the topic's partitions, in a task of its own."""
        if topic not in self._looking_up:
            self._looking_up.add(topic)
            self._tasks.start_soon(self._look_up_leaders, topic)

    async def _look_up_leaders(self, topic: str) -> None:
        try:
            await self._cluster.refresh(topic)
        except WarmlogError as error:
            self._not_reached([queue for queue in self._busy if queue.topic == topic], error)
        self._looking_up.discard(topic)
        self.pump()

    def _tried(self, lane: Lane, error: WarmlogError | None) -> None:
        """A lane has tried to connect."""
        if error is not None:
            leads = [q for q in self._busy if self._cluster.leader(q.topic, q.partition) == lane.node_id]
            self._not_reached(leads, error)
        else:
            self.pump()

    def _not_reached(self, queues: list[PartitionQueue], error: WarmlogError) -> None:
        """Give up what waits too long; all, if trying on makes no sense."""
        for queue in queues:
            if error.is_retriable:
                self._give_up_overdue(queue, error)
            else:
                self._give_up(queue, error)

    def _give_up(self, queue: PartitionQueue, error: WarmlogError) -> None:
        while queue:
            self._settle(queue.take(), error=error)
        self._busy.pop(queue, None)

    def _give_up_overdue(self, queue: PartitionQueue, error: WarmlogError) -> None:
        limit_s = self._settings.delivery_timeout_s
        late = RequestTimeoutError(
            f"{queue.topic}-{queue.partition}: not delivered within {limit_s:g} s: {error.message}"
        )
        while queue and self._is_overdue(queue.head):
            self._settle(queue.take(), error=late)
        if not queue:
            self._busy.pop(queue, None)

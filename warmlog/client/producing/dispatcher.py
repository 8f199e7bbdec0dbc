"""Decide when batches are sent, and settle or retry them.

    queue -> pump -> the leader's BrokerSender -> _replied -> settled, or back into the queue

The dispatcher never blocks. `pump` runs on every change (a full batch, a reply, a connection, a deadline) and sends all
batches that can be sent.

Invariants:
1. Every batch settles: by its last attempt after `delivery_timeout_s`, or by `close`.
2. A request has at most one batch per partition. A partition that was served moves to the back of the queue.
3. At most one batch of a partition is in flight in a transaction. So the broker stores batches in order, and recognizes
   a batch that is sent again.
"""

from collections.abc import Callable
from math import inf
from random import Random

import anyio

from warmlog.client.connection.background import TaskStarter
from warmlog.client.connection.cluster import NO_LEADER, Cluster
from warmlog.client.connection.connection import Reply
from warmlog.client.errors import ClosedError, RequestTimeoutError, WarmlogError, broker_error
from warmlog.client.producing.batches import Batch, PartitionQueue
from warmlog.client.producing.broker_sender import BrokerSender
from warmlog.client.producing.identity import ProducerIdentity
from warmlog.client.settings import Settings
from warmlog.protocol.backoff import delay_s
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.response import ProducedPartition, ProduceResponse

MAX_REQUEST_BYTES = 1 << 20  # Kafka's max.request.size; a single batch may be larger

# Errors caused by outdated metadata.
_OUTDATED_METADATA = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)


class BatchDispatcher:
    """Sends batches. `run` it in a task, and `close` it at the end. Not thread-safe.

    `settled`: called with each batch that was acknowledged or has failed without further retries. `identity`: the
    transactional producer that sends the batches, if any.
    """

    def __init__(
        self,
        cluster: Cluster,
        tasks: TaskStarter,
        settings: Settings,
        random: Random,
        *,
        settled: Callable[[Batch], None],
        identity: ProducerIdentity | None = None,
    ) -> None:
        self._cluster = cluster
        self._tasks = tasks
        self._settings = settings
        self._random = random
        self._settled = settled
        self._identity = identity
        self._linger_s = settings.linger_ms / 1000
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._pending: dict[PartitionQueue, None] = {}  # queues with a batch, in order of service
        self._broker_senders: dict[int, BrokerSender] = {}
        self._lookups: set[str] = set()
        self._next_at = inf  # time at which the next batch becomes ready
        self._armed_at = inf  # the deadline that `run` waits for
        self._wake = anyio.Event()
        self._pumping = False
        self._closed = False

    @property
    def is_idle(self) -> bool:
        """Whether no request is in flight."""
        return not any(sender.in_flight for sender in self._broker_senders.values())

    async def run(self) -> None:
        """Pump when the time of a batch comes, and after each `pump_soon`. Runs until cancelled."""
        while True:
            self._armed_at = self._next_at
            with anyio.CancelScope(deadline=self._armed_at):
                await self._wake.wait()
            self._wake = anyio.Event()
            self.pump()

    def open_batch(self, topic: str, partition: int) -> Batch:
        """Return the partition's open batch, opening one if there is none."""
        queue = self._queues.get((topic, partition))
        if queue is None:
            queue = self._queues[topic, partition] = PartitionQueue(topic, partition)
        if queue.open is None:
            queue.begin(anyio.current_time())
            self._pending.setdefault(queue)
        assert queue.open is not None
        return queue.open

    def close_batch(self, batch: Batch) -> None:
        """Close this batch if it is still open."""
        queue = self._queues[batch.topic, batch.partition]
        if queue.open is batch:
            queue.close()

    def drop_batch(self, batch: Batch) -> None:
        """Discard an open batch that is empty because its first record was refused."""
        queue = self._queues[batch.topic, batch.partition]
        queue.open = None
        if not queue:
            del self._pending[queue]

    def close_all_batches(self) -> None:
        """Close all open batches, so that none waits for more records."""
        for queue in self._pending:
            queue.close()

    def pump_soon(self) -> None:
        """Pump at the event loop's next turn, after tasks that are about to add records."""
        self._wake.set()

    def close(self) -> None:
        """Fail every batch that is not settled."""
        self._closed = True
        self.fail_unsent(ClosedError("client closed before the record was acknowledged"))

    def fail_unsent(self, error: WarmlogError) -> None:
        """Fail every batch that is not in flight."""
        for queue in list(self._pending):
            self._fail_all(queue, error)

    # -- sending --

    def pump(self) -> None:
        """Send every batch that can be sent now."""
        if self._pumping:  # a nested call by a request that failed immediately; the outer call continues
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
        """Send at most one request to each broker; return whether any was sent."""
        now = anyio.current_time()
        requests: dict[BrokerSender, list[Batch]] = {}
        self._next_at = inf
        for queue in list(self._pending):
            ready_at = inf if queue.is_waiting else queue.ready_at(self._linger_s)
            if ready_at > now:
                self._next_at = min(self._next_at, ready_at)
            elif (sender := self._available_sender(queue)) is not None:
                batches = requests.setdefault(sender, [])
                if not batches or sum(batch.size for batch in batches) + queue.head.size <= MAX_REQUEST_BYTES:
                    batches.append(self._take(queue))
                    self._end_turn(queue)
        for sender, batches in requests.items():
            sender.send(batches, self._replied)
        return bool(requests)

    def _take(self, queue: PartitionQueue) -> Batch:
        batch = queue.take()
        if self._identity is not None:
            self._identity.stamp(batch)
            queue.is_waiting = True
        return batch

    def _available_sender(self, queue: PartitionQueue) -> BrokerSender | None:
        """Return the leader's sender if it can send now; otherwise start the lookup or the connection."""
        leader = self._cluster.leader(queue.topic, queue.partition)
        if leader == NO_LEADER:
            self._look_up(queue.topic)
            return None
        sender = self._broker_senders.get(leader)
        if sender is None:
            sender = self._broker_senders[leader] = BrokerSender(
                leader, self._cluster, self._tasks, self._settings, self._random, identity=self._identity
            )
        if not sender.is_connected:
            sender.connect(self._connection_attempted)
            return None
        return sender if sender.can_send else None

    def _end_turn(self, queue: PartitionQueue) -> None:
        del self._pending[queue]
        if queue:
            self._pending[queue] = None

    # -- replies --

    def _replied(self, batches: list[Batch], reply: Reply[ProduceResponse]) -> None:
        for batch in batches:
            self._queues[batch.topic, batch.partition].is_waiting = False
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
        if outcome is None or outcome.error is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:  # stored, at an unknown offset
            self._settle(batch)
        elif not outcome.error:
            self._settle(batch, outcome.base_offset, outcome.log_append_time)
        else:
            about = f"{batch.topic}-{batch.partition}"
            self._failed(batch, broker_error(outcome.error, outcome.message, about=about))

    def _failed(self, batch: Batch, error: WarmlogError) -> None:
        """Settle the batch or queue it again: split if it was too large, later if the error is retriable."""
        is_wanted = not self._closed and (self._identity is None or self._identity.is_current(batch))
        if is_wanted and error.code is ErrorCode.MESSAGE_TOO_LARGE and batch.count > 1:
            if self._identity is not None:
                self._identity.take_back(batch)
            for half in batch.split():
                self._put_back(half)
        elif is_wanted and error.is_retriable and not self._is_overdue(batch):
            if error.code in _OUTDATED_METADATA:
                self._cluster.forget_leaders(batch.topic)
            batch.attempts += 1
            batch.not_before = anyio.current_time() + delay_s(batch.attempts, self._random)
            self._put_back(batch)
        else:
            self._settle(batch, error=error)

    def _put_back(self, batch: Batch) -> None:
        queue = self._queues[batch.topic, batch.partition]
        queue.put_back(batch)
        self._pending.setdefault(queue)

    def _settle(
        self, batch: Batch, base_offset: int = -1, log_append_time: int = -1, *, error: WarmlogError | None = None
    ) -> None:
        settled = batch.settle(base_offset, log_append_time, error)
        if settled is not None:
            self._settled(settled)

    def _is_overdue(self, batch: Batch) -> bool:
        return anyio.current_time() >= batch.opened_at + self._settings.delivery_timeout_s

    # -- lookups and connections --

    def _look_up(self, topic: str) -> None:
        """Request the topic's leaders in a background task."""
        if topic not in self._lookups:
            self._lookups.add(topic)
            self._tasks.start_soon(self._refresh_leaders, topic)

    async def _refresh_leaders(self, topic: str) -> None:
        try:
            await self._cluster.refresh(topic)
        except WarmlogError as error:
            self._unreachable([queue for queue in self._pending if queue.topic == topic], error)
        self._lookups.discard(topic)
        self.pump()

    def _connection_attempted(self, sender: BrokerSender, error: WarmlogError | None) -> None:
        """Handle the outcome of a connection attempt."""
        if error is not None:
            leads = [q for q in self._pending if self._cluster.leader(q.topic, q.partition) == sender.node_id]
            self._unreachable(leads, error)
            if self._cluster.has_several_brokers:  # the leader may have changed
                for topic in {queue.topic for queue in leads}:
                    self._cluster.forget_leaders(topic)
        self.pump()

    def _unreachable(self, queues: list[PartitionQueue], error: WarmlogError) -> None:
        """Fail overdue batches; all batches if the error is final."""
        for queue in queues:
            if error.is_retriable:
                self._fail_overdue(queue, error)
            else:
                self._fail_all(queue, error)

    def _fail_all(self, queue: PartitionQueue, error: WarmlogError) -> None:
        while queue:
            self._settle(queue.take(), error=error)
        self._pending.pop(queue, None)

    def _fail_overdue(self, queue: PartitionQueue, error: WarmlogError) -> None:
        limit_s = self._settings.delivery_timeout_s
        late = RequestTimeoutError(
            f"{queue.topic}-{queue.partition}: not delivered within {limit_s:g} s: {error.message}"
        )
        while queue and self._is_overdue(queue.head):
            self._settle(queue.take(), error=late)
        if not queue:
            self._pending.pop(queue, None)

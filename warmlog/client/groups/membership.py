"""One member of a group: join, heartbeat, commit, leave. `ConsumerMember` and `ClassicMember` have the requests.

    join requested -> commit -> join -> offset_fetch -> joined
    joined         -> heartbeats, periodic commits -> other partitions, rebalance or removal -> notify the reader
    stop           -> commit -> leave

In a consumer group, `join` also gives up and takes over individual partitions, while the member reads the others.

Invariants:
1. Partitions are given up only when the reader calls `join`: then every delivered record is processed. So a live member
   commits its progress before another member continues from there.
2. Everything runs in one task of the client, so a cancelled reader neither interrupts a join nor skips leaving. The
   task holds no reference to the reader, which may be garbage collected without being closed.
3. Only offsets read in the current membership are committed.
4. The committed offset of a partition is fetched after the broker has assigned it, when no other member commits it.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from random import Random

import anyio

from warmlog.client.connection.cluster import Cluster
from warmlog.client.errors import ConnectError, GroupMovedOnError, UnknownTopicError, WarmlogError, broker_error
from warmlog.client.groups.consumer_member import ConsumerMember, settled_partitions
from warmlog.client.groups.coordinator_link import CoordinatorLink
from warmlog.client.groups.delivery_tracker import DeliveryTracker
from warmlog.client.groups.group_offsets import GroupOffsets, Member
from warmlog.client.groups.group_type import GroupTypes
from warmlog.client.groups.member_options import MemberOptions
from warmlog.client.groups.subscribed_topics import SubscribedTopics
from warmlog.client.settings import Settings
from warmlog.protocol.backoff import delay_s, delays_s
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import NO_GENERATION
from warmlog.protocol.partitions import TopicPartition

logger = logging.getLogger(__name__)

LEAVE_TIMEOUT_S = 5.0  # time limit for leaving if the broker cannot be reached
FENCED = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH}
# Further heartbeat errors which show that a member has lost all its partitions.
REMOVED = {ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION}


class Membership:
    """A group member from its first `join` until `stop`. Not thread-safe.

    `assignment`: its partitions with the offsets committed when they were assigned, NO_OFFSET without one. `joins`: how
    often it has joined; a partition kept since the last join continues at its position. `changes`: how often the
    assignment was replaced. `failure`: why the membership ended, if not by `stop`. `must_join`: whether `join` must be
    called, to give up partitions or to get new ones; `on_change` is called when it becomes true.
    """

    def __init__(
        self, cluster: Cluster, settings: Settings, random: Random, options: MemberOptions, tracker: DeliveryTracker
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._random = random
        self._options = options
        self._tracker = tracker
        self._coordinator = CoordinatorLink(cluster, options.group)
        self._topics = SubscribedTopics(cluster, options)
        self._offsets = GroupOffsets(self._coordinator, options.group, random)
        self._types = GroupTypes(self._coordinator, options, self._topics)
        self._member = self._types.first()
        self._assigned: dict[TopicPartition, int] = {}  # committed offsets at which the reader starts
        self._commit_due_at = 0.0
        self._requested_join: anyio.Event | None = None  # set when the requested join has finished
        self._wake = anyio.Event()
        self._stopping = False
        self._commit_last = False
        self._failed_heartbeats = 0
        self._must_rejoin = False  # the next join gives up all partitions
        self._joining: anyio.CancelScope | None = None
        self._started = False
        self._ended = anyio.Event()
        self.assignment: dict[TopicPartition, int] = {}
        self.joins = self.changes = 0
        self.must_join = True
        self.failure: WarmlogError | None = None
        self.on_change: Callable[[], None] | None = None

    @property
    def member_id(self) -> str:
        """The id of the member; empty for a member of a classic group that has not joined."""
        return self._member.member_id

    @property
    def generation(self) -> int:
        """The member's generation, or its epoch in a consumer group; NO_GENERATION if it may not commit."""
        return self._member.generation

    @property
    def leaving(self) -> frozenset[TopicPartition]:
        """The partitions that the next `join` gives up."""
        held = frozenset(self.assignment)
        return held - self._assigned.keys() if self.is_incremental else held

    @property
    def is_incremental(self) -> bool:
        """Whether `join` gives up only some partitions while the others are read."""
        is_member = isinstance(self._member, ConsumerMember) and self.generation != NO_GENERATION
        return is_member and not self._must_rejoin

    # -- called by the reader --

    async def join(self) -> None:
        """Give up partitions after all records are processed, and wait for an assignment. Raises WarmlogError.

        If the call is cancelled, the join continues; the next call waits for it.
        """
        if self._requested_join is None and not self._stopping and self.failure is None:
            self._requested_join = anyio.Event()
            self._wake.set()
            self._start()
        if self._requested_join is not None:
            await self._requested_join.wait()
        if self.failure is not None:
            raise self.failure

    def rejoin(self) -> None:
        """Give up all partitions at the reader's next step, and join again."""
        self._must_rejoin = True
        self._notify_reader()

    async def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """Commit offsets read in this generation, retrying within the request timeout.

        Raises GroupMovedOnError, WarmlogError.
        """
        deadline = anyio.current_time() + self._settings.request_timeout_s
        for delay in delays_s(self._random):
            self._check_membership()
            try:
                await self._offsets.commit(positions, self.as_member())
            except WarmlogError as error:
                if not error.is_retriable or anyio.current_time() + delay > deadline:
                    raise
            else:
                return
            await anyio.sleep(delay)

    def as_member(self) -> Member:
        """Return the member as the sender of a commit. Raises GroupMovedOnError if it may not commit."""
        self._check_membership()
        return self._as_member()

    def _as_member(self) -> Member:
        return Member(self._options.group, self.generation, self.member_id, self._options.instance_id)

    @property
    def commits_by_itself(self) -> bool:
        """Whether processed records are committed automatically."""
        return self._options.auto_commit

    def _check_membership(self) -> None:
        """Raise GroupMovedOnError if the member may not commit now."""
        code = ErrorCode.REBALANCE_IN_PROGRESS if self._requested_join is not None else ErrorCode.UNKNOWN_MEMBER_ID
        if self._requested_join is not None or self.generation == NO_GENERATION or not self.is_running:
            raise broker_error(code, None, about=f"group {self._options.group!r}")

    async def wait_settled(self) -> None:
        """Wait until the members of a consumer group have their target assignments. Raises WarmlogError."""
        for delay in delays_s(self._random):
            if not self.is_incremental:
                return
            settled = await settled_partitions(self._cluster, self._options.group, self.member_id)
            if settled is not None and settled | self._member.target <= self.assignment.keys():
                return
            await anyio.sleep(delay)

    def stop(self, *, include_last: bool) -> None:
        """Commit and leave in the background. `include_last`: the record taken last is processed."""
        self._tracker.revoke()
        if self.is_running and not self._stopping:
            self._commit_last = include_last
            if self._joining is not None:
                self._joining.cancel()
            self._wake.set()
        self._stopping = True

    async def wait_ended(self) -> None:
        """Wait, after `stop`, until the member has left."""
        if self.is_running:
            await self._ended.wait()

    # -- the task --

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self._cluster.start_soon(self._run)

    @property
    def is_running(self) -> bool:
        """Whether the membership's task runs."""
        return self._started and not self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether the membership's task has ended."""
        return self._ended.is_set()

    async def _run(self) -> None:
        try:
            while not self._stopping and self.failure is None:
                await self._handle_next_event()
            if self._stopping:
                await self._commit_and_leave()
        except anyio.get_cancelled_exc_class():
            await self._commit_and_leave()
            raise
        finally:
            self._coordinator.close()
            self._ended.set()
            if self._requested_join is not None:
                self._requested_join.set()

    async def _handle_next_event(self) -> None:
        """Wait for an event or the next heartbeat, and handle it."""
        if self._requested_join is None and not self._member.is_heartbeat_due:
            with anyio.move_on_after(self._heartbeat_delay_s):
                await self._wake.wait()
        self._wake = anyio.Event()
        if self._stopping:
            return
        if self._requested_join is not None:
            await self._finish_join()
        elif self.generation != NO_GENERATION:
            await self._heartbeat()

    @property
    def _heartbeat_delay_s(self) -> float:
        interval_s = self._member.heartbeat_interval_s
        failed = self._failed_heartbeats
        return min(interval_s, delay_s(failed, self._random)) if failed else interval_s

    async def _finish_join(self) -> None:
        try:
            with anyio.CancelScope() as self._joining:
                await self._join()
        except WarmlogError as error:
            self.failure = error
        finally:
            scope, self._joining = self._joining, None
        if scope is not None and scope.cancelled_caught:
            self._coordinator.close()  # the broker drops a join if its connection closes
            return
        requested, self._requested_join = self._requested_join, None
        if requested is not None:
            requested.set()

    async def _join(self) -> None:
        """Join, retrying until it succeeds. Raises WarmlogError for a final error or after `delivery_timeout_s`."""
        leaving = self.leaving
        if self._options.auto_commit and leaving:
            limit_s = min(LEAVE_TIMEOUT_S, self._options.rebalance_timeout_s / 2)
            await self._try_commit(include_last=True, limit_s=limit_s)
        if self.is_incremental:
            self._tracker.drop(leaving)
            self._take_over()
            return
        self._tracker.reset({})
        deadline = anyio.current_time() + self._settings.delivery_timeout_s
        attempts = 0
        while True:
            try:
                await self._try_join()
            except WarmlogError as error:
                await self._coordinator.close_after(error)
                other = self._types.other(self._member, error)
                if other is not None:
                    self._member = other
                    continue
                can_repeat = error.is_retriable or error.code is ErrorCode.UNRELEASED_INSTANCE_ID
                if error.code in FENCED and self._member.may_be_member:
                    self._member.end(error)
                    can_repeat = True
                if not can_repeat or anyio.current_time() > deadline:
                    raise
                attempts += 1
                await anyio.sleep(delay_s(attempts, self._random))
            else:
                return

    async def _try_join(self) -> None:
        await self._topics.update()
        await self._member.join()
        self._assigned = {}
        self._offsets.forget_all()
        await self._fetch_assigned()
        self._commit_due_at = anyio.current_time() + self._options.commit_interval_s
        self._types.joined()
        self._must_rejoin = False
        self.assignment = {}
        self.joins += 1
        self._take_over()

    def _take_over(self) -> None:
        self.assignment = {key: self.assignment.get(key, offset) for key, offset in self._assigned.items()}
        self._member.held = frozenset(self.assignment)
        self.changes += 1
        self.must_join = False

    async def _fetch_assigned(self) -> None:
        """Fetch the committed offsets of partitions that the broker has assigned meanwhile. Raises WarmlogError."""
        target = self._member.target
        self._assigned = {key: offset for key, offset in self._assigned.items() if key in target}
        added = target - self._assigned.keys()
        if added:
            self._offsets.forget(added)
            self._assigned |= await self._offsets.fetch(sorted(added), self._member.heartbeat_interval_s)

    # -- heartbeats --

    async def _heartbeat(self) -> None:
        """Send a heartbeat, commit if it is due, and react to a rebalance."""
        try:
            must_join = await self._member.heartbeat()
        except WarmlogError as error:
            if isinstance(error, GroupMovedOnError) or error.code in REMOVED:
                self._end_generation(error)
                return
            self._failed_heartbeats += 1
            logger.info("group %s: heartbeat failed: %s", self._options.group, error.message)
            await self._coordinator.close_after(error)
        else:
            self._failed_heartbeats = 0
            if must_join:
                self._notify_reader()
            await self._after_heartbeat()

    async def _after_heartbeat(self) -> None:
        if self.is_incremental:
            try:
                await self._fetch_assigned()
            except WarmlogError as error:  # the next heartbeat retries
                logger.info("group %s: fetching offsets failed: %s", self._options.group, error.message)
            if self._assigned.keys() != self.assignment.keys():
                self._notify_reader()
        if self.must_join and not self.is_incremental:
            return
        if self._options.auto_commit and anyio.current_time() >= self._commit_due_at:
            await self._try_commit(include_last=False)
            self._commit_due_at = anyio.current_time() + self._options.commit_interval_s

    def _end_generation(self, error: WarmlogError) -> None:
        """Handle an error that ends this generation or this membership."""
        if error.code is ErrorCode.FENCED_INSTANCE_ID:
            self.failure = error
        self._member.end(error)
        self._notify_reader()

    def _notify_reader(self) -> None:
        if self.is_incremental:
            self._tracker.keep_back()
        elif not self.must_join or self.generation == NO_GENERATION:
            self._tracker.revoke()
        self.must_join = True
        if self.on_change is not None:
            self.on_change()

    # -- commits --

    async def _try_commit(self, *, include_last: bool, limit_s: float = 0.0) -> None:
        """Commit processed records; only log a failure, since uncommitted records are read again.

        With a limit, retry for at most that time while a retry may succeed.
        """
        if self.generation == NO_GENERATION:
            return
        try:
            positions = self._tracker.committable(include_last=include_last)
            await self._repeat(partial(self._offsets.commit, positions, self._as_member()), limit_s)
        except WarmlogError as error:
            logger.info("group %s: commit failed: %s", self._options.group, error.message)

    async def _repeat(self, attempt: Callable[[], Awaitable[None]], limit_s: float) -> None:
        """Call `attempt` until it succeeds. Raises its last error if that is final or the time is over.

        A leaving member does not wait if no broker can be reached.
        """
        deadline = anyio.current_time() + limit_s
        for delay in delays_s(self._random):
            try:
                return await attempt()
            except WarmlogError as error:
                is_final = isinstance(error, UnknownTopicError) or not error.is_retriable
                is_cut_off = self._coordinator.tasks is not None and isinstance(error, ConnectError)
                if is_final or is_cut_off or anyio.current_time() + delay > deadline:
                    raise
            await anyio.sleep(delay)
        raise AssertionError("unreachable: the delays are endless")

    # -- leaving --

    async def _commit_and_leave(self) -> None:
        """Commit and leave over a new connection, even if the client's other tasks are cancelled."""
        self._coordinator.close()
        if not self._member.may_be_member:
            return
        with anyio.move_on_after(LEAVE_TIMEOUT_S, shield=True):
            async with anyio.create_task_group() as group:
                self._coordinator.tasks = group
                try:
                    await self._leave()
                except WarmlogError as error:
                    logger.info(
                        "group %s: leave failed; the member stays until its session times out: %s",
                        self._options.group,
                        error.message,
                    )
                group.cancel_scope.cancel()

    async def _leave(self) -> None:
        if self._options.auto_commit:
            include_last = self._commit_last or self._requested_join is not None
            await self._try_commit(include_last=include_last, limit_s=LEAVE_TIMEOUT_S / 2)
        await self._repeat(self._ask_to_leave, LEAVE_TIMEOUT_S / 3)

    async def _ask_to_leave(self) -> None:
        try:
            await self._member.leave()
        except WarmlogError as error:
            await self._coordinator.close_after(error)
            raise

"""One member of a group: join, heartbeat, commit, leave.

    join requested -> commit -> join_consumer_group -> offset_fetch -> joined
    joined         -> heartbeats, periodic commits -> rebalance or removal -> notify the reader
    stop           -> commit -> leave_group

Invariants:
1. Partitions are given up only when the reader calls `join`: then every delivered record is processed. So a live member
   commits what it has read before another member continues from there.
2. Everything runs in one task of the client, so a cancelled reader neither interrupts a join nor skips leaving. The
   task holds no reference to the reader, which may be garbage collected without being closed.
3. Only offsets read in the current generation are committed.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from random import Random
from typing import NamedTuple

import anyio

from warmlog.client.connection.cluster import Cluster
from warmlog.client.connection.request_parts import parts
from warmlog.client.errors import ConnectError, GroupMovedOnError, UnknownTopicError, WarmlogError, broker_error
from warmlog.client.groups.coordinator_link import CoordinatorLink
from warmlog.client.groups.delivery_tracker import DeliveryTracker
from warmlog.client.groups.member_options import MemberOptions
from warmlog.client.groups.subscribed_topics import SubscribedTopics
from warmlog.client.settings import Settings
from warmlog.protocol.backoff import delay_s, delays_s
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
    NO_GENERATION,
    NO_MEMBER,
    NO_OFFSET,
    FetchedOffsets,
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetToCommit,
)
from warmlog.protocol.native.groups import JoinConsumerGroupRequest, JoinConsumerGroupResponse
from warmlog.protocol.partitions import TopicPartition

logger = logging.getLogger(__name__)

MAX_HEARTBEAT_INTERVAL_S = 3.0  # Kafka's heartbeat.interval.ms
HEARTBEATS_PER_SESSION = 3  # tolerates two lost heartbeats
LEAVE_TIMEOUT_S = 5.0  # leaving does not wait longer for an unreachable broker


class Member(NamedTuple):
    """The sender of a group's offset commits: a member of a generation, or a client while the group has no members."""

    group: str
    generation: int = NO_GENERATION
    member_id: str = NO_MEMBER
    instance_id: str | None = None


class Membership:
    """A group member from its first `join` until `stop`. Not thread-safe.

    `assignment`: its partitions with their committed offsets, NO_OFFSET where there is none. `failure`: why the
    membership ended, if not by `stop`. `must_join`: the partitions must be given up, or none were assigned yet;
    `on_change` is called when it becomes true.
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
        self._committed: dict[TopicPartition, int] = {}
        self._commit_due_at = 0.0
        self._requested_join: anyio.Event | None = None  # set when the requested join is over
        self._wake = anyio.Event()
        self._stopping = False
        self._commit_last = False
        self._is_leader = False
        self._joining: anyio.CancelScope | None = None
        self._started = False
        self._ended = anyio.Event()
        self.member_id = NO_MEMBER
        self.generation = NO_GENERATION
        self.assignment: dict[TopicPartition, int] = {}
        self.must_join = True
        self.failure: WarmlogError | None = None
        self.on_change: Callable[[], None] | None = None

    # -- called by the reader --

    async def join(self) -> None:
        """Give up the current partitions, all records processed, and wait for an assignment. Raises WarmlogError.

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
        """Give up the partitions at the reader's next step, and join again."""
        self._notify_reader()

    async def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """Commit offsets read in this generation, retrying within the request timeout.

        Raises GroupMovedOnError, WarmlogError.
        """
        deadline = anyio.current_time() + self._settings.request_timeout_s
        for delay in delays_s(self._random):
            self._check_membership()
            try:
                await self._commit(positions)
            except WarmlogError as error:
                if not error.is_retriable or anyio.current_time() + delay > deadline:
                    raise
            else:
                return
            await anyio.sleep(delay)

    def as_member(self) -> Member:
        """Return the member that commits now. Raises GroupMovedOnError if it may not."""
        self._check_membership()
        return Member(self._options.group, self.generation, self.member_id, self._options.instance_id)

    @property
    def commits_by_itself(self) -> bool:
        """Whether processed records are committed without a call."""
        return self._options.auto_commit

    def _check_membership(self) -> None:
        """Raise GroupMovedOnError if the member may not commit now."""
        code = ErrorCode.REBALANCE_IN_PROGRESS if self._requested_join is not None else ErrorCode.UNKNOWN_MEMBER_ID
        if self._requested_join is not None or self.generation == NO_GENERATION or not self.is_running:
            raise broker_error(code, None, about=f"group {self._options.group!r}")

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
        if self._requested_join is None:
            with anyio.move_on_after(self._heartbeat_interval_s):
                await self._wake.wait()
        self._wake = anyio.Event()
        if self._stopping:
            return
        if self._requested_join is not None:
            await self._finish_join()
        elif self.generation != NO_GENERATION:
            await self._heartbeat()

    @property
    def _heartbeat_interval_s(self) -> float:
        return min(MAX_HEARTBEAT_INTERVAL_S, self._options.session_timeout_s / HEARTBEATS_PER_SESSION)

    async def _finish_join(self) -> None:
        try:
            with anyio.CancelScope() as self._joining:
                await self._join()
        except WarmlogError as error:
            self.failure = error
        finally:
            scope, self._joining = self._joining, None
        if scope is not None and scope.cancelled_caught:
            self._coordinator.close()  # the broker drops a join whose connection closes
            return
        requested, self._requested_join = self._requested_join, None
        if requested is not None:
            requested.set()

    async def _join(self) -> None:
        """Join until it succeeds. Raises WarmlogError if it fails for good or longer than `delivery_timeout_s`."""
        if self._options.auto_commit:
            limit_s = min(LEAVE_TIMEOUT_S, self._options.rebalance_timeout_s / 2)
            await self._try_commit(include_last=True, limit_s=limit_s)
        self._tracker.reset({})
        deadline = anyio.current_time() + self._settings.delivery_timeout_s
        attempts = 0
        while True:
            try:
                await self._try_join()
            except WarmlogError as error:
                await self._coordinator.close_after(error)
                if error.code is ErrorCode.UNKNOWN_MEMBER_ID and self.member_id != NO_MEMBER:
                    self.member_id = NO_MEMBER
                elif not error.is_retriable or anyio.current_time() > deadline:
                    raise
                attempts += 1
                await anyio.sleep(delay_s(attempts, self._random))
            else:
                return

    async def _try_join(self) -> None:
        options = self._options
        await self._topics.update()
        request = JoinConsumerGroupRequest(
            group=options.group,
            topics=self._topics.names,
            member_id=self.member_id,
            instance_id=options.instance_id,
            session_timeout_ms=round(options.session_timeout_s * 1000),
            rebalance_timeout_ms=round(options.rebalance_timeout_s * 1000),
        )
        joined = await self._coordinator.request(
            request, JoinConsumerGroupResponse, extra_s=options.rebalance_timeout_s
        )
        self.member_id, self.generation, self._is_leader = joined.member_id, joined.generation, joined.is_leader
        self.assignment = {}
        for part in parts(joined.partitions, attrgetter("topic")):
            fetch_request = OffsetFetchRequest(
                groups=(OffsetFetchGroup(group=options.group, partitions=part),), require_stable=True
            )
            fetched = await self._fetch_offsets(fetch_request)
            self.assignment |= {(item.topic, item.partition): item.offset for item in fetched.partitions}
        self._committed = {key: offset for key, offset in self.assignment.items() if offset != NO_OFFSET}
        self._commit_due_at = anyio.current_time() + options.commit_interval_s
        self.must_join = False

    async def _fetch_offsets(self, request: OffsetFetchRequest) -> FetchedOffsets:
        """Fetch committed offsets; wait for a transaction that may still change them, as long as a heartbeat can wait.

        Raises WarmlogError.
        """
        deadline = anyio.current_time() + self._heartbeat_interval_s
        for delay in delays_s(self._random):
            (fetched,) = (await self._coordinator.request(request, OffsetFetchResponse)).groups
            error = fetched.error or next((item.error for item in fetched.partitions if item.error), ErrorCode.NONE)
            if error is ErrorCode.NONE:
                return fetched
            if error is not ErrorCode.UNSTABLE_OFFSET_COMMIT or anyio.current_time() + delay > deadline:
                raise broker_error(error, fetched.message)
            await anyio.sleep(delay)
        raise AssertionError("unreachable: the delays are endless")

    # -- heartbeats --

    async def _heartbeat(self) -> None:
        """Send a heartbeat, commit if it is due, and react to a rebalance."""
        options = self._options
        request = HeartbeatRequest(
            group=options.group,
            generation=self.generation,
            member_id=self.member_id,
            instance_id=options.instance_id,
        )
        try:
            await self._coordinator.request(request, HeartbeatResponse)
        except GroupMovedOnError as error:
            self._end_generation(error)
        except WarmlogError as error:
            logger.info("group %s: heartbeat failed: %s", options.group, error.message)
            await self._coordinator.close_after(error)
        else:
            await self._after_heartbeat()

    async def _after_heartbeat(self) -> None:
        if self.must_join:
            return
        if self._options.auto_commit and anyio.current_time() >= self._commit_due_at:
            await self._try_commit(include_last=False)
            self._commit_due_at = anyio.current_time() + self._options.commit_interval_s
        if await self._topics.have_changed(is_leader=self._is_leader):
            self._notify_reader()

    def _end_generation(self, error: WarmlogError) -> None:
        """Handle an error that ends this generation or this membership."""
        if error.code is ErrorCode.FENCED_INSTANCE_ID:
            self.failure = error
        if error.code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = NO_MEMBER
        if error.code is not ErrorCode.REBALANCE_IN_PROGRESS:
            self.generation = NO_GENERATION
        self._notify_reader()

    def _notify_reader(self) -> None:
        if not self.must_join:
            self.must_join = True
            self._tracker.revoke()
        if self.on_change is not None:
            self.on_change()

    # -- commits --

    async def _try_commit(self, *, include_last: bool, limit_s: float = 0.0) -> None:
        """Commit processed records; log a failure: what is not committed is read again.

        With a limit, it is tried again for so long while that may help.
        """
        if self.generation == NO_GENERATION:
            return
        try:
            await self._repeat(partial(self._commit, self._tracker.committable(include_last=include_last)), limit_s)
        except WarmlogError as error:
            logger.info("group %s: commit failed: %s", self._options.group, error.message)

    async def _repeat(self, attempt: Callable[[], Awaitable[None]], limit_s: float) -> None:
        """Call `attempt` until it succeeds. Raises its last error if that is final or the time is over.

        A member that leaves does not wait for a broker if none can be reached.
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

    async def _commit(self, positions: Mapping[TopicPartition, int]) -> None:
        changed = {key: offset for key, offset in positions.items() if self._committed.get(key) != offset}
        if not changed:
            return
        offsets = [
            OffsetToCommit(topic=topic, partition=partition, offset=offset)
            for (topic, partition), offset in changed.items()
        ]
        try:
            await self._commit_parts(offsets)
        except WarmlogError as error:
            if error.code is ErrorCode.NOT_COORDINATOR:
                await self._coordinator.close_after(error)
            raise

    async def _commit_parts(self, offsets: Sequence[OffsetToCommit]) -> None:
        for part in parts(offsets, attrgetter("topic")):
            request = OffsetCommitRequest(
                group=self._options.group,
                generation=self.generation,
                member_id=self.member_id,
                instance_id=self._options.instance_id,
                partitions=part,
            )
            for result in (await self._coordinator.request(request, OffsetCommitResponse)).partitions:
                if result.error:
                    raise broker_error(result.error, result.message, about=f"{result.topic}-{result.partition}")
            self._committed.update({(item.topic, item.partition): item.offset for item in part})

    # -- the end --

    async def _commit_and_leave(self) -> None:
        """Commit and leave over a new connection, even if the client's other tasks are cancelled."""
        self._coordinator.close()
        if self.member_id == NO_MEMBER:
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
        if self._options.instance_id is None:  # a static member may rejoin
            await self._repeat(self._ask_to_leave, LEAVE_TIMEOUT_S / 3)

    async def _ask_to_leave(self) -> None:
        leaving = LeavingMember(member_id=self.member_id, reason="the consumer was closed")
        try:
            await self._coordinator.request(
                LeaveGroupRequest(group=self._options.group, members=(leaving,)), LeaveGroupResponse
            )
        except WarmlogError as error:
            await self._coordinator.close_after(error)
            raise

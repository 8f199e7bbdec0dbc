"""One member of a group: joining, heartbeats, commits, leaving.

Owns: the member's id, generation and partitions, its connection, and the task that keeps it alive. Must not know: how
records are read (`group_stream`).

    join wanted -> commit what is done -> join_consumer_group -> offset_fetch -> joined
    joined      -> heartbeat, commit now and then -> "join again" or "you are out" -> the reader is told
    stop        -> commit what is done -> leave_group

Invariants:
1. Partitions are given up only when the reader says so (`join`): then all that it was given is done. So a live
   member commits what it has read before another one reads on from there.
2. All of it happens in one task of the client's, so that a reader that is cancelled neither stops a join half-way nor
   goes without leaving. It holds no reference to the reader, who may be forgotten without being closed.
3. Only offsets that were read in the generation at hand are committed.
"""

import logging
from collections.abc import Callable, Mapping
from random import Random
from typing import TypeVar

import anyio

from protocol.errors import ErrorCode
from protocol.groups import (
    NO_GENERATION,
    NO_MEMBER,
    NO_OFFSET,
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
from protocol.native.groups import JoinConsumerGroupRequest, JoinConsumerGroupResponse
from protocol.native.messages import NativeRequest
from protocol.request import Value
from warmlog.client.backoff import delay_s, delays_s
from warmlog.client.cluster import Cluster
from warmlog.client.connection import Connection
from warmlog.client.errors import GroupMovedOnError, UnknownTopicError, WarmlogError, broker_error
from warmlog.client.group_options import GroupOptions
from warmlog.client.handed import Handed, Place
from warmlog.client.settings import Settings

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=Value)

MAX_HEARTBEAT_INTERVAL_S = 3.0  # Kafka's heartbeat.interval.ms
HEARTBEATS_PER_SESSION = 3  # so that two may be lost
LEAVE_TIMEOUT_S = 5.0  # who leaves does not wait for a broker that is gone


class Membership:
    """A member, from the first `join` on until `stop`. Not thread-safe.

    `places`: its partitions, with the offset that the group has committed, NO_OFFSET where there is none.
    `failure`: why it is over, if not by `stop`. `must_join`: the partitions must be given up, or there are none yet;
    `on_change` is called when that becomes so.
    """

    def __init__(
        self, cluster: Cluster, settings: Settings, random: Random, options: GroupOptions, handed: Handed
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._random = random
        self._options = options
        self._handed = handed
        self._connection: Connection | None = None
        self._counts: dict[str, int] = {}  # partitions of the topics, when they were divided
        self._committed: dict[Place, int] = {}
        self._commit_due_at = 0.0
        self._wanted: anyio.Event | None = None  # set when the join that is wanted is over
        self._wake = anyio.Event()
        self._stopping = False
        self._commit_last = False
        self._is_leader = False
        self._joining: anyio.CancelScope | None = None
        self._started = False
        self._ended = anyio.Event()
        self.member_id = NO_MEMBER
        self.generation = NO_GENERATION
        self.places: dict[Place, int] = {}
        self.must_join = True
        self.failure: WarmlogError | None = None
        self.on_change: Callable[[], None] | None = None

    # -- the reader's side --

    async def join(self) -> None:
        """Give up what there was, all of it done, and wait for what comes. Raises WarmlogError when that is nothing.

        A call that is cancelled goes on by itself; the next one waits for the same.
        """
        if self._wanted is None and not self._stopping and self.failure is None:
            self._wanted = anyio.Event()
            self._wake.set()
            self._start()
        if self._wanted is not None:
            await self._wanted.wait()
        if self.failure is not None:
            raise self.failure

    async def commit(self, positions: Mapping[Place, int]) -> None:
        """Commit these offsets, of partitions read in this generation. Raises GroupMovedOnError, WarmlogError.

        Tries again within the request timeout where that makes sense.
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

    def _check_membership(self) -> None:
        """Raise GroupMovedOnError where nothing may be committed now."""
        code = ErrorCode.REBALANCE_IN_PROGRESS if self._wanted is not None else ErrorCode.UNKNOWN_MEMBER_ID
        if self._wanted is not None or self.generation == NO_GENERATION or not self.is_running:
            raise broker_error(code, None, about=f"group {self._options.group!r}")

    def stop(self, *, with_last: bool) -> None:
        """Commit what is done (`with_last`: also what was taken last), and leave; `wait_ended` for the end of that."""
        self._handed.cut()
        if self.is_running and not self._stopping:
            self._commit_last = with_last
            if self._joining is not None:
                self._joining.cancel()
            self._wake.set()
        self._stopping = True

    async def wait_ended(self) -> None:
        """Wait until it is over, after `stop`."""
        if self.is_running:
            await self._ended.wait()

    # -- the task --

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self._cluster.start_soon(self._run)

    @property
    def is_running(self) -> bool:
        """Whether its task is under way."""
        return self._started and not self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether it was a member, and is none any more."""
        return self._ended.is_set()

    async def _run(self) -> None:
        try:
            while not self._stopping and self.failure is None:
                await self._live()
            if self._stopping:
                await self._say_goodbye()
        except anyio.get_cancelled_exc_class():
            await self._say_goodbye()
            raise
        finally:
            self._hang_up()
            self._ended.set()
            if self._wanted is not None:
                self._wanted.set()

    async def _live(self) -> None:
        """Until something happens, or a heartbeat is due."""
        if self._wanted is None:
            with anyio.move_on_after(self._heartbeat_interval_s):
                await self._wake.wait()
        self._wake = anyio.Event()
        if self._stopping:
            return
        if self._wanted is not None:
            await self._settle_join()
        elif self.generation != NO_GENERATION:
            await self._beat()

    @property
    def _heartbeat_interval_s(self) -> float:
        return min(MAX_HEARTBEAT_INTERVAL_S, self._options.session_timeout_s / HEARTBEATS_PER_SESSION)

    async def _settle_join(self) -> None:
        try:
            with anyio.CancelScope() as self._joining:
                await self._join()
        except WarmlogError as error:
            self.failure = error
        finally:
            scope, self._joining = self._joining, None
        if scope is not None and scope.cancelled_caught:
            self._hang_up()  # so that the broker does not make a member of it
            return
        wanted, self._wanted = self._wanted, None
        if wanted is not None:
            wanted.set()

    async def _join(self) -> None:
        """Join until it works. Raises WarmlogError where trying again makes no sense, or did not for too long."""
        if self._options.auto_commit:
            await self._try_commit(with_last=True)
        self._handed.reset({})
        deadline = anyio.current_time() + self._settings.delivery_timeout_s
        attempts = 0
        while True:
            try:
                await self._try_join()
            except WarmlogError as error:
                self._hang_up()
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
        await self._count_partitions()
        request = JoinConsumerGroupRequest(
            group=options.group,
            topics=options.topics,
            member_id=self.member_id,
            instance_id=options.instance_id,
            session_timeout_ms=round(options.session_timeout_s * 1000),
            rebalance_timeout_ms=round(options.rebalance_timeout_s * 1000),
        )
        joined = await self._ask(request, JoinConsumerGroupResponse, extra_s=options.rebalance_timeout_s)
        self.member_id, self.generation, self._is_leader = joined.member_id, joined.generation, joined.is_leader
        asked = OffsetFetchRequest(groups=(OffsetFetchGroup(group=options.group, partitions=joined.partitions),))
        (fetched,) = (await self._ask(asked, OffsetFetchResponse)).groups
        if error := fetched.error or next((one.error for one in fetched.partitions if one.error), None):
            raise broker_error(error, fetched.message)
        self.places = {(one.topic, one.partition): one.offset for one in fetched.partitions}
        self._committed = {place: offset for place, offset in self.places.items() if offset != NO_OFFSET}
        self._commit_due_at = anyio.current_time() + options.commit_interval_s
        self.must_join = False

    async def _count_partitions(self) -> None:
        """The topics must be there when the group is joined for the first time; later they may be gone."""
        for name in self._options.topics:
            try:
                topic = await self._cluster.topic(name, auto_create=self._options.auto_create)
            except UnknownTopicError:
                if name not in self._counts:
                    raise
                self._counts[name] = 0
            else:
                self._counts[name] = topic.partitions

    # -- heartbeats --

    async def _beat(self) -> None:
        """Say that the member is there, commit if it is time; hear whether the partitions are still its own."""
        options = self._options
        request = HeartbeatRequest(
            group=options.group,
            generation=self.generation,
            member_id=self.member_id,
            instance_id=options.instance_id,
        )
        try:
            await self._ask(request, HeartbeatResponse)
        except GroupMovedOnError as error:
            self._give_way(error)
        except WarmlogError as error:
            logger.info("group %s: a heartbeat failed: %s", options.group, error.message)
            self._hang_up()
        else:
            await self._look_around()

    async def _look_around(self) -> None:
        if self.must_join:
            return
        if self._options.auto_commit and anyio.current_time() >= self._commit_due_at:
            await self._try_commit(with_last=False)
            self._commit_due_at = anyio.current_time() + self._options.commit_interval_s
        if self._is_leader and await self._has_grown():
            self._tell_reader()

    async def _has_grown(self) -> bool:
        """Whether a topic has other partitions than when they were divided, as far as is known (see Cluster.topic)."""
        before = dict(self._counts)
        try:
            await self._count_partitions()
        except WarmlogError:
            return False
        return self._counts != before

    def _give_way(self, error: WarmlogError) -> None:
        """The partitions are this member's no longer, or soon will not be."""
        if error.code is ErrorCode.FENCED_INSTANCE_ID:
            self.failure = error
        if error.code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = NO_MEMBER
        if error.code is not ErrorCode.REBALANCE_IN_PROGRESS:
            self.generation = NO_GENERATION
        self._tell_reader()

    def _tell_reader(self) -> None:
        if not self.must_join:
            self.must_join = True
            self._handed.cut()
        if self.on_change is not None:
            self.on_change()

    # -- commits --

    async def _try_commit(self, *, with_last: bool) -> None:
        """Commit what is done, as well as it goes: what is not committed is read again."""
        if self.generation == NO_GENERATION:
            return
        try:
            await self._commit(self._handed.done(with_last=with_last))
        except WarmlogError as error:
            logger.info("group %s: a commit failed: %s", self._options.group, error.message)

    async def _commit(self, positions: Mapping[Place, int]) -> None:
        changed = {place: offset for place, offset in positions.items() if self._committed.get(place) != offset}
        if not changed:
            return
        request = OffsetCommitRequest(
            group=self._options.group,
            generation=self.generation,
            member_id=self.member_id,
            instance_id=self._options.instance_id,
            partitions=tuple(
                OffsetToCommit(topic=topic, partition=partition, offset=offset)
                for (topic, partition), offset in changed.items()
            ),
        )
        for told in (await self._ask(request, OffsetCommitResponse)).partitions:
            if told.error:
                raise broker_error(told.error, told.message, about=f"{told.topic}-{told.partition}")
        self._committed.update(changed)

    # -- the end --

    async def _say_goodbye(self) -> None:
        """Commit and leave, also where everything else of the client is cancelled: over a connection of its own."""
        self._hang_up()
        if self.member_id == NO_MEMBER:
            return
        with anyio.move_on_after(LEAVE_TIMEOUT_S, shield=True):
            async with anyio.create_task_group() as tasks:
                try:
                    self._connection = await self._cluster.open_any(tasks)
                    await self._leave()
                except WarmlogError as error:
                    logger.info("group %s: not left, its session will end: %s", self._options.group, error.message)
                tasks.cancel_scope.cancel()

    async def _leave(self) -> None:
        if self._options.auto_commit:
            await self._try_commit(with_last=self._commit_last or self._wanted is not None)
        if self._options.instance_id is None:  # a static member may come back
            leaving = LeavingMember(member_id=self.member_id, reason="the consumer was closed")
            await self._ask(LeaveGroupRequest(group=self._options.group, members=(leaving,)), LeaveGroupResponse)

    # -- asking --

    async def _ask(self, request: NativeRequest, response_type: type[R], *, extra_s: float = 0) -> R:
        if self._connection is None or self._connection.closed:
            self._connection = await self._cluster.open_any()
        return await self._connection.submit(request, response_type, extra_s=extra_s).wait()

    def _hang_up(self) -> None:
        if self._connection is not None and not self._connection.closed:
            self._connection.close()
        self._connection = None

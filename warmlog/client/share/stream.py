"""A stream of jobs: the membership of a share group, and the sessions with the brokers that lead its partitions.

Invariants:
1. A job is passed to the caller once, and only while its lock cannot have expired.
2. Leaving the block sends the caller's acknowledgements, releases all other jobs and leaves the group.
3. A cancelled call has taken no job.
4. No more jobs are acquired at a time than callers process in AHEAD_S. Further jobs are left to other members, since
the locks of waiting jobs would expire.
"""

import logging
from collections import deque
from random import Random
from types import TracebackType
from typing import Self

import anyio
from anyio.lowlevel import checkpoint

from warmlog.client.connection.cluster import NO_LEADER, Cluster
from warmlog.client.errors import ConnectError, WarmlogError
from warmlog.client.settings import Settings
from warmlog.client.share.broker_session import BrokerSession
from warmlog.client.share.job import Job
from warmlog.client.share.member import ShareMember
from warmlog.client.share.options import ShareOptions
from warmlog.protocol.backoff import delay_s
from warmlog.protocol.partitions import TopicPartition

logger = logging.getLogger(__name__)

FIRST_AMOUNT = 10
AHEAD_S = 2.0  # time for which the jobs acquired at a time should keep callers busy
GROWTH = 4  # maximum growth factor of the number of jobs acquired at a time


class ShareStream:
    """An async iterator of jobs. Read it inside `async with`; several tasks may take jobs from one stream."""

    def __init__(
        self, cluster: Cluster, settings: Settings, random: Random, options: ShareOptions, *, auto_accept: bool
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._random = random
        self._options = options
        self._auto_accept = auto_accept
        self._member = ShareMember(cluster, settings, random, options, changed=self._plan, failed=self._fail)
        self._sessions: dict[int, BrokerSession] = {}
        self._jobs: deque[tuple[BrokerSession, Job]] = deque()
        self._last: Job | None = None
        self._waiting = 0
        self._amount = min(FIRST_AMOUNT, options.max_jobs)
        self._arrived_at: float | None = None  # when the most recent jobs arrived while no others were waiting
        self._arrived_count = 0
        self._changed = anyio.Event()
        self._replan = anyio.Event()
        self._failure: WarmlogError | None = None
        self._failed_since: float | None = None
        self._attempts = 0
        self._scope: anyio.CancelScope | None = None
        self._ended: anyio.Event | None = None
        self._closed = False

    @property
    def member_id(self) -> str:
        """The id of the member."""
        return self._member.member_id

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions from which the member acquires records, as (topic, partition)."""
        return self._member.assignment

    @property
    def has_ended(self) -> bool:
        """Whether the stream was closed and has left the group."""
        return self._ended is not None and self._ended.is_set()

    # -- jobs --

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Job:
        if self._auto_accept and self._last is not None:
            self._last.close(is_good=True)
            self._last = None
        await checkpoint()
        while (job := self._next_held()) is None:
            if not await self._wait():
                raise StopAsyncIteration
        self._last = job
        return job

    async def next_jobs(self) -> list[Job]:
        """Return all jobs that have arrived, at least one, or an empty list at the end. Raises WarmlogError.

        For a caller that checks `Job.expires_at` itself. `auto_accept` does not apply.
        """
        await checkpoint()
        while not self._jobs and await self._wait():
            pass
        jobs = [job for _, job in self._jobs]
        self._jobs.clear()
        return jobs

    async def _wait(self) -> bool:
        """Wait until a job has arrived or the stream has changed; return False at the end. Raises WarmlogError."""
        self._start()
        if self._failure is not None:
            raise self._failure
        if not self._closed:
            self._adapt()
            self._waiting += 1
            try:
                self._wake_sessions()
                await self._changed.wait()
            finally:
                self._waiting -= 1
        return not self._closed

    def _next_held(self) -> Job | None:
        """Return the next job whose lock cannot have expired, or None."""
        now = anyio.current_time()
        while self._jobs and not self._closed:
            _, job = self._jobs.popleft()
            if now < job.expires_at:
                return job
        return None

    def _wanted(self) -> int:
        """Return the number of jobs to acquire from one broker now."""
        if self._jobs or not self._waiting:
            return 0
        return max(1, self._amount // max(1, len(self._sessions)))

    def _adapt(self) -> None:
        """Adapt the number of jobs to acquire to the time that callers took for the most recent ones."""
        if self._arrived_at is None:
            return
        pace = self._arrived_count / max(anyio.current_time() - self._arrived_at, 1e-6)
        self._amount = int(max(1, min(pace * AHEAD_S, self._amount * GROWTH, self._options.max_jobs)))
        self._arrived_at = None

    def _arrived(self, session: BrokerSession, jobs: list[Job]) -> None:
        self._attempts, self._failed_since = 0, None
        if not jobs:
            return
        if not self._jobs:
            self._arrived_at, self._arrived_count = anyio.current_time(), 0
        self._arrived_count += len(jobs)
        self._jobs.extend((session, job) for job in jobs)
        self._notify()

    def _lost(self, session: BrokerSession) -> None:
        self._jobs = deque((owner, job) for owner, job in self._jobs if owner is not session)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _wake_sessions(self) -> None:
        for session in self._sessions.values():
            session.wake()

    def _fail(self, error: WarmlogError) -> None:
        self._failure = self._failure or error
        self._notify()

    # -- tasks --

    def _start(self) -> None:
        if self._ended is None and not self._closed:
            self._ended = anyio.Event()
            self._cluster.start_soon(self._run)

    async def _run(self) -> None:
        assert self._ended is not None
        try:
            async with anyio.create_task_group() as group:
                self._scope = group.cancel_scope
                group.start_soon(self._member.run)
                if self._closed:
                    group.cancel_scope.cancel()
                while True:
                    await self._replan.wait()
                    self._replan = anyio.Event()
                    await self._assign(group)
        finally:
            try:
                await self._member.leave()
            finally:
                self._ended.set()
                self._notify()

    def _plan(self) -> None:
        self._replan.set()

    async def _assign(self, group: anyio.abc.TaskGroup) -> None:
        """Give each partition to the session with its leader."""
        by_leader: dict[int, set[TopicPartition]] = {}
        try:
            for topic, index in self._member.assignment:
                leader = self._cluster.leader(topic, index)
                if leader == NO_LEADER:
                    metadata = await self._cluster.refresh(topic, auto_create=False)
                    leader = metadata.leaders[index] if index < metadata.partitions else NO_LEADER
                if leader != NO_LEADER:
                    by_leader.setdefault(leader, set()).add((topic, index))
        except WarmlogError as error:
            self._retry(error)
            return
        if sum(map(len, by_leader.values())) < len(self._member.assignment):
            self._retry(ConnectError("a partition has no leader"))
        for node_id, session in self._sessions.items():
            session.assign(by_leader.pop(node_id, ()))
        for node_id, partitions in by_leader.items():
            session = self._sessions[node_id] = self._session(node_id)
            session.assign(partitions)
            group.start_soon(self._serve, node_id, session)

    def _session(self, node_id: int) -> BrokerSession:
        session = BrokerSession(
            self._cluster,
            self._settings,
            self._options,
            self._member.member_id,
            node_id,
            wanted=self._wanted,
            arrived=lambda jobs: self._arrived(session, jobs),
            lost=self._lost,
            unreadable=self._unreadable,
        )
        return session

    async def _serve(self, node_id: int, session: BrokerSession) -> None:
        """Run a session. When it fails, plan again, or end the stream if the error is final."""
        try:
            await session.run()
        except WarmlogError as error:
            if self._sessions.get(node_id) is session:
                del self._sessions[node_id]
            for topic in self._options.topics:
                self._cluster.forget_leaders(topic)
            self._retry(error)

    def _unreadable(self, partition: TopicPartition, error: WarmlogError) -> None:
        self._cluster.forget_leaders(partition[0])
        self._retry(error)

    def _retry(self, error: WarmlogError) -> None:
        """Plan again after a pause, or fail if the error is final or lasts for `delivery_timeout_s`."""
        now = anyio.current_time()
        self._failed_since = now if self._failed_since is None else self._failed_since
        is_in_time = now <= self._failed_since + self._settings.delivery_timeout_s
        if not error.is_retriable or not is_in_time:
            self._fail(error)
            return
        self._attempts += 1
        logger.info("group %s: %s", self._options.group, error.message)
        self._cluster.start_soon(self._plan_later)

    async def _plan_later(self) -> None:
        await anyio.sleep(delay_s(self._attempts, self._random))
        self._plan()

    # -- closing --

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose(is_good=error is None)

    async def aclose(self, *, is_good: bool = True) -> None:
        """Send acknowledgements, release all other jobs, and leave the group.

        With `auto_accept`, the last job is accepted, or released unless `is_good`.
        """
        if self._auto_accept and self._last is not None:
            self._last.close(is_good=is_good)
        self._last = None
        self.close()
        if self._ended is not None:
            with anyio.CancelScope(shield=True):
                await self._ended.wait()

    def close(self) -> None:
        """End the stream without waiting; its tasks end in the background."""
        if not self._closed:
            self._closed = True
            self._jobs.clear()
            if self._scope is not None:
                self._scope.cancel()
            self._notify()

    def __del__(self) -> None:
        if self._scope is not None and not self._closed:
            self._scope.cancel()

"""The membership of a share group: heartbeats at the broker's interval, and the partitions that it assigns.

A removed member joins again automatically, since records are held by member id and lock, not by membership.
"""

import logging
from collections.abc import Callable, Mapping
from random import Random
from uuid import uuid4

import anyio

from warmlog.client.connection.cluster import Cluster
from warmlog.client.errors import GroupMovedOnError, UnknownTopicError, WarmlogError
from warmlog.client.groups.coordinator_link import CoordinatorLink
from warmlog.client.settings import Settings
from warmlog.client.share.admin import ShareAdmin
from warmlog.client.share.options import ShareOptions
from warmlog.protocol.backoff import delay_s
from warmlog.protocol.native.messages import FIRST_WITH_SHARE_GROUPS
from warmlog.protocol.native.share import HeartbeatShareGroupRequest, HeartbeatShareGroupResponse
from warmlog.protocol.partitions import TopicPartition

logger = logging.getLogger(__name__)

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
FIRST_INTERVAL_S = 5.0  # until the broker has sent its interval
LEAVE_TIMEOUT_S = 5.0
START_SETTING = "share.auto.offset.reset"
KAFKA_STARTS = {"beginning": "earliest", "end": "latest"}


class ShareMember:
    """A group member from the start of `run` until its cancellation. Not thread-safe.

    `assignment`: the partitions from which to acquire records. `changed` is called when it changes, `failed` with the
    error that ends the membership.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        random: Random,
        options: ShareOptions,
        *,
        changed: Callable[[], None],
        failed: Callable[[WarmlogError], None],
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._random = random
        self._group = options.group
        self._topics = options.topics
        self._start = options.start
        self._unchecked = list(options.topics)  # topics not yet known to exist
        self._auto_create = options.auto_create
        self._changed = changed
        self._failed = failed
        self._coordinator = CoordinatorLink(cluster, options.group)
        self._epoch = JOIN_EPOCH
        self._interval_s = FIRST_INTERVAL_S
        self._failed_since: float | None = None
        self._attempts = 0
        self._has_joined = False
        self._unassigned = 0  # heartbeats without partitions since the last join
        self.member_id = str(uuid4())
        self.assignment: frozenset[TopicPartition] = frozenset()

    async def run(self) -> None:
        """Join, and keep the membership, until cancelled or failed."""
        while True:
            try:
                await self._heartbeat()
            except WarmlogError as error:
                await self._coordinator.close_after(error)
                if not self._may_retry(error):
                    self._failed(error)
                    return
                self._attempts += 1
                await anyio.sleep(min(self._interval_s, delay_s(self._attempts, self._random)))
            else:
                self._attempts, self._failed_since = 0, None
                await anyio.sleep(self._pause_s())

    async def _heartbeat(self) -> None:
        while self._unchecked:
            await self._cluster.topic(self._unchecked[-1], auto_create=self._auto_create)
            self._unchecked.pop()
        if self._start is not None:
            configs: Mapping[str, str | None] = {START_SETTING: KAFKA_STARTS[self._start]}
            await ShareAdmin(self._cluster).alter_group(self._group, configs)
            self._start = None
        self._has_joined = True
        request = HeartbeatShareGroupRequest(
            group=self._group,
            member_id=self.member_id,
            member_epoch=self._epoch,
            topics=self._topics if self._epoch == JOIN_EPOCH or self._attempts else None,
        )
        reply = await self._coordinator.request(request, HeartbeatShareGroupResponse, since=FIRST_WITH_SHARE_GROUPS)
        self._epoch = reply.member_epoch
        self._interval_s = reply.heartbeat_interval_ms / 1000
        if reply.partitions is not None:
            assignment = frozenset([(entry.topic, entry.partition) for entry in reply.partitions])
            if assignment != self.assignment:
                self.assignment = assignment
                self._changed()

    def _pause_s(self) -> float:
        """Return the time to the next heartbeat, short while the broker prepares partitions after a join."""
        if self.assignment:
            return self._interval_s
        self._unassigned += 1
        return min(self._interval_s, delay_s(self._unassigned, self._random))

    def _may_retry(self, error: WarmlogError) -> bool:
        """Return whether to send another heartbeat: after a removal to rejoin, otherwise for `delivery_timeout_s`."""
        if isinstance(error, GroupMovedOnError):
            self._epoch = JOIN_EPOCH
            return True
        now = anyio.current_time()
        self._failed_since = now if self._failed_since is None else self._failed_since
        is_in_time = now <= self._failed_since + self._settings.delivery_timeout_s
        logger.info("group %s: heartbeat failed: %s", self._group, error.message)
        return error.is_retriable and is_in_time and not isinstance(error, UnknownTopicError)

    async def leave(self) -> None:
        """Leave over a new connection, even if the client's other tasks are cancelled."""
        self._coordinator.close()
        if not self._has_joined:
            return
        with anyio.move_on_after(LEAVE_TIMEOUT_S, shield=True):
            async with anyio.create_task_group() as group:
                self._coordinator.tasks = group
                request = HeartbeatShareGroupRequest(
                    group=self._group, member_id=self.member_id, member_epoch=LEAVE_EPOCH
                )
                try:
                    await self._coordinator.request(request, HeartbeatShareGroupResponse, since=FIRST_WITH_SHARE_GROUPS)
                except WarmlogError as error:
                    logger.info(
                        "group %s: leave failed; the member stays until its session times out: %s",
                        self._group,
                        error.message,
                    )
                group.cancel_scope.cancel()
        self._coordinator.close()

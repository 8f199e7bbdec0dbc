"""Fetch and commit the offsets of a group, as a member or from outside the group."""

from collections.abc import Iterable, Mapping
from operator import attrgetter
from random import Random
from typing import NamedTuple

import anyio

from warmlog.client.connection.request_parts import parts
from warmlog.client.errors import WarmlogError, broker_error
from warmlog.client.groups.coordinator_link import CoordinatorLink
from warmlog.protocol.backoff import delays_s
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
    NO_GENERATION,
    NO_MEMBER,
    NO_OFFSET,
    FetchedOffsets,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetToCommit,
    PartitionEntry,
)
from warmlog.protocol.partitions import TopicPartition


class Member(NamedTuple):
    """The sender of a group's offset commits: a member, or a client while the group has no members.

    `generation`: the epoch of a member of a consumer group.
    """

    group: str
    generation: int = NO_GENERATION
    member_id: str = NO_MEMBER
    instance_id: str | None = None


class GroupOffsets:
    """The committed offsets of a group that a member has fetched or committed."""

    def __init__(self, coordinator: CoordinatorLink, group: str, random: Random) -> None:
        self._coordinator = coordinator
        self._group = group
        self._random = random
        self._committed: dict[TopicPartition, int] = {}

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget the offsets of partitions that other members may commit from now on."""
        for key in list(partitions):
            self._committed.pop(key, None)

    def forget_all(self) -> None:
        """Forget the offsets of all partitions."""
        self._committed = {}

    async def fetch(self, partitions: Iterable[TopicPartition], patience_s: float) -> dict[TopicPartition, int]:
        """Return the committed offsets; NO_OFFSET for partitions without one. Raises WarmlogError.

        `patience_s`: how long to wait for a transaction that may still change them.
        """
        fetched: dict[TopicPartition, int] = {}
        entries = [PartitionEntry(topic=topic, partition=partition) for topic, partition in partitions]
        for part in parts(entries, attrgetter("topic")):
            request = OffsetFetchRequest(
                groups=(OffsetFetchGroup(group=self._group, partitions=part),), require_stable=True
            )
            offsets = await self._fetch(request, patience_s)
            fetched |= {(item.topic, item.partition): item.offset for item in offsets.partitions}
        self._committed |= {key: offset for key, offset in fetched.items() if offset != NO_OFFSET}
        return fetched

    async def _fetch(self, request: OffsetFetchRequest, patience_s: float) -> FetchedOffsets:
        deadline = anyio.current_time() + patience_s
        for delay in delays_s(self._random):
            (fetched,) = (await self._coordinator.request(request, OffsetFetchResponse)).groups
            error = fetched.error or next((item.error for item in fetched.partitions if item.error), ErrorCode.NONE)
            if error is ErrorCode.NONE:
                return fetched
            if error is not ErrorCode.UNSTABLE_OFFSET_COMMIT or anyio.current_time() + delay > deadline:
                raise broker_error(error, fetched.message)
            await anyio.sleep(delay)
        raise AssertionError("unreachable: the delays are endless")

    async def commit(self, positions: Mapping[TopicPartition, int], member: Member) -> None:
        """Commit offsets that are not committed yet. Raises GroupMovedOnError, WarmlogError."""
        changed = {key: offset for key, offset in positions.items() if self._committed.get(key) != offset}
        if not changed:
            return
        offsets = [
            OffsetToCommit(topic=topic, partition=partition, offset=offset)
            for (topic, partition), offset in changed.items()
        ]
        try:
            for part in parts(offsets, attrgetter("topic")):
                await self._commit_part(part, member)
        except WarmlogError as error:
            if error.code is ErrorCode.NOT_COORDINATOR:
                await self._coordinator.close_after(error)
            raise

    async def _commit_part(self, part: tuple[OffsetToCommit, ...], member: Member) -> None:
        request = OffsetCommitRequest(
            group=member.group,
            generation=member.generation,
            member_id=member.member_id,
            instance_id=member.instance_id,
            partitions=part,
        )
        for result in (await self._coordinator.request(request, OffsetCommitResponse)).partitions:
            if result.error:
                raise broker_error(result.error, result.message, about=f"{result.topic}-{result.partition}")
        self._committed.update({(item.topic, item.partition): item.offset for item in part})

"""A share group (KIP-932) as a state machine without a clock, an event loop or a disk.

Members send heartbeats. Each of them may change the group: its subscription raises the group's epoch, a target
assignment is computed for that epoch, and the member moves to the target in one step. Partitions are assigned once the
share coordinator has a state for them: a heartbeat that finds some without it requests one, and a later heartbeat
raises the epoch again. The caller gets effects from `take_effects`, carries them out, and reports their outcome with
`stored`, `assigned` and `initialized`. It also calls `expire` no later than `wake_at_s`, which is never after the next
deadline and sometimes earlier.

Invariants:
1. Only initialized partitions are assigned.
2. What is stored changes only by `apply`: the state is the same after loading its records.
3. An answer is sent when all changes that it is based on are stored; what could not be stored is undone.
4. The epochs of the group and of its target only grow.

Source: Kafka's GroupMetadataManager (4.4: shareGroupHeartbeat, shareGroupLeave, shareGroupFenceMember).
"""

from collections import Counter
from collections.abc import Collection, Generator, Mapping

from warmlog.broker.groups.automaton import Answer, Client, Instant, Waiter
from warmlog.broker.groups.modern.assignment import Assignment, Topics
from warmlog.broker.groups.modern.refusals import LEAVE, RefusedError, unknown_member
from warmlog.broker.groups.share.describing import described
from warmlog.broker.groups.share.effects import Effect, Row
from warmlog.broker.groups.share.limits import ShareLimits
from warmlog.broker.groups.share.offsets import ShareOffsets
from warmlog.broker.groups.share.partition_states import Numbers, PartitionStates
from warmlog.broker.groups.share.progress import ShareProgress
from warmlog.broker.groups.share.requests import check_member, refusal, updated
from warmlog.broker.groups.share.stored import StoredShareGroup
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import GroupType, ShareGroupState
from warmlog.protocol.kafka.group_records import NO_TIME
from warmlog.protocol.kafka.messages.share.groups import (
    DescribedShareGroup,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from warmlog.protocol.kafka.share_group_records import (
    ShareGroupKey,
    ShareGroupValue,
    ShareMemberMetadata,
    encode_share_key,
)

PROTOCOL_TYPE = "share"
MAX_LOGGED = 200  # characters of a group's name


class ShareGroup:
    """One group. Not thread-safe: all calls come from the event loop."""

    def __init__(self, group_id: str, limits: ShareLimits, now: Instant) -> None:
        """Create a group without members."""
        self.group_id = group_id
        self.owner = ""  # the holder that its memory counts for (`Holdings`)
        self.counted: Mapping[str, int] = {}  # bytes counted by `Holdings`, by holder
        self.replaced: list[tuple[bytes, None]] = []  # tombstones of another kind of group: none, for this kind
        self._group = StoredShareGroup(group_id)
        self._progress = ShareProgress(self._group, limits, now)
        self._journal = self._progress.journal
        self.offsets = ShareOffsets(self._group, self._progress)

    def __str__(self) -> str:
        return f"group {self.group_id[:MAX_LOGGED]!r}"

    def take_effects(self) -> list[Effect]:
        """Return the effects since the last call, in the order in which to carry them out."""
        return self._journal.take()

    @property
    def limits(self) -> ShareLimits:
        """The settings of the group."""
        return self._progress.limits

    @limits.setter
    def limits(self, limits: ShareLimits) -> None:
        self._progress.limits = limits

    @property
    def state(self) -> ShareGroupState:
        """The state, as Kafka's tools report it."""
        return self._progress.state

    @property
    def state_since_ms(self) -> int:
        """When the state was entered, in ms since the epoch."""
        return self._progress.state_since_ms

    @property
    def epoch(self) -> int:
        """The group's epoch, which rises when subscriptions, topics or initialized partitions change."""
        return self._group.epoch.epoch

    @property
    def assignment_epoch(self) -> int:
        """The epoch for which the target assignment was computed."""
        return self._group.target_epoch.epoch

    @property
    def members(self) -> Mapping[str, ShareMemberMetadata]:
        """The members by id, in the order of joining."""
        return self._group.metadata

    @property
    def partition_states(self) -> PartitionStates:
        """The known share-partitions of the group."""
        return self._group.states

    @property
    def is_stored(self) -> bool:
        """Whether a record of the group is stored or being stored."""
        return self._group.is_stored

    @property
    def held(self) -> Counter[str]:
        """The bytes of members by holder; those of known partitions count for the owner."""
        held = Counter(self._group.memory.held)
        held[self.owner] += self._group.states_size
        return held

    @property
    def has_pending_members(self) -> bool:
        """Whether a member id was assigned and not used yet: never, as a heartbeat with an id joins immediately."""
        return False

    @property
    def wake_at_s(self) -> float:
        """The latest time to call `expire`, on the event loop's clock."""
        return self._progress.sessions.wake_at_s

    @property
    def type(self) -> GroupType:
        """The type of the group, as ListGroups reports it."""
        return GroupType.SHARE

    @property
    def protocol_type(self) -> str:
        """The type of its members' protocol."""
        return PROTOCOL_TYPE

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return self.state is ShareGroupState.EMPTY

    @property
    def is_dead(self) -> bool:
        """Whether the group is no longer served."""
        return self._progress.is_dead

    @property
    def may_lose_offsets(self) -> bool:
        """Whether committed offsets may be deleted: a share group has none."""
        return False

    @property
    def offsets_expire_since_ms(self) -> int:
        """The start of the offsets' retention: the time of each commit (NO_TIME)."""
        return NO_TIME

    def is_subscribed(self, topic: str) -> bool:
        """Return whether a member subscribes to a topic."""
        return topic in self._group.topics

    def rows(self) -> list[Row]:
        """Return the records that describe the group."""
        return list(self._group.rows())

    def tombstones(self) -> list[tuple[bytes, None]]:
        """Return the encoded records that delete the group."""
        return [(encode_share_key(key), None) for key in self._group.record_keys()]

    def described(self, topics: Topics) -> Generator[None, None, DescribedShareGroup]:
        """Describe the group and its members."""
        return described(self._group, self.state, topics)

    # -- heartbeats --

    def heartbeat(
        self,
        request: ShareGroupHeartbeatRequest,
        client: Client,
        waiter: Waiter,
        topics: Topics,
        now: Instant,
    ) -> None:
        """Handle a heartbeat that `check_request` has accepted. `waiter` is answered by an effect, now or later."""
        self._progress.topics = topics
        try:
            self._check_served()
            if request.member_epoch == LEAVE:
                self._leave(request, waiter, now)
                return
            check_member(self._group, request, self.limits.max_size)
        except RefusedError as refused:
            self._journal.emit(refusal(waiter, refused))
            return
        metadata = updated(self._group.metadata.get(request.member_id), request, client)
        self._progress.accept(request, metadata, waiter, client.holder, now)

    def _check_served(self) -> None:
        if self.is_dead:
            raise RefusedError(ErrorCode.NOT_COORDINATOR, "The group is not served here any more.")

    def _leave(self, request: ShareGroupHeartbeatRequest, waiter: Waiter, now: Instant) -> None:
        if request.member_id not in self._group.metadata:
            raise unknown_member(self.group_id, request.member_id)
        response = ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
        self._progress.remove([request.member_id], now, Answer(waiter, response))

    def expire(self, now: Instant) -> None:
        """Remove members whose session has ended."""
        self._progress.expire(now)

    # -- outcomes of effects --

    def apply(self, key: ShareGroupKey, value: ShareGroupValue | None) -> None:
        """Apply a loaded record. Raises TypeError if the value is not of the key's type."""
        self._group.apply(key, value)

    def loaded(self, topics: Topics, now: Instant) -> None:
        """Begin to serve a group whose records were applied: each member has a session timeout to send a heartbeat."""
        self._progress.loaded(topics, now)

    def stored(self, ticket: int, error: ErrorCode, now: Instant) -> None:
        """Handle the outcome of a `StoreRows`: answer waiting requests, or undo its changes and all later ones."""
        self._progress.stored(ticket, error, now)

    def assigned(
        self, epoch: int, assignments: Mapping[str, Assignment] | None, now: Instant
    ) -> Generator[None, None, None]:
        """Store the target assignment computed for an epoch; None if that failed.

        Yields between pieces of at most 100 records, so that effects are taken and other tasks run.
        """
        return self._progress.assigned(epoch, assignments, now)

    def initialized(self, done: Numbers, failed: Numbers, now: Instant) -> None:
        """Store which initializations have succeeded; the next heartbeat repeats the failed ones."""
        self._progress.initialized(done, failed, now)

    def topics_changed(self, names: Collection[str], topics: Topics) -> None:
        """Record that topics were created, changed or deleted, and drop the partitions of deleted ones."""
        self._progress.topics_changed(names, topics)

    # -- waiting clients --

    def forget_waiter(self, waiter: Waiter, now: Instant) -> None:  # noqa: ARG002
        """Drop the pending answer to a client that has disconnected. Its member stays."""
        self._progress.forget_waiter(waiter)

    def close(self, error: ErrorCode, now: Instant) -> None:
        """Stop: answer all waiting clients with an error."""
        self._progress.close(error, now)

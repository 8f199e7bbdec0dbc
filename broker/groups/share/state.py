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
from collections.abc import Collection, Generator

from warmlog.broker.groups.automaton import Answer, Client, Instant, Waiter
from warmlog.broker.groups.modern.assignment import Topics
from warmlog.broker.groups.modern.group import ModernGroup
from warmlog.broker.groups.modern.refusals import LEAVE, RefusedError, unknown_member
from warmlog.broker.groups.share.describing import described
from warmlog.broker.groups.share.effects import Effect
from warmlog.broker.groups.share.limits import ShareLimits
from warmlog.broker.groups.share.offsets import ShareOffsets
from warmlog.broker.groups.share.partition_states import Numbers, PartitionStates
from warmlog.broker.groups.share.progress import ShareProgress
from warmlog.broker.groups.share.requests import check_member, refusal, updated
from warmlog.broker.groups.share.stored import StoredShareGroup
from warmlog.protocol.groups import GroupType, ShareGroupState
from warmlog.protocol.kafka.messages.share.groups import (
    DescribedShareGroup,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from warmlog.protocol.kafka.share_group_records import ShareMemberMetadata, encode_share_key


class ShareGroup(ModernGroup[ShareLimits, ShareGroupState, ShareMemberMetadata, Effect]):
    """One group. Not thread-safe: all calls come from the event loop."""

    type = GroupType.SHARE
    protocol_type = "share"
    encode_key = staticmethod(encode_share_key)
    may_lose_offsets = False
    _group: StoredShareGroup
    _progress: ShareProgress

    def __init__(self, group_id: str, limits: ShareLimits, now: Instant) -> None:
        """Create a group without members."""
        group = StoredShareGroup(group_id)
        super().__init__(group, ShareProgress(group, limits, now))
        self.offsets = ShareOffsets(self._group, self._progress)

    @property
    def partition_states(self) -> PartitionStates:
        """The known share-partitions of the group."""
        return self._group.states

    @property
    def held(self) -> Counter[str]:
        """The bytes of members by holder; those of known partitions count for the owner."""
        held = Counter(self._group.memory.held)
        held[self.owner] += self._group.states_size
        return held

    def is_subscribed(self, topic: str) -> bool:
        """Return whether a member subscribes to a topic."""
        return topic in self._group.topics

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

    def _leave(self, request: ShareGroupHeartbeatRequest, waiter: Waiter, now: Instant) -> None:
        if request.member_id not in self._group.metadata:
            raise unknown_member(self.group_id, request.member_id)
        response = ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
        self._progress.remove([request.member_id], now, Answer(waiter, response))

    # -- outcomes of effects --

    def initialized(self, done: Numbers, failed: Numbers, now: Instant) -> None:
        """Store which initializations have succeeded; the next heartbeat repeats the failed ones."""
        self._progress.initialized(done, failed, now)

    def topics_changed(self, names: Collection[str], topics: Topics) -> None:
        """Record that topics were created, changed or deleted, and drop the partitions of deleted ones."""
        self._progress.topics_changed(names, topics)

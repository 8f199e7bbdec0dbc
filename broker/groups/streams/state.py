"""A streams group (KIP-1071) as a state machine without a clock, an event loop or a disk.

Members are threads of a Kafka Streams application. They send heartbeats; the first one has the topology, which
determines the tasks. A heartbeat may change the group in three steps: its declaration, or the topics of the topology,
raise the group's epoch, a target assignment of tasks is computed for that epoch, and the member itself moves towards
the target. The caller gets effects from `take_effects`, carries them out, and reports their outcome with `stored` and
`assigned`. It also calls `expire` no later than `wake_at_s`, which is never after the next deadline and sometimes
earlier.

The caller fits the topology to the existing topics (`topology/`) before it passes on a heartbeat: `topology_for`
returns that topology, and `configured` the last result if it is still valid.

Invariants:
1. An active task is assigned to a member only when no other member has it or still has to give it up.
2. What is stored changes only by `apply`: the state is the same after loading its records, except for `unstored.py`.
3. An answer is sent when all changes that it is based on are stored; what could not be stored is undone.
4. The epochs of the group and of its target only grow.

Source: Kafka's GroupMetadataManager (4.4: streamsGroupHeartbeat, streamsGroupLeave, streamsGroupFenceMember).
"""

from collections import Counter
from collections.abc import Generator, Iterable

from warmlog.broker.groups.automaton import Answer, Client, Instant, Waiter
from warmlog.broker.groups.modern.assignment import Topics
from warmlog.broker.groups.modern.group import ModernGroup
from warmlog.broker.groups.modern.member_memory import PARTITION_BYTES
from warmlog.broker.groups.modern.refusals import LEAVE, RefusedError, unknown_member
from warmlog.broker.groups.modern.static_members import LEAVE_FOR_RESTART, check_instance
from warmlog.broker.groups.streams import commits
from warmlog.broker.groups.streams.commits import StreamsCommitVerdict
from warmlog.broker.groups.streams.describing import described
from warmlog.broker.groups.streams.effects import Effect
from warmlog.broker.groups.streams.limits import StreamsLimits
from warmlog.broker.groups.streams.progress import StreamsProgress
from warmlog.broker.groups.streams.requests import (
    StreamsDeclaration,
    agreed_topology,
    check_member,
    check_size,
    checked,
    owned_tasks,
    refusal,
    updated,
)
from warmlog.broker.groups.streams.stored import StoredStreamsGroup
from warmlog.broker.groups.streams.topology.configured import ConfiguredTopology
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import GroupType, StreamsGroupState
from warmlog.protocol.kafka.messages.groups.streams import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Topology,
)
from warmlog.protocol.kafka.messages.groups.streams_descriptions import DescribedStreamsGroup
from warmlog.protocol.kafka.streams_group_records import StreamsMemberMetadata, encode_streams_key


class StreamsGroup(ModernGroup[StreamsLimits, StreamsGroupState, StreamsMemberMetadata, Effect]):
    """One group. Not thread-safe: all calls come from the event loop."""

    type = GroupType.STREAMS
    protocol_type = "streams"
    encode_key = staticmethod(encode_streams_key)
    _group: StoredStreamsGroup
    _progress: StreamsProgress

    def __init__(self, group_id: str, limits: StreamsLimits, now: Instant) -> None:
        """Create a group without members."""
        group = StoredStreamsGroup(group_id)
        super().__init__(group, StreamsProgress(group, limits, now))
        self._unstored = self._progress.unstored
        self._topics_changed = False  # whether topics may have changed since the topology was configured

    @property
    def held(self) -> Counter[str]:
        """The bytes of members by holder; those of the topology and of reported offsets count for the owner."""
        held = Counter(self._group.memory.held)
        held[self.owner] += PARTITION_BYTES * self._unstored.offset_count
        if self._group.topology is not None:
            held[self.owner] += self._group.topology.size
        return held

    def is_subscribed(self, topic: str) -> bool:
        """Return whether the tasks of a group with members read a topic."""
        topology = self._group.topology
        return topology is not None and not self.is_empty and topic in topology.readers

    def described(self) -> Generator[None, None, DescribedStreamsGroup]:
        """Describe the group and its members."""
        return described(self._group, self._unstored, self.state)

    # -- the topology --

    def topology_for(self, request: StreamsGroupHeartbeatRequest) -> Topology | None:
        """Return the group's topology, or the first member's; None if there is none."""
        return request.topology if self._group.topology is None else self._group.topology.value

    @property
    def configured(self) -> ConfiguredTopology | None:
        """The topology as fitted to the topics; None if topics have changed, so that it has to be fitted again."""
        return None if self._topics_changed or self._group.topology is None else self._unstored.configured

    @property
    def last_configured(self) -> ConfiguredTopology | None:
        """The topology as last fitted to the topics, which may have changed since."""
        return self._unstored.configured

    def topics_hash(self, topics: Topics) -> int:
        """Return the hash of the topics of the stored topology."""
        return self._group.topics.hash(topics)

    def topics_changed(self, names: Iterable[str]) -> None:
        """Record that topics were created, changed or deleted; the next heartbeat decides what follows."""
        self._topics_changed |= self._group.topics.forget(names)

    # -- heartbeats --

    def heartbeat(
        self,
        request: StreamsGroupHeartbeatRequest,
        client: Client,
        waiter: Waiter,
        topics: Topics,
        now: Instant,
        *,
        configured: ConfiguredTopology | None,
        version: int,
    ) -> None:
        """Handle a heartbeat that `check_request` has accepted. `waiter` is answered by an effect, now or later.

        `configured`: `topology_for(request)`, fitted to the topics; not needed for leaving. `version`: the request's
        version.
        """
        self._progress.topics = topics
        try:
            self._check_served()
            if request.member_epoch in {LEAVE, LEAVE_FOR_RESTART}:
                self._leave(request, waiter, now)
                return
            declared = self._declared(request, client, waiter, version=version)
            fitted = checked(configured, declared.owned)
        except RefusedError as refused:
            self._journal.emit(refusal(waiter, refused))
            return
        self._topics_changed = False
        self._progress.accept(declared, fitted, client.holder, now)

    def _declared(
        self, request: StreamsGroupHeartbeatRequest, client: Client, waiter: Waiter, *, version: int
    ) -> StreamsDeclaration:
        """Check a heartbeat of a member that joins or stays. Raises RefusedError."""
        group, owned = self._group, owned_tasks(request)
        check_size(group, request, self.limits.max_size)
        check_member(group, request, owned)
        topology = agreed_topology(group, request)
        owner = group.static.get(request.instance_id or "")
        replaced = owner if owner != request.member_id else None
        known = group.metadata.get(replaced or request.member_id)
        return StreamsDeclaration(waiter, request, version, replaced, updated(known, request, client), topology, owned)

    def _leave(self, request: StreamsGroupHeartbeatRequest, waiter: Waiter, now: Instant) -> None:
        """Remove a member, or keep the tasks of a static one for its restart, until its session ends."""
        member_id, epoch = request.member_id, request.member_epoch
        if request.shutdown_application:
            self._unstored.request_shutdown(member_id)
        if request.instance_id is not None:
            check_instance(self._group.static, request.instance_id, member_id)
        elif member_id not in self._group.metadata:
            raise unknown_member(self.group_id, member_id)
        answer = Answer(waiter, StreamsGroupHeartbeatResponse(member_id=member_id, member_epoch=epoch, status=()))
        if request.instance_id is not None and epoch == LEAVE_FOR_RESTART:
            self._progress.leave_for_restart(member_id, answer, now)
        else:
            self._progress.remove([member_id], now, answer)

    # -- offsets --

    def check_commit(
        self, member_id: str, instance_id: str | None, epoch: int, *, version: int | None
    ) -> StreamsCommitVerdict:
        """Check a commit of offsets. `version`: that of Kafka's OffsetCommit, None for the native protocol."""
        return commits.check_commit(self._group, member_id, instance_id, epoch, transactional=False, version=version)

    def check_transactional_commit(self, member_id: str, instance_id: str | None, epoch: int) -> StreamsCommitVerdict:
        """Check a commit of offsets within a transaction."""
        return commits.check_commit(self._group, member_id, instance_id, epoch, transactional=True, version=None)

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Check a fetch of committed offsets. None and -1: a client without membership."""
        return commits.check_fetch(self._group, member_id, epoch)

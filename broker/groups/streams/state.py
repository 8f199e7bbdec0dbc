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
from collections.abc import Generator, Iterable, Mapping

from warmlog.broker.groups.automaton import Answer, Client, Instant, Waiter
from warmlog.broker.groups.modern.assignment import Topics
from warmlog.broker.groups.modern.member_memory import PARTITION_BYTES
from warmlog.broker.groups.modern.refusals import LEAVE, RefusedError, unknown_member
from warmlog.broker.groups.modern.static_members import LEAVE_FOR_RESTART, check_instance
from warmlog.broker.groups.streams import commits
from warmlog.broker.groups.streams.commits import StreamsCommitVerdict
from warmlog.broker.groups.streams.describing import described
from warmlog.broker.groups.streams.effects import Effect, Row
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
from warmlog.broker.groups.streams.tasks import Tasks
from warmlog.broker.groups.streams.topology.configured import ConfiguredTopology
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import GroupType, StreamsGroupState
from warmlog.protocol.kafka.group_records import NO_TIME
from warmlog.protocol.kafka.messages.groups.streams import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Topology,
)
from warmlog.protocol.kafka.messages.groups.streams_descriptions import (
    DescribedStreamsGroup,
)
from warmlog.protocol.kafka.streams_group_records import (
    StreamsGroupKey,
    StreamsGroupValue,
    StreamsMemberMetadata,
    encode_streams_key,
)

PROTOCOL_TYPE = "streams"
MAX_LOGGED = 200  # characters of a group's name


class StreamsGroup:
    """One group. Not thread-safe: all calls come from the event loop."""

    def __init__(self, group_id: str, limits: StreamsLimits, now: Instant) -> None:
        """Create a group without members."""
        self.group_id = group_id
        self.owner = ""  # the holder that its memory counts for (`Holdings`)
        self.counted: Mapping[str, int] = {}  # bytes counted by `Holdings`, by holder
        self.replaced: list[tuple[bytes, None]] = []  # tombstones of another kind of group, for the next record
        self._group = StoredStreamsGroup(group_id)
        self._progress = StreamsProgress(self._group, limits, now)
        self._journal = self._progress.journal
        self._unstored = self._progress.unstored
        self._topics_changed = False  # whether topics may have changed since the topology was configured

    def __str__(self) -> str:
        return f"group {self.group_id[:MAX_LOGGED]!r}"

    def take_effects(self) -> list[Effect]:
        """Return the effects since the last call, in the order in which to carry them out."""
        return self._journal.take()

    @property
    def limits(self) -> StreamsLimits:
        """The settings of the group."""
        return self._progress.limits

    @limits.setter
    def limits(self, limits: StreamsLimits) -> None:
        self._progress.limits = limits

    @property
    def state(self) -> StreamsGroupState:
        """The state, as Kafka's tools report it."""
        return self._progress.state

    @property
    def state_since_ms(self) -> int:
        """When the state was entered, in ms since the epoch."""
        return self._progress.state_since_ms

    @property
    def epoch(self) -> int:
        """The group's epoch, which rises when members, their declarations, topics or settings change."""
        return self._group.epoch.epoch

    @property
    def assignment_epoch(self) -> int:
        """The epoch for which the target assignment was computed."""
        return self._group.target_epoch.epoch

    @property
    def members(self) -> Mapping[str, StreamsMemberMetadata]:
        """The members by id, in the order of joining."""
        return self._group.metadata

    @property
    def is_stored(self) -> bool:
        """Whether a record of the group is stored or being stored."""
        return self._group.is_stored

    @property
    def held(self) -> Counter[str]:
        """The bytes of members by holder; those of the topology and of reported offsets count for the owner."""
        held = Counter(self._group.memory.held)
        held[self.owner] += PARTITION_BYTES * self._unstored.offset_count
        if self._group.topology is not None:
            held[self.owner] += self._group.topology.size
        return held

    @property
    def has_pending_members(self) -> bool:
        """Whether a member id was assigned and not used yet: never, as a heartbeat with an id joins immediately."""
        return False

    @property
    def wake_at_s(self) -> float:
        """The latest time to call `expire`, on the event loop's clock."""
        return self._progress.wake_at_s

    @property
    def type(self) -> GroupType:
        """The type of the group, as ListGroups reports it."""
        return GroupType.STREAMS

    @property
    def protocol_type(self) -> str:
        """The type of its members' protocol."""
        return PROTOCOL_TYPE

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return self.state is StreamsGroupState.EMPTY

    @property
    def is_dead(self) -> bool:
        """Whether the group is no longer served."""
        return self._progress.is_dead

    @property
    def may_lose_offsets(self) -> bool:
        """Whether offsets of topics without a subscription may be deleted."""
        return True

    @property
    def offsets_expire_since_ms(self) -> int:
        """The start of the offsets' retention: the time of each commit (NO_TIME)."""
        return NO_TIME

    def is_subscribed(self, topic: str) -> bool:
        """Return whether the tasks of a group with members read a topic."""
        topology = self._group.topology
        return topology is not None and not self.is_empty and topic in topology.readers

    def rows(self) -> list[Row]:
        """Return the records that describe the group."""
        return list(self._group.rows())

    def tombstones(self) -> list[tuple[bytes, None]]:
        """Return the encoded records that delete the group."""
        return [(encode_streams_key(key), None) for key in self._group.record_keys()]

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

    def _check_served(self) -> None:
        if self.is_dead:
            raise RefusedError(ErrorCode.NOT_COORDINATOR, "The group is not served here any more.")

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

    def expire(self, now: Instant) -> None:
        """Remove members whose session has ended or that did not give up tasks in time; end a delay."""
        self._progress.expire(now)

    # -- outcomes of effects --

    def apply(self, key: StreamsGroupKey, value: StreamsGroupValue | None) -> None:
        """Apply a loaded record. Raises TypeError if the value is not of the key's type."""
        self._group.apply(key, value)

    def loaded(self, topics: Topics, now: Instant) -> None:
        """Begin to serve a group whose records were applied: each member has a session timeout to send a heartbeat."""
        self._progress.loaded(topics, now)

    def stored(self, ticket: int, error: ErrorCode, now: Instant) -> None:
        """Handle the outcome of a `StoreRows`: answer waiting requests, or undo its changes and all later ones."""
        self._progress.stored(ticket, error, now)

    def assigned(
        self, epoch: int, assignments: Mapping[str, Tasks] | None, now: Instant
    ) -> Generator[None, None, None]:
        """Store the target assignment computed for an epoch; None if that failed.

        Yields between pieces of at most 100 records, so that effects are taken and other tasks run.
        """
        return self._progress.assigned(epoch, assignments, now)

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

    # -- waiting clients --

    def forget_waiter(self, waiter: Waiter, now: Instant) -> None:  # noqa: ARG002
        """Drop the pending answer to a client that has disconnected. Its member stays."""
        self._progress.forget_waiter(waiter)

    def close(self, error: ErrorCode, now: Instant) -> None:
        """Stop: answer all waiting clients with an error."""
        self._progress.close(error, now)

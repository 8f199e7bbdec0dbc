"""Operations of generated sequences about a streams group, and the player that sends them.

After each operation the members send heartbeats until the group is stable; then their tasks, epochs and the description
are compared. The heartbeat that delivers a task is not compared, since Kafka assigns in another thread.
"""

from typing import Any

from hypothesis import strategies as st

from interop.compare.operations import Player
from interop.compare.scenarios.streams_groups import LEAVE, MEMBERS, PROCESSES, STATIC_LEAVE, StreamsMembers
from interop.compare.session import Session

_SOURCE, _PARTITIONS = "in", 3
_MEMBER = st.sampled_from(MEMBERS)
_PROCESS_OF = st.tuples(st.sampled_from((0, 1, 2)), st.booleans()).map(
    lambda drawn: (MEMBERS[drawn[0]], PROCESSES[drawn[0] if drawn[1] else 0])
)
_EPOCH = st.sampled_from((-1, 0, 0, 0, 1))  # relative to the member's epoch

STREAMS_MEMBERS = st.one_of(
    *[st.tuples(st.just("enter"), _PROCESS_OF, st.sampled_from((None, None, "one", "two")))] * 3,
    st.tuples(st.just("leave_streams"), _MEMBER, st.sampled_from((LEAVE, LEAVE, STATIC_LEAVE))),
    st.tuples(st.just("beat_streams"), _MEMBER, _EPOCH, st.booleans()),
    st.tuples(st.just("own"), _MEMBER, st.sampled_from(("0", "1", "2")), st.sampled_from((0, 2, 3))),
    st.tuples(st.just("offsets_of"), _MEMBER, st.sampled_from((0, 1, 2)), st.sampled_from((0, 5, 9))),
    st.tuples(st.just("replicas"), st.sampled_from(("0", "1", "2"))),
    st.tuples(st.just("commit_in"), _MEMBER, _EPOCH),
    st.tuples(st.just("shut_down"), _MEMBER),
)


class StreamsPlayer(Player):
    """Plays a sequence to one broker, as the members of one group."""

    def __init__(self, s: Session) -> None:
        super().__init__(s)
        self._group = StreamsMembers(s, "app", s.topic(_SOURCE, _PARTITIONS), _PARTITIONS)
        self._instances: dict[str, str | None] = {}

    def _compare(self, label: str) -> None:
        self._group.settle()
        self._group.compare(label)

    def _enter(self, label: str, place: tuple[str, str], instance: str | None) -> None:
        member, process = place
        fields = {} if instance is None else {"instance_id": instance}
        before = self._group.tasks.get(member), self._group.epochs.get(member)
        error = self._group.enter(member, process, **fields)
        self.s.note(f"{label}: error", error)
        if not error:
            self._instances[member] = instance
            for other in [each for each in self._instances if each != member]:
                if instance is not None and self._instances[other] == instance:
                    self._lost(other)
        elif before[0] is None or before[1] is None:
            self._lost(member)
        else:
            self._group.tasks[member], self._group.epochs[member] = before[0], before[1]
        self._compare(label)

    def _lost(self, member: str) -> None:
        for each in (self._group.tasks, self._group.epochs, self._instances):
            each.pop(member, None)

    def _leave_streams(self, label: str, member: str, epoch: int) -> None:
        instance = self._instances.get(member)
        fields = {} if instance is None else {"instance_id": instance}
        if not self._group.beat(f"{label}: leave", member, epoch, **fields)["error_code"]:
            self._lost(member)
        self._compare(label)

    def _beat_streams(self, label: str, member: str, offset: int, is_whole: bool) -> None:
        fields = self._group.tasks.get(member, {}) if is_whole else {}
        self._group.beat(f"{label}: beat", member, self._group.epochs.get(member, 0) + offset or 7, **fields)

    def _own(self, label: str, member: str, subtopology: str, partition: int) -> None:
        owned = {**self._group.tasks.get(member, {"standby_tasks": [], "warmup_tasks": []})}
        owned["active_tasks"] = [{"subtopology_id": subtopology, "partitions": [partition]}]
        error = self._error(self._group.fields(member, self._group.epochs.get(member, 7), **owned))
        self.s.note(f"{label}: error", error)
        self._compare(label)

    def _error(self, fields: dict[str, Any]) -> int:
        return int(self.s.quietly("StreamsGroupHeartbeat", **fields)["error_code"])

    def _offsets_of(self, label: str, member: str, partition: int, offset: int) -> None:
        offsets = [{"subtopology_id": "1", "partition": partition, "offset": offset}]
        fields = self._group.fields(member, self._group.epochs.get(member, 7), task_offsets=offsets)
        self.s.note(f"{label}: error", self._error(fields))
        self._compare(label)

    def _replicas(self, label: str, count: str) -> None:
        self._group.configure(num_standby_replicas=count)
        self._compare(label)

    def _commit_in(self, label: str, member: str, offset: int) -> None:
        partitions = [{"partition_index": 0, "committed_offset": 3, "committed_leader_epoch": -1}]
        self.s.ask(
            f"{label}: commit", "OffsetCommit", group_id=self._group.name, member_id=member,
            generation_id_or_member_epoch=self._group.epochs.get(member, 7) + offset,
            topics=[{**self.s.both(self._group.source), "partitions": partitions}],
        )  # fmt: skip

    def _shut_down(self, label: str, member: str) -> None:
        fields = self._group.fields(member, self._group.epochs.get(member, 7), shutdown_application=True)
        self.s.note(f"{label}: error", self._error(fields))
        self._compare(label)

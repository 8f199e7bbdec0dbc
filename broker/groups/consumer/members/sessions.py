"""Deadlines of a group's members, in seconds on the event loop's clock."""

from warmlog.broker.groups.automaton import NEVER, Instant
from warmlog.broker.groups.consumer.stored.group import StoredGroup
from warmlog.broker.groups.consumer.stored.holding import Current, MemberState


class Sessions:
    """The times to remove members: the end of their session, or of the time for giving up partitions.

    Members of the classic protocol have their rebalance timeout to join when requested, and to sync after joining.

    `wake_at_s` is a lower bound: extending a session does not change it, and `due` sets it exactly.
    """

    __slots__ = ("_ends", "_group", "_joins", "_revocations", "_syncs", "wake_at_s")

    def __init__(self, group: StoredGroup) -> None:
        self.wake_at_s = NEVER
        self._group = group
        self._ends: dict[str, float] = {}
        self._joins: dict[str, float] = {}
        self._syncs: dict[str, float] = {}
        self._revocations: dict[str, tuple[float, int]] = {}  # deadline and its epoch

    def extend(self, member_id: str, timeout_ms: int, now: Instant) -> None:
        """Restart a member's session. `timeout_ms`: for members of the consumer protocol."""
        classic = self._group.metadata[member_id].classic
        end_s = now.after_ms(timeout_ms if classic is None else classic.session_timeout_ms)
        self._ends[member_id] = end_s
        self.wake_at_s = min(self.wake_at_s, end_s)

    def accept(self, member_id: str, timeout_ms: int, now: Instant) -> None:
        """Restart the session of a member that has joined or sent a heartbeat; a classic one has to sync."""
        self.extend(member_id, timeout_ms, now)
        self._joins.pop(member_id, None)
        metadata = self._group.metadata[member_id]
        if metadata.classic is None:
            self._syncs.pop(member_id, None)
            return
        self._syncs[member_id] = now.after_ms(metadata.rebalance_timeout_ms)
        self.wake_at_s = min(self.wake_at_s, self._syncs[member_id])

    def limit_join(self, member_id: str, now: Instant) -> None:
        """Give a member its rebalance timeout to join, unless that has already begun."""
        end_s = now.after_ms(self._group.metadata[member_id].rebalance_timeout_ms)
        self.wake_at_s = min(self.wake_at_s, self._joins.setdefault(member_id, end_s))

    def synced(self, member_id: str, now: Instant) -> None:
        """Restart the session of a classic member that has synced."""
        self._syncs.pop(member_id, None)
        self.extend(member_id, 0, now)

    def limit_revocation(self, member_id: str, current: Current, now: Instant) -> None:
        """Give a member its rebalance timeout to give up partitions; end the limit if it has none to give up."""
        metadata = self._group.metadata[member_id]
        if current.value.state != MemberState.UNREVOKED_PARTITIONS or metadata.classic is not None:
            self._revocations.pop(member_id, None)
            return
        end_s = now.after_ms(metadata.rebalance_timeout_ms)
        self._revocations[member_id] = (end_s, current.epoch)
        self.wake_at_s = min(self.wake_at_s, end_s)

    def match(self, timeout_ms: int, now: Instant) -> None:
        """Set deadlines for members without one, and drop those of former members."""
        metadata = self._group.metadata
        for member_id in [*self._ends, *self._revocations, *self._joins, *self._syncs]:
            if member_id not in metadata:
                self.forget(member_id)
        for member_id in metadata:
            if member_id not in self._ends:
                self.extend(member_id, timeout_ms, now)
            current = self._group.current(member_id)
            unrevoked = current.value.state == MemberState.UNREVOKED_PARTITIONS
            if unrevoked != (member_id in self._revocations):
                self.limit_revocation(member_id, current, now)

    def forget(self, member_id: str) -> None:
        """Remove all deadlines of a member."""
        for deadlines in (self._ends, self._revocations, self._joins, self._syncs):
            deadlines.pop(member_id, None)

    def clear(self) -> None:
        """Remove all deadlines."""
        for deadlines in (self._ends, self._revocations, self._joins, self._syncs):
            deadlines.clear()
        self.wake_at_s = NEVER

    def due(self, now: Instant) -> list[str]:
        """Remove and return members whose session has ended, or that did not give up partitions in time."""
        simple = (self._ends, self._joins, self._syncs)
        due = dict.fromkeys([each for ends in simple for each, end_s in ends.items() if end_s <= now.loop_s])
        for member_id, (end_s, epoch) in self._revocations.items():
            if end_s <= now.loop_s and self._group.current(member_id).epoch == epoch:
                due[member_id] = None
        for member_id in due:
            self.forget(member_id)
        self._revocations = {each: limit for each, limit in self._revocations.items() if limit[0] > now.loop_s}
        revocation_s = min([end_s for end_s, _ in self._revocations.values()], default=NEVER)
        self.wake_at_s = min([revocation_s, *[min(ends.values(), default=NEVER) for ends in simple]])
        return [member_id for member_id in due if member_id in self._group.metadata]

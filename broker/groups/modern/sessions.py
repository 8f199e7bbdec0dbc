"""The times at which members of a group are removed, in seconds on the event loop's clock."""

from collections.abc import Iterable

from warmlog.broker.groups.automaton import NEVER, Instant


class MemberSessions:
    """Deadlines by member id: the ends of sessions, and of the times for giving up partitions or tasks.

    `wake_at_s` is a lower bound: extending a session does not change it, `due` sets it.
    """

    __slots__ = ("_ends", "_revocations", "wake_at_s")

    def __init__(self) -> None:
        self.wake_at_s = NEVER
        self._ends: dict[str, float] = {}
        self._revocations: dict[str, float] = {}

    def extend(self, member_id: str, timeout_ms: int, now: Instant) -> None:
        """Restart a member's session."""
        end_s = self._ends[member_id] = now.after_ms(timeout_ms)
        self.wake_at_s = min(self.wake_at_s, end_s)

    def limit_revocation(self, member_id: str, timeout_ms: int, now: Instant) -> None:
        """Limit the time, from now, in which a member has to give up partitions or tasks."""
        end_s = self._revocations[member_id] = now.after_ms(timeout_ms)
        self.wake_at_s = min(self.wake_at_s, end_s)

    def end_revocation(self, member_id: str) -> None:
        """End the limit: the member has nothing left to give up."""
        self._revocations.pop(member_id, None)

    def is_revoking(self, member_id: str) -> bool:
        """Return whether a member has a time limit for giving up partitions or tasks."""
        return member_id in self._revocations

    def match(self, member_ids: Iterable[str], timeout_ms: int, now: Instant) -> None:
        """Begin sessions of members that have none, and drop the deadlines of other members."""
        before, self._ends = self._ends, {}
        revocations, self._revocations = self._revocations, {}
        for member_id in member_ids:
            end_s = before.get(member_id)
            if end_s is None:
                self.extend(member_id, timeout_ms, now)
            else:
                self._ends[member_id] = end_s
            if member_id in revocations:
                self._revocations[member_id] = revocations[member_id]

    def forget(self, member_id: str) -> None:
        """Drop a member's deadlines."""
        self._ends.pop(member_id, None)
        self._revocations.pop(member_id, None)

    def clear(self) -> None:
        """Drop all deadlines."""
        self._ends.clear()
        self._revocations.clear()
        self.wake_at_s = NEVER

    def due(self, now: Instant) -> list[str]:
        """Remove and return members whose session has ended, or that did not give up partitions or tasks in time."""
        due = dict.fromkeys([each for ends in self._deadlines() for each, end_s in ends.items() if end_s <= now.loop_s])
        for member_id in due:
            self.forget(member_id)
        self.wake_at_s = min([min(ends.values(), default=NEVER) for ends in self._deadlines()])
        return list(due)

    def _deadlines(self) -> tuple[dict[str, float], dict[str, float]]:
        return self._ends, self._revocations

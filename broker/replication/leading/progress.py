"""The progress of a partition's followers, and what follows from it: the high watermark, and proposals of a new ISR.

Pure: times are arguments, by one monotonic clock. One object lasts for one leader epoch.

    high watermark    the smallest log end over the members of the ISR and of every proposed ISR
    leave the ISR     members that are no longer good, or last caught up more than `replica.lag.time.max.ms` ago
        join the ISR      followers that have reached the high watermark and the start of the leader's epoch

Invariants:
1. The high watermark never falls, and does not advance while the ISR is smaller than `min.insync.replicas`, so that
   the other eligible replicas (ELR) have all records below it (KIP-966).
2. A proposal counts until the partition's state moves to another revision. It is compared with the revision it was made
   from, so that of several proposals at most one is applied; a timeout alone proves nothing.
3. One proposal is in flight. If its outcome stays unknown, another one is made, even of the same ISR: the first to be
   applied changes the revision, which ends them all.
4. A replica about to join also holds back the high watermark: otherwise it would never reach it under load. A throttled
   replica does not: producers would wait for the replication rate.
5. A fetch counts with exactly the epoch of its broker's latest registration. No other epoch is kept.

Source: kafka.cluster.Partition (maybeIncrementLeaderHW, needsExpandIsr, getOutOfSyncReplicas), kafka.cluster.Replica,
KIP-903 for the broker epochs.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from warmlog.broker.cluster.values import NO_EPOCH, Member, PartitionState

UNKNOWN_OFFSET = -1


class Brokers(Protocol):
    """The cluster's knowledge of its brokers."""

    def is_good(self, member: Member) -> bool:
        """Return whether a broker's data still continues the history that it had at this epoch."""

    def may_join(self, member: Member) -> bool:
        """Return whether this is the current epoch of a broker that is not about to stop."""

    def is_latest(self, member: Member) -> bool:
        """Return whether this is the latest epoch of a broker, whether or not its registration has ended."""


class Proposal(NamedTuple):
    """A new ISR to replace the one of a revision of the partition's state; `added` are its new members."""

    revision: int
    isr: tuple[Member, ...]
    added: tuple[Member, ...]


class FollowerProgress:
    """The progress of one follower."""

    __slots__ = ("broker", "caught_up_at", "epoch", "fetched_at", "leader_end", "log_end", "log_start")

    def __init__(self, broker: int, caught_up_at: float) -> None:
        self.broker = broker
        self.epoch = NO_EPOCH  # the broker's, in its latest fetch
        self.log_end = self.log_start = UNKNOWN_OFFSET  # unknown until it fetches
        self.caught_up_at = caught_up_at  # the latest time at which it was known to have all records
        self.fetched_at = -math.inf
        self.leader_end = 0  # the leader's log end at that time

    @property
    def member(self) -> Member:
        """The entry of an ISR that this follower would join with."""
        return Member(self.broker, self.epoch)


class Progress:
    """The followers of a partition in one leader epoch."""

    def __init__(
        self,
        me: int,
        state: PartitionState,
        brokers: Brokers,
        *,
        log_end: int,
        high_watermark: int,
        min_isr: int,
        max_lag_s: float,
        retry_s: float,
        now: float,
    ) -> None:
        """Begin a leader epoch at the log end. Members of the ISR count as caught up until now.

        `min_isr`: `min.insync.replicas`, at most the number of replicas. `retry_s`: after this time without an outcome,
        another proposal may be made.
        """
        self.state = state
        self.min_isr = min_isr  # as of the same image as the state
        self.max_lag_s = max_lag_s
        self.epoch_start = self.log_end = log_end
        self.own_end = log_end  # the end of the leader's own records
        self.high_watermark = high_watermark
        self.followers: dict[int, FollowerProgress] = {}
        self._me = me
        self._brokers = brokers
        self._retry_s = retry_s
        self._proposed: list[Proposal] = []  # from this revision; the last one is in flight until `_retry_at`
        self._retry_at = -math.inf
        self._sent_again = False  # the latest proposal
        self.in_sync: frozenset[int] = frozenset()  # the brokers of the ISR
        self._awaited: frozenset[int] = frozenset()  # and of every proposed ISR
        self._follow(now)

    # -- events --

    def update(self, state: PartitionState, min_isr: int, now: float) -> None:
        """Adopt a new state of the partition in the same leader epoch. Another revision ends every proposal."""
        assert state.leader_epoch == self.state.leader_epoch, "one object lasts for one leader epoch"
        if state.revision != self.state.revision:
            self._proposed.clear()
            self._retry_at = -math.inf
        self.state, self.min_isr = state, min_isr
        self._follow(now)

    def appended(self, log_end: int, now: float) -> None:
        """Record that the leader's log has grown."""
        previous, self.log_end = self.log_end, log_end
        for follower in self.followers.values():
            if follower.log_end >= previous:
                follower.caught_up_at = now

    def fetched(self, broker: int, epoch: int, offset: int, log_start: int, now: float) -> bool:
        """Record a fetch: a follower has all records before `offset`. Return False if the fetch does not count.

        It counts if the broker has a replica and the epoch is that of its latest registration: before a restart the
        broker may have had more records, and a later epoch does not exist.
        """
        follower = self.followers.get(broker)
        if follower is None or not self._brokers.is_latest(Member(broker, epoch)):
            return False
        if offset >= self.log_end:
            follower.caught_up_at = now
        elif offset >= follower.leader_end:
            follower.caught_up_at = max(follower.caught_up_at, follower.fetched_at)
        follower.epoch = epoch
        follower.log_end = offset
        follower.log_start = log_start
        follower.fetched_at = now
        follower.leader_end = self.log_end
        return True

    # -- results --

    @property
    def is_under_min_isr(self) -> bool:
        """Whether the ISR is too small for acks=all, or replicas that left it then are still eligible."""
        return len(self.state.isr) < self.min_isr or len(self.state.elr) > 0

    @property
    def has_reached_epoch_start(self) -> bool:
        """Whether the high watermark covers all records of earlier epochs: before that it may be too low (KIP-207)."""
        return self.high_watermark >= self.epoch_start

    def advance(self, now: float, *, are_others_throttled: bool = False) -> bool:
        """Advance the high watermark as far as the followers allow; return whether it has moved.

        `are_others_throttled`: followers that are not in sync get no records now.
        """
        if self.is_under_min_isr:
            return False
        end = self.own_end
        for broker, follower in self.followers.items():
            if follower.log_end >= end:
                continue
            if broker in self._awaited or (not are_others_throttled and self._is_about_to_join(follower, now)):
                end = follower.log_end
        if end <= self.high_watermark:
            return False
        self.high_watermark = end
        return True

    def propose(self, now: float) -> Proposal | None:
        """Return a proposal to send, which counts from now on; None if none is needed, or a retry is not due yet."""
        if now < self._retry_at:
            return None
        proposal = self._wanted(now)
        if proposal is None:
            return None
        self._sent_again = proposal in self._proposed
        if not self._sent_again:
            self._proposed.append(proposal)
            self._await_members()
        self._retry_at = now + self._retry_s
        return proposal

    def withdraw(self, proposal: Proposal) -> None:
        """Drop the latest proposal, which was refused. Earlier ones still count: their outcome is unknown."""
        if self._proposed and self._proposed[-1] == proposal and not self._sent_again:
            self._proposed.pop()
            self._await_members()

    def _wanted(self, now: float) -> Proposal | None:
        state = self.state
        kept = tuple([member for member in state.isr if self._may_stay(member, now)])
        if len(kept) < len(state.isr):
            return Proposal(state.revision, kept, ())
        added = tuple([follower.member for follower in self.followers.values() if self._may_join(follower, now)])
        is_elr_left = len(state.elr) > 0 and len(state.isr) >= self.min_isr  # a change of the ISR empties it
        if added or self._proposed or is_elr_left:
            return Proposal(state.revision, state.isr + added, added)
        return None

    def _may_stay(self, member: Member, now: float) -> bool:
        if member.broker == self._me:
            return True
        follower = self.followers[member.broker]
        return self._brokers.is_good(member) and self._is_caught_up(follower, now)

    def _may_join(self, follower: FollowerProgress, now: float) -> bool:
        return (
            follower.log_end >= max(self.high_watermark, self.epoch_start)
            and self._is_caught_up(follower, now)  # otherwise it would have to leave immediately
            and self._is_candidate(follower)
            and self._brokers.may_join(follower.member)
        )

    def _is_about_to_join(self, follower: FollowerProgress, now: float) -> bool:
        return (
            self._is_recent(follower, now) and self._is_candidate(follower) and self._brokers.may_join(follower.member)
        )

    def _is_candidate(self, follower: FollowerProgress) -> bool:
        """Return whether a follower is an assigned replica outside of the ISR with a known epoch."""
        broker = follower.broker
        return follower.epoch != NO_EPOCH and broker in self.state.replicas and broker not in self.in_sync

    def _is_caught_up(self, follower: FollowerProgress, now: float) -> bool:
        return follower.log_end >= self.log_end or self._is_recent(follower, now)

    def _is_recent(self, follower: FollowerProgress, now: float) -> bool:
        return now - follower.caught_up_at <= self.max_lag_s

    def _follow(self, now: float) -> None:
        """Keep the progress of brokers that have a replica or are in the ISR.

        A broker that left the ISR has to catch up again before it joins: it may have left because it cannot append.
        """
        known, in_sync = self.followers, _brokers_of(self.state.isr)
        for broker in self.in_sync - in_sync:
            if broker in known:
                known[broker].caught_up_at = -math.inf
        self.in_sync = in_sync
        self.followers = {
            broker: known.get(broker) or FollowerProgress(broker, now if broker in in_sync else -math.inf)
            for broker in dict.fromkeys((*self.state.replicas, *in_sync))
            if broker != self._me
        }
        self._await_members()

    def _await_members(self) -> None:
        self._awaited = self.in_sync.union(*[_brokers_of(each.isr) for each in self._proposed])


def _brokers_of(members: Iterable[Member]) -> frozenset[int]:
    return frozenset([member.broker for member in members])

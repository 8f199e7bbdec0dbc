"""Rules of the cluster that can be removed one at a time, to see that the simulation notices.

python -m tests.cluster.simulation --without RULE
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import warmlog.broker.cluster.image
import warmlog.broker.cluster.rules.elections
import warmlog.broker.cluster.rules.in_sync
import warmlog.broker.clustered
from tests.broker.cluster.model.removals import by_the_first_directory
from tests.cluster.simulation.directed import (
    FETCH_LATE,
    IN_SYNC_ALONE,
    JOIN_BEHIND,
    JOIN_UNSEEN,
    LEAD_LATE,
    OLD_DIRECTORY,
    SHRINK_LATE,
)
from tests.cluster.simulation.groups.mutations import GROUP_RULES
from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.rules import LogEnd
from warmlog.broker.cluster.values import Member, PartitionState, Registration
from warmlog.broker.clustered import ClusterMember
from warmlog.broker.partitions.appends.replication import ReplicatedAppend
from warmlog.broker.replication.following import replica
from warmlog.broker.replication.following.truncation import Truncation
from warmlog.broker.replication.leading.leader import PartitionLeader
from warmlog.broker.replication.leading.progress import FollowerProgress, Progress, Proposal
from warmlog.broker.replication.local_replica import LocalReplica
from warmlog.broker.replication.log_ends import LogEnds
from warmlog.protocol.partitions import TopicIdPartition

Mutation = AbstractContextManager[object]


def _appends_wait_for_the_isr() -> Mutation:
    def settled(self: PartitionLeader, group: list[Any]) -> None:
        for append in group:
            append.replicated() if isinstance(append, ReplicatedAppend) else append.settle()

    return patch.object(PartitionLeader, "written", settled)


def _the_high_watermark_waits_for_proposed_isrs() -> Mutation:
    def awaited(self: Progress) -> None:
        self._awaited = self.in_sync

    return patch.object(Progress, "_await_members", awaited)


def _proposals_are_pending_until_the_key_moves() -> Mutation:
    propose = Progress.propose

    def forgetful(self: Progress, now: float) -> Proposal | None:
        if now >= self._retry_at:
            self._proposed.clear()
            self._await_members()
        return propose(self, now)

    return patch.object(Progress, "propose", forgetful)


def _the_high_watermark_stays_below_min_isr() -> Mutation:
    return patch.object(Progress, "is_under_min_isr", property(lambda self: len(self.state.isr) < self.min_isr - 1))


def _followers_join_at_the_epoch_start() -> Mutation:
    def joins(self: Progress, follower: FollowerProgress, now: float) -> bool:
        return self._is_candidate(follower) and self._brokers.may_join(follower.member)

    return patch.object(Progress, "_may_join", joins)


def _followers_truncate_by_epoch() -> Mutation:
    follow = LocalReplica._follow

    def truncating(self: LocalReplica) -> None:
        log = self.partition.log
        log.durability.lower_recovery_point(log.offsets.high_watermark)
        log.truncation.truncate_to(log.offsets.high_watermark)
        follow(self)

    return patch.object(LocalReplica, "_follow", truncating)


def _followers_truncate_at_all() -> Mutation:
    def stay(epochs: object, log_end: int, *_: object) -> Truncation:
        return Truncation(log_end, is_final=True)

    return patch.object(replica, "after_divergence", stay)


def _isr_entries_carry_the_epoch() -> Mutation:
    def alive(member: Member, registration: Registration | None) -> bool:
        return registration is not None

    return patch.object(warmlog.broker.cluster.image, "is_good", alive)


def _lost_data_begins_a_new_history() -> Mutation:
    return patch.object(ClusterMember, "_continued", lambda self: self._state.since)


def _eligible_replicas_are_kept() -> Mutation:
    states = warmlog.broker.cluster.rules.states
    settle = states.settled

    def settled(*arguments: Any) -> PartitionState:
        from msgspec.structs import replace

        return replace(settle(*arguments), elr=())

    return patch.object(states, "settled", settled)


@contextmanager
def _isr_changes_compare_every_member() -> Iterator[None]:
    """The replica that has left is not asked for its log either: it would lead, as it still has everything."""
    change_of = warmlog.broker.cluster.rules.in_sync.change_of

    def of_the_leader(image: ClusterImage, key: Any, state: PartitionState, members: Sequence[Member]) -> Any:
        return change_of(image, key, state, members[:1])

    ask = LogEnds.ask

    async def of_members(self: LogEnds, key: TopicIdPartition, asked: Sequence[Member]) -> Mapping[Member, LogEnd]:
        state = self._node.image.partitions[key]
        known = {member.broker for member in (*state.isr, *state.elr)}
        return await ask(self, key, [member for member in asked if member.broker in known])

    with (
        patch.object(warmlog.broker.cluster.rules.in_sync, "change_of", of_the_leader),
        patch.object(LogEnds, "ask", of_members),
    ):
        yield


def _the_longest_log_leads() -> Mutation:
    def shortest(image: ClusterImage, state: PartitionState, log_ends: Any) -> Any:
        turned = {member: end._replace(offset=-end.offset, epoch=-end.epoch) for member, end in log_ends.items()}
        return longest(image, state, turned)

    longest = warmlog.broker.cluster.rules.elections._longest
    return patch.object(warmlog.broker.cluster.rules.elections, "_longest", shortest)


@contextmanager
def _fetches_of_earlier_lives_are_ignored() -> Iterator[None]:
    fetched = PartitionLeader.fetched

    def of_the_present_life(self: PartitionLeader, broker: int, epoch: int, offset: int, log_start: int) -> None:
        current = self._brokers.current(broker)
        fetched(self, broker, epoch if current is None else current.epoch, offset, log_start)

    with (
        patch.object(PartitionLeader, "is_latest", lambda *_: True),
        patch.object(PartitionLeader, "fetched", of_the_present_life),
    ):
        yield


def _ends_of_logs_wait_for_the_epoch_start() -> Mutation:
    return patch.object(PartitionLeader, "shows_all_committed", new=True)


def _every_directory_is_the_newest() -> Mutation:
    return patch.object(warmlog.broker.clustered, "history_of", by_the_first_directory)


RULES: dict[str, Callable[[], Mutation]] = {
    mutation.__name__.strip("_").replace("_", "-"): mutation
    for mutation in (
        _appends_wait_for_the_isr,
        _the_high_watermark_waits_for_proposed_isrs,
        _proposals_are_pending_until_the_key_moves,
        _the_high_watermark_stays_below_min_isr,
        _followers_join_at_the_epoch_start,
        _followers_truncate_by_epoch,
        _followers_truncate_at_all,
        _isr_entries_carry_the_epoch,
        _lost_data_begins_a_new_history,
        _eligible_replicas_are_kept,
        _isr_changes_compare_every_member,
        _the_longest_log_leads,
        _fetches_of_earlier_lives_are_ignored,
        _ends_of_logs_wait_for_the_epoch_start,
        _every_directory_is_the_newest,
    )
} | GROUP_RULES


# The scripts of faults (`directed`) that lead to the situation that a rule is for. The others need none.
SCRIPT_OF = {
    "the-high-watermark-waits-for-proposed-isrs": JOIN_UNSEEN,
    "proposals-are-pending-until-the-key-moves": JOIN_UNSEEN,
    "isr-changes-compare-every-member": SHRINK_LATE,
    "fetches-of-earlier-lives-are-ignored": FETCH_LATE,
    "followers-join-at-the-epoch-start": JOIN_BEHIND,
    "eligible-replicas-are-kept": IN_SYNC_ALONE,
    "followers-truncate-at-all": LEAD_LATE,
    "every-directory-is-the-newest": OLD_DIRECTORY,
}


def without(rule: str | None) -> Mutation:
    """Remove a rule within a context, or none."""
    return nullcontext() if rule is None else RULES[rule]()

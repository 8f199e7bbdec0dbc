"""The rules of the cluster, each removed: what is patched, or which rule the brokers of a `World` do not keep."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch
from uuid import UUID

from msgspec.structs import replace

from warmlog.broker.cluster import history, image, rules
from warmlog.broker.cluster.history import ScannedDirectory
from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.keys import broker_key, partition_key
from warmlog.broker.cluster.rules import Change, elections, in_sync, reassignment, states
from warmlog.broker.cluster.rules.changes import change_of
from warmlog.broker.cluster.rules.elections import LogEnd
from warmlog.broker.cluster.values import Member, PartitionState, Registration
from warmlog.broker.replication.leading.progress import Progress, Proposal
from warmlog.protocol.partitions import TopicIdPartition

Removal = tuple[Any, str, Any] | str  # a patch, or a rule that the world does not keep


def by_the_first_directory(
    known: Registration | None, epoch: int, found: Sequence[ScannedDirectory], missing: Mapping[UUID, str]
) -> tuple[int, Sequence[str]]:
    """Compare the first directory only."""
    marked = [each if each.epoch is None else each._replace(epoch=found[0].epoch) for each in found]
    return _history_of(known, epoch, marked, missing)


def _unknown_continues(
    known: Registration | None, epoch: int, found: Sequence[ScannedDirectory], missing: Mapping[UUID, str]
) -> tuple[int, Sequence[str]]:
    if known is None and all(each.epoch is not None for each in found):
        return 0, ()
    return _history_of(known, epoch, found, missing)


_history_of = history.history_of


def _without_compares(
    module: Any, is_dropped: Callable[[ClusterImage, TopicIdPartition, str], bool]
) -> Sequence[Removal]:
    """Leave out comparisons of a module's changes."""

    def changed(known: ClusterImage, key: TopicIdPartition, state: PartitionState, members: Sequence[Member]) -> Change:
        made = change_of(known, key, state, members)
        return made._replace(compares=tuple([each for each in made.compares if not is_dropped(known, key, each.key)]))

    return [(module, "change_of", changed)]


def _is_leader(known: ClusterImage, key: TopicIdPartition, name: str) -> bool:
    return name == broker_key(known.partitions[key].leader_id)


def _is_member(known: ClusterImage, key: TopicIdPartition, name: str) -> bool:
    state = known.partitions[key]
    return name in {broker_key(member.broker) for member in state.isr if member != state.leader}


def _is_added(known: ClusterImage, key: TopicIdPartition, name: str) -> bool:
    known_brokers = {broker_key(member.broker) for member in known.partitions[key].isr}
    return name.startswith("brokers/") and name not in known_brokers


def _keeping_epoch(function: Callable[..., Any]) -> Callable[..., Any]:
    def kept(known: ClusterImage, key: TopicIdPartition, *arguments: Any, **options: Any) -> Any:
        epoch = known.partitions[key].leader_epoch
        made = function(known, key, *arguments, **options)
        if isinstance(made, Change):
            return made._replace(state=replace(made.state, leader_epoch=epoch))
        return replace(made, leader_epoch=epoch) if isinstance(made, PartitionState) else made

    return kept


def _forget_proposals(progress: Progress, now: float) -> Proposal | None:
    if now >= progress._retry_at and progress._proposed:
        progress._proposed.clear()
        progress._await_members()
    return _propose(progress, now)


_propose = Progress.propose
_fetched = Progress.fetched


def _may_join_early(progress: Progress, follower: Any, now: float) -> bool:
    return (
        follower.log_end >= progress.high_watermark
        and progress._is_caught_up(follower, now)
        and progress._is_candidate(follower)
        and progress._brokers.may_join(follower.member)
    )


def _mixed(progress: Progress, number: int, epoch: int, *arguments: Any) -> bool:
    follower = progress.followers.get(number)
    return _fetched(progress, number, epoch if follower is None else max(epoch, follower.epoch), *arguments)


def _first_of_all(known: ClusterImage, state: PartitionState, log_ends: Mapping[Member, LogEnd]) -> Any:
    holders = {member.broker: member for member in elections.log_end_holders(known, state)}
    asked = [broker for broker, member in holders.items() if member in log_ends]
    if not asked or not {member.broker for member in (*state.isr, *state.elr)} <= set(asked):
        return None
    first = states.in_order(state, asked)[0]
    return elections._Choice(first, {first}, tuple(holders.values()))


def _longest_alone(known: ClusterImage, state: PartitionState, log_ends: Mapping[Member, LogEnd]) -> Any:
    choice = _longest(known, state, log_ends)
    return None if choice is None else choice._replace(is_alone=True)


_longest = elections._longest


def _holders_so_far(known: ClusterImage, state: PartitionState) -> tuple[Member, ...]:
    members = (*state.isr, *state.elr)
    if any(known.is_good(member) for member in members):
        return ()
    return tuple([each for member in members if (each := known.current(member.broker)) is not None])


REMOVALS: Mapping[str, Sequence[Removal]] = {
    # 1: histories
    "entries name an epoch": [(image, "is_good", lambda _, registration: registration is not None)],
    "an unclean start begins a history": ["keeps since"],
    "a broker leads for its history only": ["leads in spite of a loss"],
    "a broker that lost records is not clean": ["clean in spite of a loss"],
    "every directory proves that it is the newest": [(history, "history_of", by_the_first_directory)],
    "a broker that the store does not know begins a history": [(history, "history_of", _unknown_continues)],
    # 2: good copies remain
    "the leader's own registration is compared": _without_compares(in_sync, _is_leader),
    "registrations of members are compared": _without_compares(in_sync, _is_member),
    "registrations of joining members are compared": _without_compares(in_sync, _is_added),
    "the old state is compared": _without_compares(elections, lambda _, key, name: name == partition_key(key)),
    "registrations are compared by elections": _without_compares(elections, lambda _, __, name: "brokers" in name),
    "who disowns leaves good copies": [(in_sync, "are_good", lambda _, members: bool(members))],
    "who is reassigned leaves good copies": [(reassignment, "are_good", lambda _, members: bool(members))],
    "an ELR is emptied for a good ISR": [(states, "are_good", lambda _, members: bool(members))],
    # 3: the ELR
    "who leaves a small ISR stays eligible": [(states, "settled", lambda _, __, state: replace(state, elr=()))],
    "a leader commits nothing while there is an ELR": [
        (Progress, "is_under_min_isr", property(lambda self: len(self.state.isr) < self.min_isr))
    ],
    "a leader commits nothing below the minimum": [(Progress, "is_under_min_isr", False)],
    # 4: the longest log
    "the longest log leads": [(elections, "_longest", _first_of_all)],
    "all are back before the longest log leads": [
        (elections, "log_end_holders", _holders_so_far),
        (rules, "log_end_holders", _holders_so_far),
    ],
    "others stay eligible when the longest log leads": [(elections, "_longest", _longest_alone)],
    "ends of logs count for one registration": ["old ends of logs"],
    "ends of logs count for one state of the partition": ["old answers"],
    # 5 and 6: leader epochs
    "an election begins an epoch": [(elections, "_elected", _keeping_epoch(elections._elected))],
    "brokers begin no epoch": ["begins epochs"],
    "a replica that lost its data begins an epoch": [
        (in_sync, "disown", _keeping_epoch(in_sync.disown)),
        "forgets a loss early",
    ],
    "a removed replica begins an epoch": [
        (states, "without", _keeping_epoch(states.without)),
        (reassignment, "without", _keeping_epoch(states.without)),
    ],
    # the leader
    "a proposed ISR is awaited": [(Progress, "_await_members", lambda self: setattr(self, "_awaited", self.in_sync))],
    "a proposal is pending until its key moves": [(Progress, "propose", _forget_proposals)],
    "a follower reaches the epoch's start before it joins": [(Progress, "_may_join", _may_join_early)],
    "fetches of an earlier registration do not count": [
        (Progress, "fetched", _mixed),
        (ClusterImage, "is_latest", lambda *_: True),
    ],
    "fetches name the epoch of the latest registration": [(ClusterImage, "is_latest", lambda *_: True)],
    "fetches name the leader epoch": ["fetches name no leader epoch"],
    # the follower
    "followers truncate by epoch": ["truncates to the high watermark"],
    "leaders answer with an epoch": ["leaders answer with an offset"],
}


@contextmanager
def removed(rule: str) -> Iterator[frozenset[str]]:
    """Remove a rule; yields the rules of brokers that a world must not keep."""
    with ExitStack() as stack:
        for removal in REMOVALS[rule]:
            if not isinstance(removal, str):
                stack.enter_context(patch.object(*removal))
        yield frozenset([removal for removal in REMOVALS[rule] if isinstance(removal, str)])

"""Rules of groups that can be removed one at a time, to see that the simulation notices.

python -m tests.cluster.simulation --without RULE
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from tests.cluster.simulation.groups.population import CONSUMER, SHARE
from tests.cluster.simulation.groups.share_model import LOCK_S
from warmlog.broker.groups.consumer import commits, progress
from warmlog.broker.groups.consumer.commits import CommitVerdict
from warmlog.broker.groups.consumer.members import reconciliation
from warmlog.broker.replication.self_fencing import SelfFencing
from warmlog.broker.share.dead_letters import DeadLetters
from warmlog.broker.share.partitions.delivery import Delivery
from warmlog.broker.share.partitions.spans import RecordState
from warmlog.broker.share.partitions.state import SharePartition
from warmlog.broker.share.partitions.transitions import Transition
from warmlog.broker.share.partitions.writes import Stored
from warmlog.broker.share.persister import Outcome
from warmlog.broker.share.state import rules
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.share.state import StateBatch

Mutation = AbstractContextManager[object]

# -- share groups --


def _acknowledgements_are_stored_before_answers() -> Mutation:
    async def at_once(self: Stored) -> Outcome:
        return self.outcome or Outcome()

    return patch.object(Stored, "wait", at_once)


@contextmanager
def _writes_of_earlier_leaders_are_fenced() -> Iterator[None]:
    """Leaders that cannot reach the store do not fence themselves either, so that there is time for writes."""
    written = rules.written

    def accepted(state: Any, request: Any, *arguments: Any) -> Any:
        from msgspec.structs import replace

        epoch = request.leader_epoch if state is None else max(request.leader_epoch, state.leader_epoch)
        return written(state, replace(request, leader_epoch=epoch), *arguments)

    with patch.object(rules, "written", accepted), patch.object(SelfFencing, "_is_cut_off", new=False):
        yield


def _records_are_locked_for_their_time() -> Mutation:
    expiring = SharePartition.expiring

    def early(self: SharePartition, now_s: float) -> Generator[None, None, Transition]:
        return expiring(self, now_s + LOCK_S / 2)

    return patch.object(SharePartition, "expiring", early)


def _deliveries_are_stored() -> Mutation:
    write = Delivery._write

    def uncounted(self: Delivery, changes: Sequence[StateBatch]) -> Any:
        return write(self, [change._replace(deliveries=1) for change in changes])

    return patch.object(Delivery, "_write", uncounted)


def _deliveries_are_limited() -> Mutation:
    return patch.object(SharePartition, "released", lambda *_: RecordState.AVAILABLE)


def _gaps_in_stored_state_are_delivered() -> Mutation:
    restore = SharePartition._restore

    def passed_over(self: SharePartition, batch: StateBatch) -> None:
        self.next_offset = max(self.next_offset, batch.first_offset)
        restore(self, batch)

    return patch.object(SharePartition, "_restore", passed_over)


def _records_are_archived_after_their_dead_letters() -> Mutation:
    async def forget(*_: object) -> None:
        """Write nothing."""

    return patch.object(DeadLetters, "_write_letter", forget)


# -- consumer groups --


def _partitions_are_given_when_nobody_has_them() -> Mutation:
    goal_of = reconciliation.goal_of

    def at_once(*arguments: Any) -> reconciliation.Goal:
        return goal_of(*arguments)._replace(is_free=lambda *_: True)

    return patch.object(progress, "goal_of", at_once)


def _members_give_up_partitions_before_others_get_them() -> Mutation:
    return patch.object(reconciliation, "owns_any", lambda *_: False)


def _commits_are_of_members() -> Mutation:
    return patch.object(commits, "check_commit", lambda *_, **__: CommitVerdict(ErrorCode.NONE))


_OF_SHARE_GROUPS = (
    _acknowledgements_are_stored_before_answers,
    _writes_of_earlier_leaders_are_fenced,
    _records_are_locked_for_their_time,
    _deliveries_are_stored,
    _deliveries_are_limited,
    _gaps_in_stored_state_are_delivered,
    _records_are_archived_after_their_dead_letters,
)
_OF_CONSUMER_GROUPS = (
    _partitions_are_given_when_nobody_has_them,
    _members_give_up_partitions_before_others_get_them,
    _commits_are_of_members,
)


def _name(mutation: Callable[[], Any]) -> str:
    return mutation.__name__.strip("_").replace("_", "-")


GROUP_RULES: dict[str, Callable[[], Any]] = {
    _name(mutation): mutation for mutation in (*_OF_SHARE_GROUPS, *_OF_CONSUMER_GROUPS)
}
#: The kind of group that a rule is for.
MEMBERS_OF = {
    **{_name(mutation): SHARE for mutation in _OF_SHARE_GROUPS},
    **{_name(mutation): CONSUMER for mutation in _OF_CONSUMER_GROUPS},
}

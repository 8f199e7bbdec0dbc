"""Reduce moves for the same balance: return partitions to their owners where possible.

Kafka's assignor has no such step. Neither function makes the numbers of partitions less even.
"""

from collections.abc import Generator

from warmlog.broker.groups.consumer.assignors.ledger import Ledger
from warmlog.broker.groups.modern.pace import Pace


def return_lost(ledger: Ledger, pace: Pace) -> Generator[None, None, bool]:
    """Return partitions to owners that have fewer partitions than the holder; return whether there were any.

    That changes the numbers of partitions, so topics may be out of balance again.
    """
    returned = False
    for (topic_id, partition), (owner, holder) in list(ledger.lost.items()):
        if ledger.loads[holder] > ledger.loads[owner]:
            ledger.move(topic_id, partition, holder, owner)
            returned = True
        if pace.due(2):
            yield
    return returned


def exchange_lost(ledger: Ledger, pace: Pace) -> Generator[None, None, None]:
    """Return partitions to owners in exchange for ones that these did not own and the holder may have."""
    topics = yield from _topics_of_new_partitions(ledger, pace)
    for topic_id, partition in list(ledger.lost):
        if pace.due(2):
            yield
        lost = ledger.lost.get((topic_id, partition))
        if lost is None or lost.owner not in topics:
            continue
        both = topics[lost.owner] & ledger.members[lost.holder].topics
        for other_id in sorted(both):
            other = ledger.new(other_id, lost.owner)
            if other is None:
                topics[lost.owner].discard(other_id)
                continue
            ledger.move(other_id, other, lost.owner, lost.holder)
            ledger.move(topic_id, partition, lost.holder, lost.owner)
            topics.setdefault(lost.holder, set()).add(other_id)
            break
        if pace.due(len(both)):
            yield


def _topics_of_new_partitions(ledger: Ledger, pace: Pace) -> Generator[None, None, dict[int, set[bytes]]]:
    """Return, by member, the topics of which it has partitions that it did not own before."""
    topics: dict[int, set[bytes]] = {}
    for topic_id, held in ledger.held.items():
        for number in held:
            if ledger.new(topic_id, number) is not None:
                topics.setdefault(number, set()).add(topic_id)
            if pace.due():
                yield
    return topics

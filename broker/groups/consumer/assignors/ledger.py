"""The partitions of each member, while members with different subscriptions are balanced.

Members are numbered in the order of their ids, so that results do not depend on the order of a dict.

1.  In a member's list of a topic's partitions, those that it owned before come first. Partitions are taken from the
    end, so that partitions that move anyway are taken before partitions that could have stayed.
2.  `lost` has the partitions that a member owned, may keep, and had to give, with their owner and their holder.
"""

from collections.abc import Mapping
from typing import NamedTuple

from warmlog.broker.groups.modern.assignment import Subscriber


class Lost(NamedTuple):
    """The numbers of a partition's former owner and of its current holder."""

    owner: int
    holder: int


class Ledger:
    """The partitions of each topic by member, and how many partitions each member has."""

    def __init__(self, members: Mapping[str, Subscriber]) -> None:
        self.ids = sorted(members)
        self.members = [members[member_id] for member_id in self.ids]
        self.loads = [0] * len(self.ids)
        self.held: dict[bytes, dict[int, list[int]]] = {}
        self.lost: dict[tuple[bytes, int], Lost] = {}  # by topic and partition

    def owned(self, number: int, topic_id: bytes, partition: int) -> bool:
        """Return whether a member owned a partition before."""
        return partition in self.members[number].owned.get(topic_id, ())

    def add(self, topic_id: bytes, number: int, partitions: list[int]) -> None:
        """Add partitions without a holder, with the partitions that the member owned first."""
        self.held[topic_id].setdefault(number, []).extend(partitions)
        self.loads[number] += len(partitions)

    def new(self, topic_id: bytes, number: int) -> int | None:
        """Return a partition of a topic that a member has and did not own before."""
        partitions = self.held[topic_id].get(number)
        return None if not partitions or self.owned(number, topic_id, partitions[-1]) else partitions[-1]

    def move(self, topic_id: bytes, partition: int, giver: int, taker: int) -> None:
        """Move a partition from one member to another."""
        held, key = self.held[topic_id], (topic_id, partition)
        given = held[giver]
        if given[-1] == partition:
            given.pop()
        else:
            given.remove(partition)
        if not given:
            del held[giver]
        if self.owned(taker, topic_id, partition):
            held.setdefault(taker, []).insert(0, partition)
            self.lost.pop(key, None)
        else:
            held.setdefault(taker, []).append(partition)
            if self.owned(giver, topic_id, partition):
                self.lost[key] = Lost(giver, taker)
            elif key in self.lost:
                self.lost[key] = Lost(self.lost[key].owner, taker)
        self.loads[giver] -= 1
        self.loads[taker] += 1

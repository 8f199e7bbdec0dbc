"""The memory that a group's members hold, by holder (`Holdings`)."""

from collections import Counter
from collections.abc import Iterable

from warmlog.protocol.kafka.consumer_group_records import HeldPartitions
from warmlog.protocol.kafka.messages.groups.consumer import NamedPartitions, TopicPartitions

MEMBER_BYTES = 1_500  # bytes of a member in memory, without its subscription and partitions
NAME_BYTES = 200  # bytes of a topic in a subscription, with the group's indexes of it
TOPIC_BYTES = 250  # bytes of a topic in an assignment, as a record and as a map
PARTITION_BYTES = 100


class MemberMemory:
    """Counts bytes of one group's members. A member without a known holder counts for its address."""

    __slots__ = ("_holders", "held")

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()
        self._holders: dict[str, str] = {}  # by member id

    def holder(self, member_id: str) -> str | None:
        """Return the holder of a member; None if it counts for its address."""
        return self._holders.get(member_id)

    def set_holder(self, member_id: str, holder: str) -> None:
        """Count further bytes of a member for this holder."""
        self._holders[member_id] = holder

    def forget_holder(self, member_id: str) -> None:
        """Count further bytes of a member for its address."""
        self._holders.pop(member_id, None)

    def add(self, member_id: str, client_host: str, growth: int) -> None:
        """Add (or subtract) bytes for the holder of a member."""
        if not growth:
            return
        holder = self._holders.get(member_id, client_host.removeprefix("/"))
        self.held[holder] += growth
        if not self.held[holder]:
            del self.held[holder]


def partitions_size(topics: Iterable[HeldPartitions | NamedPartitions | TopicPartitions]) -> int:
    """Estimate the bytes that an assignment holds."""
    return sum([TOPIC_BYTES + PARTITION_BYTES * len(each.partitions) for each in topics])

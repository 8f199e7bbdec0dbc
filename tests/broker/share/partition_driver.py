"""A share-partition for tests: a log as a list of batches, members that fetch and acknowledge, and state as text.

State is written as "0-4 acquired a 1 | 5-5 available 2": offsets, state, who holds them, deliveries.
"""

from collections.abc import Sequence

from warmlog.broker.share.partitions.acquiring import ReadBatch, Wanted, acquire, reach
from warmlog.broker.share.partitions.state import DeliveryRules, SharePartition
from warmlog.broker.share.partitions.transitions import Transition
from warmlog.protocol.kafka.messages.share.fetch import ACCEPT, GAP, REJECT, RELEASE, RENEW, AcknowledgedRange
from warmlog.protocol.kafka.messages.share.state import StateBatch

KINDS = {"gap": GAP, "accept": ACCEPT, "release": RELEASE, "reject": REJECT, "renew": RENEW}
MANY = 1_000_000


def ranges(text: str) -> list[AcknowledgedRange]:
    """Parse acknowledgements such as "0-4 accept, 5-6 release reject"."""
    found = []
    for part in text.split(", "):
        offsets, *kinds = part.split()
        first, _, last = offsets.partition("-")
        types = tuple([KINDS[kind] for kind in kinds])
        found.append(AcknowledgedRange(first_offset=int(first), last_offset=int(last or first), types=types))
    return found


def stored(batches: Sequence[StateBatch]) -> list[tuple[int, int, int, int]]:
    return [(batch.first_offset, batch.last_offset, int(batch.state), batch.deliveries) for batch in batches]


class Group:
    """A share group on one partition, at a time in seconds."""

    def __init__(self, *log: tuple[int, int], start: int = 0, state: Sequence[StateBatch] = (), **rules: float) -> None:
        """`log`: first and last offset of each batch."""
        self.log = [ReadBatch(first, last) for first, last in log]
        self.rules = DeliveryRules(**rules)  # type: ignore[arg-type]
        self.now = 0.0
        self.partition = SharePartition(lambda: self.rules, start)
        for _ in self.partition.restore(state):
            pass

    def fetch(
        self,
        member: str,
        most: int = MANY,
        *,
        batch_size: int = MANY,
        is_exact: bool = False,
        aborted: Sequence[int] = (),
    ) -> list[tuple[int, int, int]]:
        """Acquire; return (first offset, last offset, deliveries). `aborted`: first offsets of aborted batches."""
        if not self.partition.can_acquire():
            return []
        offset = self.partition.fetch_offset()
        end = reach(self.partition, most, offset)
        read = []
        for batch in self.log:
            if batch.last >= offset:
                read.append(batch._replace(is_aborted=batch.first in aborted))
                if batch.last >= end:
                    break
        wanted = Wanted(member, most, batch_size, is_exact)
        acquired = acquire(self.partition, wanted, offset, read, self.now)
        return [(each.first_offset, each.last_offset, each.deliveries) for each in acquired]

    def begin(self, member: str, text: str) -> Transition:
        """Begin to acknowledge."""
        transition = Transition()
        for _ in self.partition.acknowledge(member, ranges(text), self.now, transition):
            pass
        return transition

    def ack(self, member: str, text: str, *, is_stored: bool = True) -> list[tuple[int, int, int, int]]:
        """Acknowledge; return what is stored."""
        transition = self.begin(member, text)
        self.partition.complete(transition, self.now, is_stored=is_stored)
        return stored(transition.changes)

    def leave(self, member: str, *, is_stored: bool = True) -> list[tuple[int, int, int, int]]:
        """End a member's session; return what is stored."""
        transition = Transition()
        for _ in self.partition.release(member, transition):
            pass
        self.partition.complete(transition, self.now, is_stored=is_stored)
        return stored(transition.changes)

    def wait(self, seconds: float) -> list[tuple[int, int, int, int]]:
        """Let time pass; return what is stored."""
        self.now += seconds
        expired = self.partition.expire(self.now)
        self.partition.trim()
        return stored(expired.changes)

    def __str__(self) -> str:
        parts = []
        for span in self.partition.spans:
            member = f" {span.member}" if span.member else ""
            pending = " pending" if span.pending is not None else ""
            parts.append(f"{span.first}-{span.last} {span.state.name.lower()}{member}{pending} {span.deliveries}")
        return " | ".join(parts)

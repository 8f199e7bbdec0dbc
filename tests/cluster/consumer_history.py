"""What the members of a consumer group (KIP-848) saw, and whether that is what the group promises.

Invariants:
1. A record that was produced was consumed.
2. A member that is assigned a partition consumes nothing below an offset whose commit was answered before.
3. A partition has one member at a time: from when it is assigned until it is revoked or lost, or its process is killed.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

Record = tuple[int, int]
FOREVER = float("inf")


class Event(NamedTuple):
    """An event as `GroupMembers` prints it, in microseconds of the monotonic clock."""

    kind: str
    at_us: int
    member: str
    partition: int
    offset: int


class Tenure(NamedTuple):
    """The time in which a member has a partition, and what it consumed in that time."""

    member: str
    begin_us: float
    end_us: float
    consumed: Sequence[int]


def parse(line: str, process: str) -> Event | str | None:
    """Return the event of a line, the text of a failure, or None for a line that is cut off."""
    words = line.split(" ", 3)
    if words[0] == "failed":
        return words[-1].strip()
    words = line.split()
    if len(words) != 5 or not line.endswith("\n"):
        return None
    kind, at_us, member, partition, offset = words
    return Event(kind, int(at_us), f"{process}-{member}", int(partition), int(offset))


def anomalies(produced: Iterable[Record], events: Sequence[Event], killed_us: Mapping[str, int]) -> list[str]:
    """Return what contradicts the invariants, a line for each. `killed_us`: when processes were killed, by name."""
    consumed = {(event.partition, event.offset) for event in events if event.kind == "consumed"}
    wrong = [f"{record}: not consumed" for record in produced if record not in consumed]
    by_partition: Mapping[int, list[Event]] = defaultdict(list)
    for event in sorted(events, key=lambda event: event.at_us):
        by_partition[event.partition].append(event)
    for partition, of_partition in by_partition.items():
        tenures = sorted(_tenures(of_partition, killed_us), key=lambda tenure: tenure.begin_us)
        wrong += [f"{partition}: {text}" for text in (*_shared(tenures), *_repeated(tenures, of_partition))]
    return wrong


def _tenures(events: Iterable[Event], killed_us: Mapping[str, int]) -> Iterator[Tenure]:
    """Yield the tenures of one partition, given its events in order."""
    open_: dict[str, tuple[int, list[int]]] = {}
    for event in events:
        if event.kind == "assigned":
            open_[event.member] = (event.at_us, [])
        elif event.kind == "consumed" and event.member in open_:
            open_[event.member][1].append(event.offset)
        elif event.kind in {"revoked", "lost"} and event.member in open_:
            begin_us, consumed = open_.pop(event.member)
            yield Tenure(event.member, begin_us, event.at_us, consumed)
    for member, (begin_us, consumed) in open_.items():
        yield Tenure(member, begin_us, killed_us.get(member.split("-")[0], FOREVER), consumed)


def _shared(tenures: Sequence[Tenure]) -> Iterator[str]:
    """Yield the tenures that begin before an earlier one has ended."""
    latest: Tenure | None = None
    for tenure in tenures:
        if latest is not None and tenure.begin_us < latest.end_us:
            since = f"{latest.member} had it from {latest.begin_us}"
            yield f"assigned to {tenure.member} at {tenure.begin_us} while {since}"
        if latest is None or tenure.end_us > latest.end_us:
            latest = tenure


def _repeated(tenures: Sequence[Tenure], events: Sequence[Event]) -> Iterator[str]:
    """Yield what was consumed although a commit behind it had been answered before the partition was assigned."""
    commits = [event for event in events if event.kind == "committed"]
    for tenure in tenures:
        committed = max([event.offset for event in commits if event.at_us < tenure.begin_us], default=0)
        again = [offset for offset in tenure.consumed if offset < committed]
        if again:
            yield f"{tenure.member} consumed {again[0]} to {again[-1]} again, committed before up to {committed}"

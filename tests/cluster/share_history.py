"""What the members of a share group saw, and whether that is what a share group promises.

Invariants:
1. A record that was produced was delivered, and an acknowledgement of it was sent.
2. A record whose acknowledgement was answered without an error is not acknowledged by another member, and not delivered
   to one that started later.
3. A record that was released is delivered with a higher count to a member that started later; no count is above the
   limit.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

Record = tuple[int, int]


class Event(NamedTuple):
    """An event as `ShareMembers` prints it; of one process, which was started at `process_ms`."""

    kind: str
    at_ms: int
    process_ms: int
    member: str
    record: Record
    deliveries: int


def parse(line: str, process: str, process_ms: int) -> Event | str | None:
    """Return the event of a line, the text of a failure, or None for a line that is cut off."""
    words = line.split(" ", 3)
    if words[0] == "failed":
        return words[-1].strip()
    words = line.split()
    if len(words) != 6 or not line.endswith("\n"):
        return None
    kind, at_ms, member, partition, offset, deliveries = words
    record = int(partition), int(offset)
    return Event(kind, int(at_ms), process_ms, f"{process}-{member}", record, int(deliveries))


def anomalies(produced: Iterable[Record], events: Sequence[Event], limit: int) -> list[str]:
    """Return what contradicts the invariants, a line for each. `limit`: the largest delivery count."""
    by_record: Mapping[Record, list[Event]] = defaultdict(list)
    for event in sorted(events, key=lambda event: event.at_ms):
        by_record[event.record].append(event)
    wrong = [
        f"{record}: not acknowledged, deliveries {[e.deliveries for e in by_record[record] if e.kind == 'delivered']}"
        for record in produced
        if not any(event.kind == "accepting" for event in by_record[record])
    ]
    for record, of_record in by_record.items():
        wrong += [f"{record}: {text}" for text in _of_record(of_record, limit)]
    return wrong


def _of_record(events: Sequence[Event], limit: int) -> Iterable[str]:
    accepted = [event for event in events if event.kind == "accepted"]
    if len(accepted) > 1:
        yield f"acknowledged twice: {accepted}"
    released = [event for event in events if event.kind == "released"]
    for event in events:
        if event.kind != "delivered":
            continue
        if not 1 <= event.deliveries <= limit:
            yield f"delivery count {event.deliveries} by {event.member}"
        if any(event.process_ms > ended.at_ms for ended in accepted):
            yield f"delivered after it was acknowledged: {event}, {accepted}"
        if any(event.process_ms > ended.at_ms and event.deliveries <= ended.deliveries for ended in released):
            yield f"delivery count has not grown: {event}, {released}"


def stale(events: Sequence[Event]) -> int:
    """Return the number of deliveries after an acknowledgement to members that ran by then.

    They may have fetched the record before, and lost it.
    """
    accepted = {event.record: event.at_ms for event in events if event.kind == "accepted"}
    return sum(event.kind == "delivered" and event.at_ms > accepted.get(event.record, event.at_ms) for event in events)

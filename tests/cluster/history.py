"""Judge what clients of a cluster saw: the anomalies that Jepsen's Kafka workload looks for.

A history has, per partition, what producers sent and were told, what each consumer got from each poll, and the log as
it was read whole at the end. Values are unique. What is wrong with it is a list of `Anomaly`:

    lost             an acknowledged value that the final log does not have, or not at the acknowledged offset
    forked           two values were seen at one offset
    duplicated       a value that is at two offsets of the final log (for idempotent producers)
    never sent       a value in the log or in a poll that nobody sent
    aborted read     a value that its producer was told was not, and never will be, written
    backward         a poll that begins at or below what the same consumer got before, without a seek in between
    skipped          a poll that leaves out values that the final log has between the offsets it got
    reordered        values of one producer in another order than sent (with idempotence or one request in flight)
    fallen           a high watermark below one that the same consumer saw before
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class Outcome(Enum):
    """What a producer knows of a value that it sent."""

    STORED = "stored"
    REFUSED = "refused"  # it is not in the log, and never will be
    UNKNOWN = "unknown"


class Sent(NamedTuple):
    """A value that was sent to a partition; `number` counts the values of its producer there, in order."""

    producer: str
    number: int
    value: bytes
    outcome: Outcome = Outcome.UNKNOWN
    offset: int | None = None  # as acknowledged


class Read(NamedTuple):
    """A record in a poll."""

    offset: int
    value: bytes


class Poll(NamedTuple):
    """What a consumer got at once. `is_new`: it has seeked, was assigned the partition anew, or has just begun."""

    consumer: str
    records: tuple[Read, ...]
    high_watermark: int | None = None
    is_new: bool = False


class Anomaly(NamedTuple):
    """What is wrong, and the evidence."""

    kind: str
    detail: str


@dataclass
class PartitionHistory:
    """The history of one partition: `sent` in any order, `polls` in real time, `log` as read at the end.

    What is below the log start offset was deleted.
    """

    sent: list[Sent] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    log: list[Read] = field(default_factory=list)
    log_start: int = 0
    is_idempotent: bool = True

    def anomalies(self) -> list[Anomaly]:
        """Return everything that is wrong, with at most a few examples of each kind."""
        found = [
            *_lost(self.sent, self.log, self.log_start),
            *_forked(self.sent, self.polls, self.log),
            *_unsent(self.sent, self.polls, self.log),
            *_polls_out_of_order(self.polls, self.log),
            *_fallen(self.polls),
        ]
        if self.is_idempotent:
            found += [*_duplicated(self.log), *_reordered(self.sent, self.log)]
        return _few_of_each(found)


EXAMPLES = 5


def _few_of_each(found: Iterable[Anomaly]) -> list[Anomaly]:
    kept: dict[str, list[Anomaly]] = defaultdict(list)
    total: dict[str, int] = defaultdict(int)
    for anomaly in found:
        total[anomaly.kind] += 1
        if len(kept[anomaly.kind]) < EXAMPLES:
            kept[anomaly.kind].append(anomaly)
    for kind, count in total.items():
        if count > EXAMPLES:
            kept[kind].append(Anomaly(kind, f"{count} in all"))
    return [anomaly for group in kept.values() for anomaly in group]


def _lost(sent: Iterable[Sent], log: Sequence[Read], log_start: int) -> Iterable[Anomaly]:
    offsets: dict[bytes, list[int]] = defaultdict(list)
    for read in log:
        offsets[read.value].append(read.offset)
    for one in sent:
        if one.outcome is not Outcome.STORED or (one.offset is not None and one.offset < log_start):
            continue
        if one.value not in offsets:
            yield Anomaly("lost", f"{one} is not in the log, which ends at {log[-1].offset if log else 'nothing'}")
        elif one.offset is not None and one.offset not in offsets[one.value]:
            yield Anomaly("lost", f"{one} is at {offsets[one.value]}")


def _forked(sent: Iterable[Sent], polls: Iterable[Poll], log: Iterable[Read]) -> Iterable[Anomaly]:
    seen: dict[int, bytes] = {}
    acknowledged = [Read(one.offset, one.value) for one in sent if one.offset is not None]
    for read in (*log, *acknowledged, *(read for poll in polls for read in poll.records)):
        if seen.setdefault(read.offset, read.value) != read.value:
            yield Anomaly("forked", f"offset {read.offset} has {seen[read.offset]!r} and {read.value!r}")


def _unsent(sent: Iterable[Sent], polls: Iterable[Poll], log: Iterable[Read]) -> Iterable[Anomaly]:
    outcomes = {one.value: one.outcome for one in sent}
    for read in (*log, *(read for poll in polls for read in poll.records)):
        if read.value not in outcomes:
            yield Anomaly("never sent", f"{read}")
        elif outcomes[read.value] is Outcome.REFUSED:
            yield Anomaly("aborted read", f"{read} was refused")


def _duplicated(log: Iterable[Read]) -> Iterable[Anomaly]:
    first: dict[bytes, int] = {}
    for read in log:
        if first.setdefault(read.value, read.offset) != read.offset:
            yield Anomaly("duplicated", f"{read.value!r} is at {first[read.value]} and {read.offset}")


def _reordered(sent: Iterable[Sent], log: Iterable[Read]) -> Iterable[Anomaly]:
    numbers = {one.value: (one.producer, one.number) for one in sent}
    latest: dict[str, int] = {}
    for read in log:
        if read.value not in numbers:
            continue
        producer, number = numbers[read.value]
        if number < latest.get(producer, -1):
            yield Anomaly("reordered", f"{read} is number {number} of {producer}, after number {latest[producer]}")
        latest[producer] = max(number, latest.get(producer, -1))


def _polls_out_of_order(polls: Iterable[Poll], log: Sequence[Read]) -> Iterable[Anomaly]:
    there_are = [read.offset for read in log]
    number_of = {offset: number for number, offset in enumerate(there_are)}
    latest: dict[str, int] = {}
    for poll in polls:
        if poll.is_new:
            latest.pop(poll.consumer, None)
        for read in poll.records:
            before = latest.get(poll.consumer)
            if before is not None and read.offset <= before:
                yield Anomaly("backward", f"{poll.consumer} got {read} after offset {before}")
            elif before is not None and before in number_of and read.offset in number_of:
                skipped = number_of[read.offset] - number_of[before] - 1
                if skipped:
                    yield Anomaly("skipped", f"{poll.consumer} got {read} after offset {before}: {skipped} skipped")
            latest[poll.consumer] = read.offset


def _fallen(polls: Iterable[Poll]) -> Iterable[Anomaly]:
    highest: dict[str, int] = {}
    for poll in polls:
        if poll.high_watermark is None:
            continue
        if poll.high_watermark < highest.get(poll.consumer, -1):
            yield Anomaly("fallen", f"{poll.consumer} saw {poll.high_watermark} after {highest[poll.consumer]}")
        highest[poll.consumer] = max(poll.high_watermark, highest.get(poll.consumer, -1))

"""What `RESTORE` took back from a Delta table.

A restore is a commit on top of the others: it removes the files that came after the restored version, and adds those
that went. Application transactions stay as they are, and with them the positions of partitions.

    version     0   1   2   3   4   5   6
    commit      +a  +b  +c  +d  R1  +e  R5       R1: RESTORE to version 1, -c -d; R5: to version 5, no change
    counts for
    version 6   +a  +b          R1  +e  R5

1. Commits between a restore and the restored version do not count. If a restore names a time instead of a version, or a
   version after which the files did not change, its own files say which commits do: going back from the restore, the
   first version with the same files.
2. The rows of a partition end where the newest receipt that counts says. If its position is elsewhere, rows are
   missing, or would be copied twice, unless other programs changed that: then the rows decide (`present`). Positions
   are equal after restores to versions with the same rows, or back and forth; if none of the commits in between has
   rows of the partition, a difference does not matter.
3. A topic is settled by the newest commit that has a receipt of it and counts: each commit of a job goes on top of a
   version that was checked. So a restore that was accepted, or after which the topic was continued, is no news.
4. Commits with a ledger settle all topics: maintenance refuses a table of which rows were taken back.
5. If the log lacks commits that were taken back, rows are still all there if each partition has the row before its
   position.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.delta.log import DeltaLog, LogEntry
from warmlog.pipeline.lakehouse.reading import DataFile, Selection, TableReader
from warmlog.pipeline.lakehouse.receipts import Receipt
from warmlog.pipeline.lakehouse.taken_back import TakenBack, end_of, is_ahead, is_other
from warmlog.pipeline.lakehouse.writing import FileStore
from warmlog.pipeline.source.offsets import Position
from warmlog.protocol.partitions import TopicPartition

Stored: TypeAlias = Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, Position]]


class CutLogError(PipelineError):
    """The log lacks commits that a restore took back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """A commit that restored an earlier version. `taken`: the commits that it took back, newest first.

    `is_cut`: whether the log no longer has all of these.
    """

    version: int
    taken: tuple[LogEntry, ...]
    is_cut: bool


class Lineage:
    """The commits that count for a version, newest first. `restores`: those met so far."""

    def __init__(self, log: DeltaLog) -> None:
        self._log = log
        self.restores: list[Restore] = []

    def __iter__(self) -> Iterator[LogEntry]:
        """Yield the commits, as far as the log still has them. Raises PipelineError."""
        for entry in self._log.entries():
            if entry.is_restore:
                yield from self._from_restore(entry.version)
                return
            yield entry

    def _from_restore(self, version: int) -> Iterator[LogEntry]:
        """Yield the newest restore that is not above this version, and the commits that count before it."""
        at = version
        entry = self._log.read(at)
        while entry is not None and not entry.is_restore:  # versions without a description were not counted
            at -= 1
            entry = self._log.read(at)
        while entry is not None:
            yield entry
            at = self._before(entry) if entry.is_restore else at - 1
            entry = self._log.read(at) if at >= 0 else None

    def _before(self, restore: LogEntry) -> int:
        """Return the newest version with the files of a restore, or -1 if it is unknown."""
        lacking, extra = restore.added or frozenset(), restore.removed or frozenset()
        taken: list[LogEntry] = []
        at = restore.version - 1
        while (lacking or extra) and at != restore.restored_version:
            entry = self._log.read(at) if at >= 0 else None
            if entry is None:
                self.restores.append(Restore(version=restore.version, taken=tuple(taken), is_cut=True))
                return -1
            taken.append(entry)
            added, removed = entry.added or frozenset(), entry.removed or frozenset()
            lacking, extra = (lacking - removed) | (added - extra), (extra - added) | (removed - lacking)
            at -= 1
        self.restores.append(Restore(version=restore.version, taken=tuple(taken), is_cut=False))
        return at


def taken_back(log: DeltaLog, stored: Stored, topics: Collection[str] | None = None) -> TakenBack | None:
    """Return what was taken back from these topics, or from all, and was not copied again.

    `stored`: returns positions. Raises PipelineError, CutLogError.
    """
    search = _Search(log, topics)
    for entry in search.lineage:
        search.note_restores()
        if search.is_done:
            break
        search.note(entry)
        if entry.has_ledger:  # it has the receipts of all older commits
            break
    search.note_restores()
    return search.result(stored)


def has_last_rows(files: Sequence[DataFile], store: FileStore, positions: Mapping[TopicPartition, Position]) -> bool:
    """Return whether files have the row before each position. Raises PipelineError."""
    reader = TableReader(store)
    for key, position in positions.items():
        last = Selection(key=key, first=position.offset - 1, end=position.offset, columns=())
        listed = (file for file in files if file.may_hold(last))
        if position.offset and not any(batch.num_rows for file in listed for batch in reader.rows(file, last)):
            return False
    return True


def partitions_of(files: Iterable[DataFile]) -> set[TopicPartition]:
    """Return the partitions of which files may have rows; none if that is unknown."""
    keys: set[TopicPartition] = set()
    for file in files:
        topics, partitions = file.bounds.get("topic"), file.bounds.get("partition")
        if topics is None or partitions is None or topics[0] != topics[1]:
            return set()
        keys |= {(topics[0], partition) for partition in range(partitions[0], partitions[1] + 1)}
    return keys


class _Search:
    """Collects what was taken back, from the newest commit to the oldest."""

    def __init__(self, log: DeltaLog, topics: Collection[str] | None) -> None:
        self.lineage = Lineage(log)
        self._table = log.table
        self._topics = topics
        self._settled: set[str] = set()
        self._taken: dict[TopicPartition, list[Receipt]] = {}  # newest first
        self._remaining: dict[TopicPartition, Receipt] = {}  # the newest of each partition
        self._noted = 0
        self._version = 0  # of the newest restore

    @property
    def is_done(self) -> bool:
        """Whether older commits say nothing more."""
        settled = self._topics is not None and self._settled.issuperset(self._topics)
        return settled and self._remaining.keys() >= self._taken.keys()

    def note_restores(self) -> None:
        """Take in the restores that were met since the last call. Raises CutLogError."""
        for restore in self.lineage.restores[self._noted :]:
            self._noted += 1
            receipts = [receipt for entry in restore.taken if (receipt := entry.receipt()) is not None]
            for receipt in receipts:
                for key in receipt.spans:
                    if key[0] not in self._settled and (self._topics is None or key[0] in self._topics):
                        self._taken.setdefault(key, []).append(receipt)
                        self._version = self._version or restore.version
            if restore.is_cut and self._is_open(receipts):
                raise CutLogError(
                    f"{self._table} was restored to an earlier version (version {restore.version}), and its log no"
                    " longer has the commits that were taken back: copy the topic to a new table"
                )

    def _is_open(self, receipts: Collection[Receipt]) -> bool:
        """Return whether topics may have lost rows to a restore of which these receipts remain."""
        if self._topics is not None:
            return not self._settled.issuperset(self._topics)
        topics = {topic for receipt in receipts for topic, _ in receipt.spans}
        return bool(topics - self._settled) or not self._settled

    def note(self, entry: LogEntry) -> None:
        """Take in the receipts of a commit that counts. Raises PipelineError."""
        receipt, ledger = entry.receipt(), entry.ledger()
        for remaining in (*filter(None, [receipt]), *reversed(() if ledger is None else ledger[0])):
            for key in remaining.spans:
                self._remaining.setdefault(key, remaining)
                self._settled.add(key[0])

    def result(self, stored: Stored) -> TakenBack | None:
        """Return what was taken back, or None."""
        before = stored(self._taken)
        positions = {key: self._end(key, before[key]) for key in before if self._differs(key, before[key])}
        if not positions:
            return None
        newest = [self._remaining[key] for key in positions if key in self._remaining]
        newest += [self._taken[key][0] for key in positions]
        return TakenBack(
            how="restored to an earlier version",
            where=f"version {self._version}",
            before={key: before[key] for key in positions},
            positions=positions,
            newest=newest[0],
            taken={key: self._taken[key] for key in positions},
            earlier=frozenset(key for key in positions if is_other(self._remaining_end(key), before[key])),
        )

    def _end(self, key: TopicPartition, before: Position) -> Position:
        """Return where the rows of a partition end, of the topic of its position."""
        remaining = self._remaining_end(key)
        return end_of(before, remaining, key, self._taken[key]) or remaining

    def _remaining_end(self, key: TopicPartition) -> Position:
        """Return where the rows of a partition end by the receipts that remain."""
        if key in self._remaining:
            return self._remaining[key].spans[key].end
        oldest = self._taken[key][-1].spans[key]
        return Position(offset=oldest.first, topic_id=oldest.end.topic_id)

    def _differs(self, key: TopicPartition, before: Position) -> bool:
        """Return whether rows of a partition end elsewhere than at its position."""
        end = self._end(key, before)
        if (end.offset, end.topic_id) == (before.offset, before.topic_id):
            return False
        beyond = (receipt for receipt in self._taken[key] if _is_beyond(receipt.spans[key].end, end))
        return is_ahead(end, before) or any(_has_rows(receipt, key) for receipt in beyond)


def _is_beyond(first: Position, second: Position) -> bool:
    return first.topic_id != second.topic_id or first.offset > second.offset


def _has_rows(receipt: Receipt, key: TopicPartition) -> bool:
    """Return whether a commit changed rows of a partition, or accepted rows. An upserted table may only have lost some.

    A receipt of no offsets accepted that a restore brought back the rows before them.
    """
    span = receipt.spans[key]
    is_accepted = span.first == span.end.offset
    return is_accepted or bool(receipt.upsert) or any(proof.rows for proof in receipt.proofs.get(key, ()))

"""Divide the offsets of a partition in a table into stretches, each proved separately.

1. Each proof of a receipt is a stretch; offsets of a receipt's span without a proof had no record when it was written.
2. If offsets repeat (the topic was recreated, or its log truncated and written again), earlier stretches belong to an
   earlier log: only their receipts can prove them. Files are distinguished by the receipts that name them. Files that
   no receipt names, because another program has rewritten rows, may have rows of several topics at the same offsets:
   rows equal to the log's records are of the present one, and the others have to be as their receipt says.
3. Positions outlive receipts. Offsets up to the position without a receipt should be in the table if the log still has
   them: between receipts, and after the last receipt. Before the first receipt, too, unless the receipts of all commits
   exist: then these offsets were never copied, and only existing rows are checked.
4. Offsets without a receipt that the log no longer has were lost before they were copied if the receipt after them says
   that as many were lost; otherwise it is unknown whether they had records: rows may have been taken back. There must
   be no rows after the position.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from warmlog.pipeline.jobs.audit_segment import AuditFinding
from warmlog.pipeline.jobs.log_ranges import LogExtent
from warmlog.pipeline.jobs.table_proof import Proved, Stretch
from warmlog.pipeline.lakehouse.ledger import begins_again, lives_of
from warmlog.pipeline.lakehouse.reading import DataFile, Selection, TableReader, UnreadableFileError
from warmlog.pipeline.lakehouse.receipts import Proof, Receipt, Span
from warmlog.pipeline.source.offsets import Position
from warmlog.pipeline.source.options import ReadOptions
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.record import MAX_INT64

CHUNK_OFFSETS = 1 << 22  # maximum offsets of a stretch without a receipt


@dataclass(slots=True, kw_only=True)
class PartitionProof:
    """Audit of a partition. `first_offset`, `end_offset`: range of the current (or last) log that should be copied.

    `empty`: offsets without a record: markers, aborted, or compacted before they were copied. `lost`: between receipts,
    deleted before they were copied, as the later receipt says. `unaccounted`: without a row or receipt, and not in the
    log any more.
    `dead_letters`: stored in a dead-letter topic instead, according to receipts. `damaged`: skipped as such, according
    to receipts. `behind`: in the log, not copied yet.
    `audited_before`: proved by an earlier audit. In a table with one row for each key, `superseded`: records that a
    newer one of their key replaces, `deletes`: keys whose newest record deletes them, and `elsewhere`: rows whose key
    has a row in another partition, too.
    """

    topic: str
    partition: int
    topic_id: str | None = None
    first_offset: int = 0
    end_offset: int = 0
    empty: int = 0
    lost: int = 0
    unaccounted: int = 0
    dead_letters: int = 0
    damaged: int = 0
    behind: int = 0
    audited_before: int = 0
    superseded: int = 0
    deletes: int = 0
    elsewhere: int = 0
    proved: Proved = field(default_factory=Proved)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableContents:
    """The contents of a table: files by offset, receipts from oldest to newest, positions, and the columns of rows.

    `columns` and `formats`: those of rows without a receipt. `is_whole`: whether the receipts of all commits exist.
    """

    files: Sequence[DataFile]
    receipts: Sequence[Receipt]
    positions: Mapping[TopicPartition, Position]
    columns: tuple[str, ...]
    formats: Mapping[str, Any] = field(default_factory=dict)
    is_whole: bool = True

    def losses(self) -> set[tuple[str, TopicPartition]]:
        """Return the ids of receipts, and the partitions, of which these say that the offsets before spans were lost.

        Receipts of earlier versions have one count for all partitions: offsets before spans, and others within them.
        """
        ends: dict[TopicPartition, Position] = {}
        stated: set[tuple[str, TopicPartition]] = set()
        for receipt in self.receipts:
            gaps = {
                key: span.first - ends[key].offset
                for key, span in receipt.spans.items()
                if key in ends and not begins_again(ends[key], span)
            }
            before = receipt.lost_before
            if before is not None:
                stated |= {(receipt.id, key) for key, gap in gaps.items() if gap <= before.get(key, 0)}
            elif sum(gaps.values()) <= receipt.lost:
                stated |= {(receipt.id, key) for key in gaps}
            ends |= receipt.positions()
        return stated


class Stretches:
    """The stretches of one partition. `log`: None if the topic was deleted. `partition`: the audit to fill in."""

    def __init__(self, key: TopicPartition, contents: TableContents, log: LogExtent | None) -> None:
        self._key = key
        self._contents = contents
        self._spans = [(receipt, receipt.spans[key]) for receipt in contents.receipts if key in receipt.spans]
        self._losses = contents.losses()
        *self._lives, self._life = lives_of(self._with_position([span for _, span in self._spans]))
        last = self._last
        ids = {each.topic_id for each in (log, last) if each is not None} - {None}
        same = log is not None and len(ids) < 2
        self._log = log if same else None
        self._is_past = not same and log is not None  # the log belongs to another topic
        self._owners: dict[str, set[int]] = {}
        for (receipt, _), life in zip(self._spans, self._lives, strict=True):
            for name in receipt.files:
                self._owners.setdefault(name, set()).add(life)
        end = last.offset if last is not None else 0
        present = [
            span.first
            for (_, span), life in zip(self._spans, self._lives, strict=True)
            if life == self._life or (last is not None and not contents.is_whole and span.end.topic_id == last.topic_id)
        ]
        self._head = min(present, default=end)  # the first offset with a receipt
        first = self._head if contents.is_whole else self._in_log(0, self._head)
        start = log.start if log is not None else 0
        self.partition = PartitionProof(
            topic=key[0],
            partition=key[1],
            topic_id=last.topic_id if last is not None else None,
            first_offset=first,
            end_offset=end,
            behind=max(log.end - (max(end, start) if same else start), 0) if log is not None else 0,
        )

    def _with_position(self, spans: list[Span]) -> list[Span]:
        """Return the spans, and one that ends at the position: the last receipts may have expired before a ledger."""
        last = spans[-1].end if spans else None
        self._last = self._contents.positions.get(self._key, last)
        if self._last is None:
            return [*spans, Span(first=0, end=Position(offset=0))]
        first = self._last.offset if last is None else min(self._last.offset, last.offset)
        return [*spans, Span(first=first, end=self._last)]

    def _in_log(self, first: int, end: int) -> int:
        """Return the first of these offsets that the log may still have, or `end`."""
        return end if self._log is None else max(first, min(self._log.start, end))

    def __iter__(self) -> Iterator[Stretch]:
        """Yield the stretches, in order."""
        yield from self._before(self._head)
        at = self._head
        for (receipt, span), life, cut in zip(self._spans, self._lives, self._cuts(), strict=True):
            is_earlier = self._is_past or (life != self._life and span.end.offset > cut)
            if life == self._life and span.first > at:
                yield from self._gap(at, span.first, is_stated=(receipt.id, self._key) in self._losses)
            dead = receipt.dead_letters.get(self._key, ())
            damaged = receipt.damaged_offsets.get(self._key, ())
            if life == self._life:
                self.partition.dead_letters += sum(end - first for first, end in dead)
            for proof in _whole(span, receipt.proofs.get(self._key, ())):
                stretch = self._stretch(
                    proof.first, proof.end, receipt.columns, proof, life=life, is_earlier=is_earlier
                )
                if is_earlier and stretch.others and receipt.formats == self._contents.formats:
                    stretch = self._with_present_log(stretch)
                yield replace(
                    stretch, written=receipt.files, formats=receipt.formats, dead_letters=dead, damaged=damaged
                )
            at = span.end.offset
        end = self.partition.end_offset
        if self._life not in self._lives:
            at = self._head
        if at < end:
            yield from self._gap(at, end)
        if self._is_shared(end, MAX_INT64):  # rows there may be of a topic that had more
            ends = [
                span.end.offset for (_, span), life in zip(self._spans, self._lives, strict=True) if life != self._life
            ]
            end = max([end, *ends])
        rest = self._stretch(end, MAX_INT64, self._contents.columns, Proof(end, MAX_INT64, 0, ""), life=self._life)
        if rest.files:
            yield rest

    def _is_shared(self, first: int, end: int) -> bool:
        """Return whether files that no receipt names may have rows of these offsets."""
        selection = Selection(key=self._key, first=first, end=end, columns=())
        return any(file.name not in self._owners and file.may_hold(selection) for file in self._contents.files)

    def _others(self, first: int, end: int, life: int) -> int:
        """Return how many other topics of the name may have rows of these offsets in files that no receipt names."""
        overlapping = {
            other
            for (_, span), other in zip(self._spans, self._lives, strict=True)
            if other != life and span.first < end and span.end.offset > first
        }
        return len(overlapping) if overlapping and self._is_shared(first, end) else 0

    def _with_present_log(self, stretch: Stretch) -> Stretch:
        """Return a stretch of an earlier topic with the present topic's log at the same offsets."""
        if self._log is None:
            return stretch
        return replace(stretch, log_first=min(self._log.start, stretch.end), log_end=self._log.end)

    def _before(self, end: int) -> Iterator[Stretch]:
        """Yield the stretches before the first receipt."""
        if self._contents.is_whole:
            yield from self._unreceipted(0, end, is_covered=False)
        elif end:
            yield from self._gap(0, end)

    def _gap(self, first: int, end: int, *, is_stated: bool = False) -> Iterator[Stretch]:
        """Yield stretches without a receipt below the position. `is_stated`: a receipt says that they were lost."""
        in_log = self._in_log(first, end)
        absent = "lost" if is_stated else "unaccounted"
        setattr(self.partition, absent, getattr(self.partition, absent) + in_log - first)
        yield from self._unreceipted(first, in_log, is_covered=False, absent=absent)
        yield from self._unreceipted(in_log, end, is_covered=True)

    def _cuts(self) -> Iterator[int]:
        """Yield for each span the offset up to which it is in the current log; 0 for spans of other topics."""
        last = self._last
        for number, (_, span) in enumerate(self._spans):
            other = last is not None and span.end.topic_id != last.topic_id
            yield 0 if other else min((later.first for _, later in self._spans[number + 1 :]), default=MAX_INT64)

    def _unreceipted(self, first: int, end: int, *, is_covered: bool, absent: str = "") -> Iterator[Stretch]:
        for low in range(first, end, CHUNK_OFFSETS):
            high = min(low + CHUNK_OFFSETS, end)
            stretch = self._stretch(low, high, self._contents.columns, None, life=self._life, is_covered=is_covered)
            if stretch.files or is_covered:
                yield replace(stretch, absent=absent)

    def _stretch(
        self,
        first: int,
        end: int,
        columns: tuple[str, ...],
        proof: Proof | None,
        *,
        life: int,
        is_covered: bool = True,
        is_earlier: bool = False,
    ) -> Stretch:
        selection = Selection(key=self._key, first=first, end=end, columns=columns)
        log_first = end if self._log is None or is_earlier or end == MAX_INT64 else self._log.start
        return Stretch(
            key=self._key,
            first=first,
            end=end,
            columns=columns,
            formats=self._contents.formats,
            proof=proof,
            files=tuple(
                file
                for file in self._contents.files
                if file.may_hold(selection) and life in self._owners.get(file.name, {life})
            ),
            log_first=log_first,
            others=0 if end == MAX_INT64 else self._others(first, end, life),
            is_covered=is_covered,
            is_earlier=is_earlier,
        )


def _whole(span: Span, proofs: Sequence[Proof]) -> Iterator[Proof]:
    """Yield the proofs of a span, and empty proofs for the gaps between them."""
    at = span.first
    for proof in sorted(proofs):
        if proof.first > at:
            yield Proof(at, proof.first, 0, "")
        yield proof
        at = proof.end
    if at < span.end.offset:
        yield Proof(at, span.end.offset, 0, "")


def find_strays(
    partitions: Sequence[PartitionProof], files: Sequence[DataFile], options: ReadOptions, reader: TableReader
) -> set[str]:
    """Report rows of topics at no offset of these partitions; return the paths of their files."""
    if options.topics.assigned is not None:
        return set()  # a topic may have other partitions
    topics: dict[str, dict[int, PartitionProof]] = {}
    for each in partitions:
        topics.setdefault(each.topic, {})[each.partition] = each
    paths = set()
    for topic, known in topics.items():
        first = min(known)
        for file in files:
            count = _strays_in(file, topic, known, reader)
            if count:
                paths.add(file.path)
                known[first].proved.foreign += count
                what = f"rows without an offset, or in a partition that neither the log nor a receipt has ({count:,})"
                finding = AuditFinding(topic=topic, partition=first, kind="table", what=what, path=file.path)
                known[first].proved.findings.append(finding)
    return paths


def _strays_in(file: DataFile, topic: str, partitions: Collection[int], reader: TableReader) -> int:
    if not file.may_stray(topic, partitions):
        return 0
    try:
        return reader.strays(file, topic, partitions)
    except UnreadableFileError:
        return 0  # reported when its rows are read

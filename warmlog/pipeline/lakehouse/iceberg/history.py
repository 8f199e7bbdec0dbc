"""The snapshots of an Iceberg table, with their receipts and the ledger.

    S1 - S2 - S3 - S4       snapshots, each with the id of its parent
          |
          +-- S5 - S6       S6 is the current one: its lineage is S6, S5, S2, S1

A rollback makes an earlier snapshot the current one, and removes none.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from warmlog.pipeline.lakehouse.ledger import LEDGER_KEY, WHOLE, parse_ledger
from warmlog.pipeline.lakehouse.receipts import KEY, Receipt, parse_receipt
from warmlog.pipeline.lakehouse.table import Committed

SNAPSHOT, SEQUENCE = "snapshot", "sequence"  # marks of a ledger: id and sequence number of its last snapshot
NO_SNAPSHOT = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The ledger of a table, receipts from oldest to newest, and its marks; both empty if there is none."""

    receipts: Sequence[Receipt] = ()
    marks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The commits that were taken back, newest first. `is_complete`: whether all of them still exist."""

    receipts: Sequence[Receipt]
    is_complete: bool


def marks_of(metadata: Any) -> dict[str, int]:
    """Return the marks of a ledger with the receipts up to the current snapshot of pyiceberg's metadata."""
    snapshot = metadata.current_snapshot()
    if snapshot is None:
        return {SNAPSHOT: 0}
    return {SNAPSHOT: snapshot.snapshot_id, SEQUENCE: snapshot.sequence_number or 0}


class History:
    """The history of one version of a table. `metadata`: pyiceberg's. `name`: of the table, for error messages."""

    def __init__(self, metadata: Any, name: str) -> None:
        self._metadata = metadata
        self._name = name

    def lineage(self) -> Iterator[int]:
        """Yield the ids of the current snapshot and its ancestors, up to the first that has expired."""
        at = self._metadata.current_snapshot_id
        while at is not None:
            yield at
            snapshot = self._metadata.snapshot_by_id(at)
            at = None if snapshot is None else snapshot.parent_snapshot_id

    def steps(self) -> Iterator[tuple[Committed | None, int]]:
        """Yield the receipt (or None) and the id of the current snapshot and each of its ancestors, newest first.

        The last id is NO_SNAPSHOT if older snapshots have expired. Raises PipelineError.
        """
        at = self._metadata.current_snapshot_id
        while at is not None:
            snapshot = self._metadata.snapshot_by_id(at)
            if snapshot is None:
                yield None, NO_SNAPSHOT
                return
            receipt = self._receipt(snapshot)
            yield None if receipt is None else Committed(version=at, receipt=receipt), at
            at = snapshot.parent_snapshot_id
            if at is None and not is_first(snapshot):
                yield None, NO_SNAPSHOT  # when pyiceberg expires a parent, it also removes the parent's id

    def _receipt(self, snapshot: Any) -> Receipt | None:
        text = None if snapshot.summary is None else snapshot.summary.additional_properties.get(KEY)
        return None if text is None else parse_receipt(text, f"{self._name}, snapshot {snapshot.snapshot_id}")

    def ancestors(self) -> Iterator[Committed | None]:
        """Yield the receipts of the current snapshot and its ancestors, newest first, then None if some expired."""
        for commit, snapshot in self.steps():
            if commit is not None or snapshot == NO_SNAPSHOT:
                yield commit

    def commits(self) -> Iterator[Committed]:
        """Yield the commits with receipts in the remaining history, then those of the ledger, newest first."""
        ledger = self.ledger()
        mark = ledger.marks.get(SNAPSHOT)
        for commit, snapshot in self.steps():
            if snapshot in {mark, NO_SNAPSHOT}:
                break
            if commit is not None:
                yield commit
        else:
            return  # no snapshot expired and none is the ledger's: the table was rolled back to an earlier snapshot
        if mark is not None and not self.is_beyond(ledger):
            yield from (Committed(version=mark, receipt=receipt) for receipt in reversed(ledger.receipts))

    def is_whole(self) -> bool:
        """Return whether `commits` yields the receipts of all commits."""
        ledger = self.ledger()
        for _, snapshot in self.steps():
            if snapshot == NO_SNAPSHOT:
                return self.is_complete(ledger)
            if snapshot == ledger.marks.get(SNAPSHOT):
                return WHOLE in ledger.marks
        return True

    def ledger(self) -> Ledger:
        """Return the ledger. Raises PipelineError."""
        text = self._metadata.properties.get(LEDGER_KEY)
        if text is None:
            return Ledger()
        receipts, marks = parse_ledger(text, self._name)
        return Ledger(receipts=receipts, marks=marks)

    def is_complete(self, ledger: Ledger) -> bool:
        """Return whether a ledger has all receipts of the current snapshot or one of its ancestors."""
        return WHOLE in ledger.marks and ledger.marks.get(SNAPSHOT, 0) in list(self.lineage())

    def is_beyond(self, ledger: Ledger) -> bool:
        """Return whether a ledger is of a snapshot that was taken back."""
        metadata, mark = self._metadata, ledger.marks.get(SNAPSHOT)
        lineage = list(self.lineage())
        if not mark or mark in lineage:
            return False
        if metadata.snapshot_by_id(mark) is not None:
            return True
        oldest = next(filter(None, map(metadata.snapshot_by_id, reversed(lineage))), None)
        return oldest is None or ledger.marks.get(SEQUENCE, 0) > (oldest.sequence_number or 0)

    def taken_back(self, receipt_id: str) -> Chain:
        """Return the commits that are not in the lineage, down from the one with this receipt. Raises PipelineError.

        If any of these has expired, return all commits that are not in the lineage.
        """
        lineage = set(self.lineage())
        listed = [(self._receipt(snapshot), snapshot) for snapshot in sorted(self._metadata.snapshots, key=_order)]
        others = [(receipt, snapshot) for receipt, snapshot in listed if snapshot.snapshot_id not in lineage]
        everything = [receipt for receipt, _ in reversed(others) if receipt is not None]
        start = next((each for receipt, each in listed if receipt is not None and receipt.id == receipt_id), None)
        receipts = {snapshot.snapshot_id: receipt for receipt, snapshot in listed}
        chain: list[Receipt] = []
        at = start
        while at is not None and at.snapshot_id not in lineage:
            receipt = receipts[at.snapshot_id]
            chain += [] if receipt is None else [receipt]
            if at.parent_snapshot_id is None and is_first(at):
                return Chain(receipts=chain, is_complete=True)
            at = None if at.parent_snapshot_id is None else self._metadata.snapshot_by_id(at.parent_snapshot_id)
        if at is None:
            return Chain(receipts=everything, is_complete=False)
        return Chain(receipts=chain, is_complete=True)


def _order(snapshot: Any) -> tuple[int, int]:
    return snapshot.sequence_number or 0, snapshot.timestamp_ms


def is_first(snapshot: Any) -> bool:
    """Return whether a snapshot without a parent is the table's first one, judging by its sequence number.

    Tables of format version 1 do not number snapshots; their first snapshot is the one that appended all of its rows.
    """
    if snapshot.sequence_number:
        return bool(snapshot.sequence_number == 1)
    if snapshot.summary is None:
        return True
    summary = snapshot.summary.additional_properties
    appended = "total-records" not in summary or summary["total-records"] == summary.get("added-records", "0")
    return bool(appended and snapshot.summary.operation.value == "append")

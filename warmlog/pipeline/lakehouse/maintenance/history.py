"""Determine whether a table still has the receipts of all commits, in its history or in its ledger.

Other engines expire snapshots and clean Delta's log, and the receipts with them. A ledger is marked as whole if it was
made from a history or a ledger that was.
"""

from warmlog.pipeline.lakehouse.delta.table import DeltaTable
from warmlog.pipeline.lakehouse.iceberg.table import IcebergTable
from warmlog.pipeline.lakehouse.ledger import WHOLE
from warmlog.pipeline.lakehouse.table import Table


def is_whole(table: Table) -> bool:
    """Return whether the receipts of all commits exist. The table must have been read. Raises PipelineError."""
    if isinstance(table, DeltaTable):
        return _is_whole_delta(table)
    return isinstance(table, IcebergTable) and table.is_whole()


def mark_of(table: Table) -> dict[str, int]:
    """Return the mark of a ledger with all receipts that the table has now. Raises PipelineError."""
    return {WHOLE: 1} if is_whole(table) else {}


def _is_whole_delta(table: DeltaTable) -> bool:
    for entry in table.history():
        if entry.version == 0:
            return True
        ledger = entry.ledger()
        if ledger is not None:
            return WHOLE in ledger[1]
    return False

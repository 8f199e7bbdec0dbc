"""Determine whether a table still has the receipts of all commits, in its history or in its ledger.

Other engines expire snapshots and clean Delta's log, and the receipts with them. A ledger is marked as whole if it was
made from a history or a ledger that was.
"""

import json
from typing import Any

from warmlog.pipeline.lakehouse.delta.table import USER_METADATA, DeltaTable
from warmlog.pipeline.lakehouse.iceberg import IcebergTable, is_first
from warmlog.pipeline.lakehouse.ledger import LEDGER_KEY, parse_ledger
from warmlog.pipeline.lakehouse.table import Table

WHOLE = "whole"  # mark of a ledger


def is_whole(table: Table) -> bool:
    """Return whether the receipts of all commits exist. The table must have been read. Raises PipelineError."""
    if isinstance(table, DeltaTable):
        return _is_whole_delta(table)
    return isinstance(table, IcebergTable) and _is_whole_iceberg(table)


def mark_of(table: Table) -> dict[str, int]:
    """Return the mark of a ledger with all receipts that the table has now. Raises PipelineError."""
    return {WHOLE: 1} if is_whole(table) else {}


def _is_whole_delta(table: DeltaTable) -> bool:
    wanted = table.version
    for entry in table.history():
        version = int(entry["version"])
        if version != wanted:
            return False
        if version == 0:
            return True
        text = _ledger_of(entry.get(USER_METADATA))
        if text is not None:
            _, marks = parse_ledger(text, f"{table.name}, version {version}")
            return WHOLE in marks
        wanted -= 1
    return False


def _ledger_of(metadata: Any) -> str | None:
    """Return the ledger in the metadata of a commit, which another program may have made."""
    try:
        form = json.loads(metadata)
    except (TypeError, ValueError):
        return None
    return form.get(LEDGER_KEY) if isinstance(form, dict) else None


def _is_whole_iceberg(table: IcebergTable) -> bool:
    metadata = table.handle.metadata
    text = metadata.properties.get(LEDGER_KEY)
    marks = {} if text is None else parse_ledger(text, table.name)[1]
    at = metadata.current_snapshot_id
    while at is not None:
        if at == marks.get("snapshot"):
            return WHOLE in marks
        snapshot = metadata.snapshot_by_id(at)
        if snapshot is None:
            return False
        at = snapshot.parent_snapshot_id
        if at is None:
            return is_first(snapshot)
    return True

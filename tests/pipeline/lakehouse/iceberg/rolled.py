"""Iceberg tables that other programs roll back."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.tables import copied, offsets_in, open_in, options_of
from tests.pipeline.lakehouse.test_audit import audited
from tests.pipeline.lakehouse.test_exactly_once import iceberg_table
from tests.pipeline.lakehouse.test_maintenance import LATER, maintained
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.iceberg.table import IcebergTable
from warmlog.pipeline.lakehouse.rewinding import rewind


def roll_back(directory: Path, number: int) -> None:
    """Make an earlier snapshot the current one, by its place in the list of snapshots."""
    table = iceberg_table(directory)
    make_current(directory, table.metadata.snapshots[number].snapshot_id)


def make_current(directory: Path, snapshot: int) -> None:
    iceberg_table(directory).manage_snapshots().set_current_snapshot(snapshot_id=snapshot).commit()


def snapshots(directory: Path) -> list[int]:
    return [each.snapshot_id for each in iceberg_table(directory).metadata.snapshots]


def append_nothing(directory: Path) -> None:
    table = iceberg_table(directory)
    table.append(table.scan().to_arrow().slice(0, 0))


def expire_others(directory: Path) -> None:
    """Expire all but the current snapshot, as another program does."""
    iceberg_table(directory).maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()


def expire(directory: Path, *expired: int) -> None:
    iceberg_table(directory).maintenance.expire_snapshots().by_ids(list(expired)).commit()


def opened(directory: Path) -> IcebergTable:
    table = open_in(directory, "iceberg", ())
    assert isinstance(table, IcebergTable)
    return table


def rewound(directory: Path, **how: Any) -> list[tuple[int, int, int | None]]:
    """Accept a rollback; return partitions with their offsets before and after."""
    done = rewind(opened(directory), pause=lambda _: None, **how)
    return [(each.partition, each.before, each.after) for each in done]


def ends(directory: Path) -> dict[int, int]:
    """The number of rows of each partition, whose offsets begin at 0."""
    counts: dict[int, int] = {}
    for partition, _ in offsets_in(directory, "iceberg"):
        counts[partition] = counts.get(partition, 0) + 1
    return counts


def refused(directory: Path, writer: DirectoryWriter) -> str:
    """The message with which a job, an audit and maintenance end; nothing is written."""
    before = iceberg_table(directory).metadata_location, sorted(directory.rglob("*.parquet"))
    messages = set()
    for act in (
        lambda: copied(open_in(directory, "iceberg"), options_of(writer)),
        lambda: audited(directory, "iceberg", options_of(writer)),
        lambda: maintained(directory, "iceberg", after=LATER),
    ):
        with pytest.raises(PipelineError) as caught:
            act()
        messages.add(str(caught.value))
    assert (iceberg_table(directory).metadata_location, sorted(directory.rglob("*.parquet"))) == before
    (message,) = messages
    return message

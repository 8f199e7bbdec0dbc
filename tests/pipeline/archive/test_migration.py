"""An archive becomes a Delta table where it is: the same files, rows and positions, in one commit."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner

from tests.pipeline.archive.test_archive import archived, asked
from tests.pipeline.conftest import NOW_MS, DirectoryWriter
from tests.pipeline.lakehouse.tables import copied
from tests.pipeline.lakehouse.test_exactly_once import KilledError
from tests.pipeline.lakehouse.test_maintenance import upkeep_of
from tests.pipeline.lakehouse.test_table import recreate
from warmlog.cli.root import root
from warmlog.pipeline.archive.store import ArchiveStore
from warmlog.pipeline.archive.table import read_commits
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.job_stats import Reporter
from warmlog.pipeline.jobs import archive_migration
from warmlog.pipeline.jobs.archive_migration import Migrated, migrate_archive
from warmlog.pipeline.jobs.replay import plan_from_table
from warmlog.pipeline.jobs.table_audit import TableAudit, audit_table
from warmlog.pipeline.jobs.table_rows import read_rows
from warmlog.pipeline.lakehouse.delta import DeltaTable
from warmlog.pipeline.lakehouse.maintenance.job import MaintenanceJob
from warmlog.pipeline.lakehouse.target import open_table
from warmlog.pipeline.runner import LocalRunner

WritePartition = Callable[..., DirectoryWriter]
HOUR_MS = 3_600_000


@pytest.fixture
def writer(write_partition: WritePartition) -> DirectoryWriter:
    """Partition 0 has three segments of three hours, each of 20 records; partition 1 has 30 records."""
    first = write_partition()
    for hour in range(3):
        first.segment(*[[b"x"] * 5] * 4, first_ms=NOW_MS + hour * HOUR_MS)
    write_partition(partition=1).segment(*[[b"y"] * 10] * 3)
    return first


@pytest.fixture(params=["none", "hour"])
def lake(request: pytest.FixtureRequest, writer: DirectoryWriter, tmp_path: Path) -> Path:
    """An archive of several batches."""
    archived(ArchiveStore(tmp_path / "lake"), asked(writer, maxOffsetsPerTrigger=25), partition_by=request.param)
    return tmp_path / "lake"


def opened(lake: Path, columns: tuple[str, ...] = ()) -> DeltaTable:
    table = open_table(str(lake), columns)
    assert isinstance(table, DeltaTable)
    table.refresh()
    return table


def audited(lake: Path, writer: DirectoryWriter) -> TableAudit:
    return audit_table(LocalRunner(), asked(writer), opened(lake), Reporter("audit"))


def contents(lake: Path) -> dict[str, bytes]:
    files = (path for path in lake.rglob("*") if path.is_file() and "_delta_log" not in path.parts)
    return {str(path): path.read_bytes() for path in files}


def offsets_in(lake: Path) -> list[tuple[int, int]]:
    import deltalake

    rows = deltalake.DeltaTable(str(lake)).to_pyarrow_dataset().to_table(columns=["partition", "offset"])
    return sorted(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))


BOTH = [(0, offset) for offset in range(60)] + [(1, offset) for offset in range(30)]


def test_the_same_files_are_a_table_that_its_audit_proves(lake: Path, writer: DirectoryWriter) -> None:
    before = contents(lake)
    done = migrate_archive(lake)
    assert (done.is_new, done.rows, done.batches) == (True, 90, 4)
    assert contents(lake) == before
    assert offsets_in(lake) == BOTH
    result = audited(lake, writer)
    assert (sum(each.proved.in_log for each in result.partitions), result.findings) == (90, [])
    assert migrate_archive(lake) == Migrated(table=done.table, is_new=False)


def test_receipts_prove_rows_that_the_log_does_not_have_any_more(lake: Path, writer: DirectoryWriter) -> None:
    migrate_archive(lake)
    for path in sorted(writer.directory.glob("*.log"))[:2]:
        path.unlink()
    result = audited(lake, writer)
    assert (sum(each.proved.by_receipt for each in result.partitions), result.findings) == (40, [])


def test_a_job_continues_where_the_archive_ended(lake: Path, writer: DirectoryWriter) -> None:
    columns = migrate_archive(lake).columns
    writer.segment([b"z"] * 5)
    options = asked(writer, columns=",".join(columns), isolationLevel="read_committed")
    (receipt,) = copied(opened(lake, columns), options)
    assert (receipt.rows, copied(opened(lake, columns), options)) == (5, [])
    assert offsets_in(lake) == sorted([*BOTH, *((0, offset) for offset in range(60, 65))])
    assert audited(lake, writer).findings == []


def test_maintenance_merges_the_files_of_an_archive(lake: Path, writer: DirectoryWriter) -> None:
    migrate_archive(lake)
    done = MaintenanceJob(upkeep_of(opened(lake), files=timedelta())).run()
    assert (done.new_files, len(opened(lake).files())) == (1, 1)
    assert done.deleted_files == done.merged_files + 4, "with each _commit.json, whose receipt is in the ledger"
    assert (offsets_in(lake), audited(lake, writer).findings) == (BOTH, [])


@pytest.mark.parametrize("landed", [True, False], ids=["after the commit", "before it"])
def test_killed_at_the_commit_it_is_an_archive_or_a_table(
    lake: Path, writer: DirectoryWriter, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    create_table = archive_migration.create_table

    def killed(*arguments: Any) -> None:
        if landed:
            create_table(*arguments)
        raise KilledError("commit")

    with monkeypatch.context() as patched:
        patched.setattr(archive_migration, "create_table", killed)
        with pytest.raises(KilledError):
            migrate_archive(lake)
    if not landed:
        assert len(read_commits(lake)) == 4
        assert archived(ArchiveStore(lake), asked(writer), partition_by=read_commits(lake)[0].partition_by) == []
    assert migrate_archive(lake).is_new is not landed
    assert (offsets_in(lake), audited(lake, writer).findings) == (BOTH, [])


def test_no_job_continues_or_reads_it_as_an_archive(lake: Path, writer: DirectoryWriter) -> None:
    migrate_archive(lake)
    with pytest.raises(PipelineError, match="has become a Delta table: use warmlog pipeline table"):
        archived(ArchiveStore(lake), asked(writer))
    with pytest.raises(PipelineError, match="has become a Delta table"):
        read_commits(lake)


def test_an_archive_that_is_written_to_is_not_migrated(lake: Path) -> None:
    with ArchiveStore(lake).locked(), pytest.raises(PipelineError, match="another job is writing to it"):
        migrate_archive(lake)
    assert migrate_archive(lake).is_new


def test_rows_of_a_recreated_topic_and_of_the_one_before_stay_apart(
    write_partition: WritePartition, tmp_path: Path
) -> None:
    writer, lake = write_partition(), tmp_path / "lake"
    log = writer.segment([b"old"] * 10)
    recreate(writer, UUID(int=7))
    archived(ArchiveStore(lake), asked(writer))
    log.unlink()
    writer.next_offset = 0
    writer.segment([b"new"] * 12)
    recreate(writer, UUID(int=8))
    archived(ArchiveStore(lake), asked(writer, failOnDataLoss="false"))
    migrate_archive(lake)
    (partition,) = audited(lake, writer).partitions
    assert (partition.proved.earlier, partition.proved.in_log, partition.proved.findings) == (10, 12, [])
    (task,) = plan_from_table(opened(lake), asked(writer))
    assert task.rows is not None
    values = [value for batch in read_rows(task.rows, ("value",)) for value in batch.column("value").to_pylist()]
    assert values == [b"old"] * 10 + [b"new"] * 12


def test_an_archive_whose_rows_are_not_accountable_is_refused(writer: DirectoryWriter, tmp_path: Path) -> None:
    archived(ArchiveStore(tmp_path / "lake"), asked(writer, columns="key,value"))
    with pytest.raises(PipelineError, match="a table needs the columns partition, offset"):
        migrate_archive(tmp_path / "lake")


def test_the_command(lake: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> Any:
        return CliRunner().invoke(root, ["pipeline", "table", "migrate", *arguments])

    assert "no such directory" in run(str(tmp_path / "nothing")).output
    assert "is not an archive" in run(str(tmp_path)).output
    assert not (tmp_path / "_lock").exists()
    first, second = run(str(lake)).output.splitlines()
    assert first.endswith("of 4 commits")
    assert second.endswith("-o columns=key,value,topic,partition,offset,timestamp,timestampType")
    assert run(str(lake)).output.endswith("is a Delta table already\n")
    assert json.loads(run(str(lake), "--json").output)["is_new"] is False

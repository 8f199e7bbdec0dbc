"""An archive becomes a Delta table where it is: the same files, rows and positions, in one commit."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import parquet

from tests.pipeline.lakehouse.migration.archives import StoredArchive, unpacked
from tests.pipeline.lakehouse.tables import copied
from tests.pipeline.lakehouse.test_exactly_once import KilledError
from tests.pipeline.lakehouse.test_maintenance import upkeep_of
from warmlog.cli.root import root
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.jobs.replay import plan_from_table
from warmlog.pipeline.jobs.table_rows import read_rows
from warmlog.pipeline.lakehouse.maintenance.job import MaintenanceJob
from warmlog.pipeline.lakehouse.migration import archive, job
from warmlog.pipeline.lakehouse.migration.archive import is_archive, locked
from warmlog.pipeline.lakehouse.migration.job import Migrated, migrate_archive
from warmlog.pipeline.lakehouse.stream import TableSink
from warmlog.pipeline.runner import LocalRunner
from warmlog.pipeline.source.options import COLUMNS


def rows_of(topic: str, partition: int, *offsets: Sequence[int]) -> list[tuple[str, int, int]]:
    return [(topic, partition, offset) for each in offsets for offset in each]


HOURS = [
    *rows_of("orders", 0, range(40), range(50, 60)),
    *rows_of("orders", 1, range(30)),
    *rows_of("payments", 0, range(20)),
]
FIRST = rows_of("orders", 0, range(30)) + rows_of("orders", 1, range(10))
ROWS: Mapping[str, list[tuple[str, int, int]]] = {
    "hours": HOURS,
    "first": FIRST,
    "days": rows_of("orders", 0, range(24)),
    "recreated": sorted(rows_of("orders", 0, range(20), range(30))),
}
BATCHES = {"hours": 5, "first": 3, "days": 1, "recreated": 5}


@pytest.fixture
def hours(tmp_path: Path) -> StoredArchive:
    return unpacked("hours", tmp_path)


def migrated(stored: StoredArchive) -> Migrated:
    return migrate_archive(LocalRunner(), stored.lake)


@pytest.mark.parametrize("name", ROWS)
def test_the_same_files_are_a_table_that_its_audit_proves(name: str, tmp_path: Path) -> None:
    stored = unpacked(name, tmp_path)
    before = stored.files()
    done = migrated(stored)
    assert (done.is_new, done.rows, done.batches) == (True, len(ROWS[name]), BATCHES[name])
    assert stored.files() == before
    assert stored.offsets() == ROWS[name]
    assert stored.audited().findings == []
    assert migrated(stored) == Migrated(table=done.table, is_new=False)


def test_an_audit_accounts_for_what_is_gone_lost_and_not_copied(hours: StoredArchive) -> None:
    migrated(hours)
    audit = hours.audited()
    (first, *_) = audit.partitions
    assert (first.proved.in_log, first.proved.by_receipt, first.lost, first.behind) == (10, 40, 10, 10)
    assert sum(each.proved.rows for each in audit.partitions) == 100


def test_damage_that_was_skipped_is_in_a_receipt(tmp_path: Path) -> None:
    stored = unpacked("damaged", tmp_path)
    migrated(stored)
    (commit,) = stored.table().commits()
    (text,) = commit.receipt.damaged
    assert "orders-0/00000000000000000000.log: damaged batch at position" in text
    (partition,) = stored.audited().partitions
    assert (partition.proved.in_log, partition.proved.findings) == (26, [])


@pytest.mark.parametrize(("name", "new"), [("hours", range(60, 70)), ("first", range(30, 40))])
def test_a_job_continues_where_the_archive_ended(name: str, new: Sequence[int], tmp_path: Path) -> None:
    """Records of the run that was killed before its commit are copied once."""
    stored = unpacked(name, tmp_path)
    columns = migrated(stored).columns
    options = stored.options(columns=",".join(columns))
    (receipt,) = copied(stored.table(columns), options)
    assert (receipt.rows, copied(stored.table(columns), options)) == (len(new), [])
    assert stored.offsets() == sorted([*ROWS[name], *rows_of("orders", 0, new)])
    audit = stored.audited()
    assert (audit.findings, sum(each.behind for each in audit.partitions)) == ([], 0)
    assert list(stored.lake.glob(".run-*")) == []


def partitions_in(stored: StoredArchive, name: str) -> dict[Any, set[datetime]]:
    """The values of a partition column, with the times of their rows, cut to hours; None after the year 9999."""
    import deltalake

    rows = deltalake.DeltaTable(str(stored.lake)).to_pyarrow_dataset().to_table(columns=[name, "timestamp"])
    values: dict[Any, set[datetime]] = {}
    times = rows["timestamp"].cast(pa.int64()).to_pylist()
    for value, time in zip(rows[name].to_pylist(), times, strict=True):
        hour = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(hours=time // 3_600_000_000) if value else None
        values.setdefault(value, set()).add(hour)
    return values


def test_hours_and_days_are_the_partitions_of_the_table(hours: StoredArchive, tmp_path: Path) -> None:
    assert migrated(hours).partition_by == "hour"
    copied(hours.table(), hours.options(columns="key,value,topic,partition,offset,timestamp,timestampType,headers"))
    assert partitions_in(hours, "timestamp_hour") == {
        f"2023-11-{day}-{hour}": {datetime(2023, 11, day, hour, tzinfo=UTC)} for day, hour in ((14, 22), (14, 23))
    } | {"2023-11-15-00": {datetime(2023, 11, 15, tzinfo=UTC)}}
    days = unpacked("days", tmp_path / "days")
    assert migrated(days).partition_by == "day"
    assert partitions_in(days, "timestamp_day") == {
        date(1970, 1, 1): {datetime(1970, 1, 1, tzinfo=UTC)},
        date(2023, 11, 14): {datetime(2023, 11, 14, 22, tzinfo=UTC)},
        date(2023, 11, 15): {datetime(2023, 11, 15, 22, tzinfo=UTC)},
        None: {None},
    }


def test_maintenance_merges_the_files_of_an_archive(tmp_path: Path) -> None:
    stored = unpacked("first", tmp_path)
    migrated(stored)
    done = MaintenanceJob(upkeep_of(stored.table(), files=timedelta())).run()
    assert (done.new_files, len(stored.table().files())) == (1, 1)
    assert done.deleted_files == done.merged_files + 3, "with each _commit.json, whose receipt is in the ledger"
    assert (stored.offsets(), stored.audited().findings) == (FIRST, [])


def test_rows_of_a_recreated_topic_and_of_the_one_before_stay_apart(tmp_path: Path) -> None:
    stored = unpacked("recreated", tmp_path)
    migrated(stored)
    (partition,) = stored.audited().partitions
    assert (partition.proved.earlier, partition.proved.in_log, partition.proved.findings) == (20, 30, [])
    (task,) = plan_from_table(stored.table(), stored.options())
    assert task.rows is not None
    values = [value for batch in read_rows(task.rows, ("value",)) for value in batch.column("value").to_pylist()]
    assert [value[:3] for value in values if value is not None] == [b"old"] * 17 + [b"new"] * 26


@pytest.mark.parametrize("step", ["read_batch", "create_table", "after create_table", "remove_runs"])
def test_killed_at_any_step_it_is_an_archive_or_a_table(
    hours: StoredArchive, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    name = step.removeprefix("after ")
    real = getattr(job, name)

    def killed(*arguments: Any) -> None:
        if step.startswith("after "):
            real(*arguments)
        raise KilledError(step)

    with monkeypatch.context() as patched:
        patched.setattr(job, name, killed)
        with pytest.raises(KilledError):
            migrated(hours)
    landed = step in {"after create_table", "remove_runs"}
    assert is_archive(hours.lake) is not landed
    assert migrated(hours).is_new is not landed
    assert (hours.offsets(), hours.audited().findings) == (HOURS, [])
    assert list(hours.lake.glob(".run-*")) == []


def test_a_log_without_a_version_is_no_table_yet(hours: StoredArchive) -> None:
    """As after a kill while the first version is written under another name."""
    (hours.lake / "_delta_log").mkdir()
    (hours.lake / "_delta_log" / "_commit_8f3a.json.tmp").write_text('{"commitInfo":')
    assert is_archive(hours.lake)
    assert migrated(hours).is_new
    assert (hours.offsets(), hours.audited().findings) == (HOURS, [])


def test_an_archive_that_is_written_to_is_not_migrated(hours: StoredArchive) -> None:
    with locked(hours.lake), pytest.raises(PipelineError, match="another job is writing to it: stop that first"):
        migrated(hours)
    assert migrated(hours).is_new


def test_an_archive_whose_rows_are_not_accountable_is_refused(tmp_path: Path) -> None:
    stored = unpacked("bare", tmp_path)
    with pytest.raises(PipelineError, match=r"lake: a table needs the columns partition, offset.*to a new table"):
        migrated(stored)
    assert is_archive(stored.lake)


def run_command(*arguments: object) -> Any:
    return CliRunner().invoke(root, ["pipeline", *map(str, arguments)])


def test_no_command_takes_an_archive_for_a_table(hours: StoredArchive) -> None:
    message = f"{hours.lake} is an archive of an earlier version: warmlog pipeline table migrate {hours.lake}\n"
    for arguments in (
        ("table", "orders", hours.lake, "--path", hours.data, "--until-end"),
        ("audit", "orders", hours.lake, "--path", hours.data),
        ("table", "maintain", hours.lake),
        ("replay", "--topic", "orders", "--table", hours.lake, "--dry-run"),
    ):
        done = run_command(*arguments)
        assert (done.exit_code, done.stderr.endswith(message)) == (1, True), done.output
    assert not (hours.lake / "_delta_log").exists()


def test_the_command(hours: StoredArchive, tmp_path: Path) -> None:
    def run(*arguments: object) -> Any:
        return run_command("table", "migrate", *arguments)

    assert "no such directory" in run(tmp_path / "nothing").output
    assert "is not an archive" in run(tmp_path).output
    assert not (tmp_path / "_lock").exists()
    first, second = run(hours.lake).output.splitlines()
    assert first.endswith("is a Delta table now: 100 rows in 24 files of 5 commits")
    printed = second.removeprefix("continue it with: warmlog pipeline ").replace("TOPIC", hours.topics)
    continued = run_command(*printed.split(), "--path", hours.data, "--until-end")
    assert "committed 10 records of 10 offsets" in continued.output, continued.output
    assert run(hours.lake).output.endswith("is a Delta table already\n")
    assert json.loads(run(hours.lake, "--json").output)["is_new"] is False


# -- damaged archives ------------------------------------------------------------------------------------------------


def parquet_of(stored: StoredArchive, batch: int = 2) -> Path:
    return min(stored.lake.glob(f"batch={batch:08d}/**/orders-0-*.parquet"))


def commit_of(stored: StoredArchive, batch: int = 2) -> Path:
    return stored.lake / f"batch={batch:08d}" / archive.COMMIT


def edited(stored: StoredArchive, **values: Any) -> None:
    path = commit_of(stored)
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_missing_batch_is_named(hours: StoredArchive) -> None:
    (hours.lake / "batch=00000002").rename(hours.lake / "elsewhere")
    with pytest.raises(PipelineError, match=r"batch=00000002 is missing, and later batches exist: restore it"):
        migrated(hours)
    (hours.lake / "elsewhere").rename(hours.lake / "batch=00000002")
    assert migrated(hours).is_new


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{}", "'spans'"),
        ("[", "Expecting value"),
        ('{"spans": 7}', "'int' object has no attribute 'items'"),
    ],
)
def test_a_file_that_is_no_commit_is_named(hours: StoredArchive, text: str, reason: str) -> None:
    commit_of(hours).write_text(text)
    with pytest.raises(PipelineError, match=rf"2/_commit\.json is not a commit of an archive \({reason}.*\): restore"):
        migrated(hours)


def test_a_commit_that_disagrees_with_its_batch_is_named(hours: StoredArchive) -> None:
    whole = commit_of(hours).read_text()
    for values, reason in (
        ({"number": 7}, "is the commit of batch 7"),
        ({"rows": 24}, "says that the batch has 24 rows, but its files have 25"),
        ({"partition_by": "day"}, "has other columns or another partitioning than the first commit"),
        ({"partition_by": "week"}, r"is not a commit of an archive \(partitioned by week\)"),
        ({"columns": ["offset"]}, "has other columns or another partitioning"),
        ({"columns": ["offset", 1.5]}, r"is not a commit of an archive \(a text or a number is none\)"),
        ({"columns": ["offset", "colour"]}, r"is not a commit of an archive \(columns offset, colour\)"),
        ({"files": [1.5]}, r"is not a commit of an archive \(a text or a number is none\)"),
        ({"lost_offsets": {}}, r"is not a commit of an archive \(a text or a number is none\)"),
        ({"topic_ids": {"orders": "8Q"}}, r"is not a commit of an archive \(topic id 8Q\)"),
        ({"spans": {"orders": {"0": [5, 10**30]}}}, rf"is not a commit of an archive \(offsets 5 to {10**30}\)"),
    ):
        edited(hours, **values)
        with pytest.raises(PipelineError, match=rf"2/_commit\.json {reason}"):
            migrated(hours)
        commit_of(hours).write_text(whole)
    commit_of(hours).unlink()
    with pytest.raises(PipelineError, match=r"2/_commit\.json is missing: restore it"):
        migrated(hours)


def test_files_that_are_missing_or_damaged_are_named(hours: StoredArchive) -> None:
    path = parquet_of(hours)
    whole = path.read_bytes()
    path.unlink()
    with pytest.raises(PipelineError, match=f"{path} is missing: restore it"):
        migrated(hours)
    for damage in (whole[:-9], b"", whole[:4] + bytes(200) + whole[204:]):
        path.write_bytes(damage)
        with pytest.raises(PipelineError, match=rf"{path} cannot be read \(.+\): restore it"):
            migrated(hours)
    assert not (hours.lake / "_delta_log").exists()
    path.write_bytes(whole)
    assert migrated(hours).is_new


def test_files_with_rows_of_other_batches_partitions_or_hours_are_named(hours: StoredArchive, tmp_path: Path) -> None:
    path = parquet_of(hours)
    whole = path.read_bytes()
    other_partition = min(hours.lake.glob("batch=00000002/**/orders-1-*.parquet"))
    hour = path.parent.name
    of_partition = hours.lake.glob("batch=00000002/**/orders-0-*.parquet")
    other_hour = min(each for each in of_partition if each.parent.name != hour)
    for source, reason in (
        (parquet_of(hours, 1), "has a row of offset 0, which is there twice or not of this batch"),
        (parquet_of(hours, 3), "has a row of offset 33, which is there twice or not of this batch"),
        (other_hour, "has a row of offset 13, which is there twice"),
        (other_partition, "has rows of another partition than 0"),
        (parquet_of(unpacked("first", tmp_path / "first")), "its columns are not key, value, topic,"),
    ):
        path.write_bytes(source.read_bytes())
        with pytest.raises(PipelineError, match=reason) as caught:
            migrated(hours)
        assert str(path.parent.parent) in str(caught.value)
    path.write_bytes(whole)
    rows = pa.concat_tables([parquet.read_table(each, partitioning=None) for each in (path, other_hour)])
    parquet.write_table(rows.sort_by("offset"), path)
    names = json.loads(commit_of(hours).read_text())["files"]
    edited(hours, files=[name for name in names if not name.endswith(other_hour.name)])
    with pytest.raises(PipelineError, match=f"{path} has rows of other times than {hour[5:]}"):
        migrated(hours)


def test_a_stream_is_not_written_into_an_archive(hours: StoredArchive) -> None:
    with pytest.raises(PipelineError, match="is an archive of an earlier version"):
        TableSink(str(hours.lake))(SimpleNamespace(columns=COLUMNS), 0)

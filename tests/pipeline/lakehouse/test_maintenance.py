"""Maintenance merges files, expires versions and deletes files, and each offset stays in the table once, proved."""

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner
from pyarrow import parquet

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.tables import (
    AnyTable,
    Kind,
    arguments_of,
    copied,
    files_of,
    offsets_in,
    open_in,
    options_of,
    query,
)
from tests.pipeline.lakehouse.test_audit import altered, audited, change, faults, file_with, total
from tests.pipeline.lakehouse.test_exactly_once import (
    BOTH,
    KilledError,
    Killer,
    Watched,
    append_foreign_row,
    iceberg_table,
    once,
)
from tests.pipeline.lakehouse.test_table import recreate
from warmlog.cli.root import root
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.delta.table import DeltaTable
from warmlog.pipeline.lakehouse.job import TableJob, TableSettings
from warmlog.pipeline.lakehouse.maintenance.delta import DeltaUpkeep
from warmlog.pipeline.lakehouse.maintenance.iceberg import IcebergUpkeep
from warmlog.pipeline.lakehouse.maintenance.job import MIN_AGE, Maintenance, MaintenanceJob
from warmlog.pipeline.lakehouse.maintenance.upkeep import Expired, Unneeded, Upkeep
from warmlog.pipeline.lakehouse.reading import DataFile
from warmlog.pipeline.lakehouse.receipts import Receipt
from warmlog.pipeline.lakehouse.table import OutcomeUnknownError, Table
from warmlog.pipeline.lakehouse.writing import NewFile
from warmlog.pipeline.runner import LocalRunner

LATER = timedelta(days=60)  # when all that is there now is old enough to go


def upkeep_of(
    table: AnyTable,
    *,
    after: timedelta = timedelta(),
    snapshots: timedelta = timedelta(days=7),
    files: timedelta = timedelta(days=7),
    keep: int = 1,
) -> Upkeep:
    """As the command makes it, at a later time. `snapshots`, `files`: their ages."""

    def now() -> datetime:
        return datetime.now(UTC) + after

    if isinstance(table, DeltaTable):
        return DeltaUpkeep(table, files, now)
    return IcebergUpkeep(table, snapshot_age=snapshots, keep_snapshots=keep, age=files, now=now)


def maintained(directory: Path, kind: Kind, **settings: Any) -> Maintenance:
    upkeep = upkeep_of(open_in(directory, kind, ()), **settings)
    return MaintenanceJob(upkeep, pause=lambda _: None).run()


class WatchedUpkeep:
    """Calls `step` by name before and after each step of maintenance, files and commits included."""

    def __init__(self, upkeep: Upkeep, step: Callable[[str], Any]) -> None:
        self._upkeep = upkeep
        self._step = step

    def _stepped(self, name: str, act: Callable[[], Any]) -> Any:
        self._step(f"before {name}")
        result = act()
        self._step(f"after {name}")
        return result

    @property
    def table(self) -> Table:
        return Watched(self._upkeep.table, self._step)  # type: ignore[arg-type]

    def check(self) -> None:
        self._upkeep.check()

    def replace(self, removed: Sequence[DataFile], added: Sequence[NewFile], ledger: Sequence[Receipt]) -> None:
        self._stepped("replace", lambda: self._upkeep.replace(removed, added, ledger))

    def to_expire(self) -> Expired:
        return self._upkeep.to_expire()

    def expire(self, expired: Expired, ledger: Sequence[Receipt]) -> None:
        self._stepped("expire", lambda: self._upkeep.expire(expired, ledger))

    def unneeded(self) -> Unneeded:
        found: Unneeded = self._stepped("unneeded", self._upkeep.unneeded)
        return found

    def delete(self, unneeded: Unneeded) -> None:
        self._stepped("vacuum", lambda: self._upkeep.delete(unneeded))


def age(directory: Path, by: timedelta = LATER) -> None:
    """Make all files old."""
    then = time.time() - by.total_seconds()
    for path in directory.rglob("*"):
        if path.is_file() and path.suffix != ".db":
            os.utime(path, (then, then))


def counts(directory: Path, kind: Kind, writer: DirectoryWriter) -> tuple[Any, ...]:
    """What the audit says of each partition."""
    result = audited(directory, kind, options_of(writer))
    whole = total(result)
    return (
        [(each.partition, each.first_offset, each.end_offset, each.empty, each.lost) for each in result.partitions],
        {name: getattr(whole, name) for name in whole.COUNTS},
        len(result.findings),
    )


def proofs_of(directory: Path, kind: Kind) -> int:
    commits = open_in(directory, kind).commits()
    return sum(len(proofs) for commit in commits for proofs in commit.receipt.proofs.values())


def test_small_files_become_one_and_the_audit_says_the_same(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=20))
    before = counts(tmp_path, kind, writer)
    rows = query(tmp_path, kind, "SELECT * FROM data ORDER BY ALL")
    assert (len(files_of(tmp_path, kind)), proofs_of(tmp_path, kind)) == (5, 10)
    done = maintained(tmp_path, kind)
    assert (done.merged_files, done.new_files, done.rows) == (5, 1, 90)
    (path,) = files_of(tmp_path, kind)
    assert [(row["partition"], row["offset"]) for row in parquet.read_table(_local(path)).to_pylist()] == BOTH
    assert query(tmp_path, kind, "SELECT * FROM data ORDER BY ALL") == rows
    assert (counts(tmp_path, kind, writer), proofs_of(tmp_path, kind)) == (before, 2)
    again = maintained(tmp_path, kind)
    assert (again.merged_files, again.versions, again.deleted_files) == (0, 0, 0)


def _local(path: str) -> str:
    return path.removeprefix("file://")


def test_the_job_continues_after_maintenance(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=20))
    maintained(tmp_path, kind)
    writer.segment([b"z"] * 5)
    (receipt,) = copied(open_in(tmp_path, kind), options_of(writer))
    assert receipt.rows == 5
    assert offsets_in(tmp_path, kind) == sorted([*BOTH, *((0, offset) for offset in range(60, 65))])
    assert (faults(audited(tmp_path, kind, options_of(writer)))) == {}


def test_expired_versions_leave_their_receipts(
    write_partition: Callable[..., DirectoryWriter], kind: Kind, tmp_path: Path
) -> None:
    """What the log does not have any more is proved by receipts whose versions are gone."""
    writer = write_partition()
    logs = [writer.segment(*[[b"x"] * 5] * 4) for _ in range(3)]
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=10))
    maintained(tmp_path, kind)
    age(tmp_path)
    done = maintained(tmp_path, kind, after=LATER)
    assert (done.versions, done.kept_versions) == (7, 1) if kind == "delta" else (6, 1)
    assert versions_of(tmp_path, kind) == 1
    for log in logs[:2]:
        log.unlink()
    result = audited(tmp_path, kind, options_of(writer))
    assert (total(result).by_receipt, total(result).in_log, result.findings) == (40, 20, [])
    writer.segment([b"z"] * 5)
    (receipt,) = copied(open_in(tmp_path, kind), options_of(writer))
    assert receipt.rows == 5
    assert offsets_in(tmp_path, kind) == [(0, offset) for offset in range(65)]


def versions_of(directory: Path, kind: Kind) -> int:
    if kind == "delta":
        return len(list((directory / "delta" / "_delta_log").glob("*.json")))
    return len(iceberg_table(directory).metadata.snapshots)


def test_files_that_no_version_needs_are_deleted_when_they_are_old(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=20))
    store = open_in(tmp_path, kind).store()
    store.create("warmlog-orphan.parquet").close()
    age(tmp_path)
    store.create("warmlog-young.parquet").close()
    maintained(tmp_path, kind)
    there = {path.name for path in tmp_path.rglob("*.parquet") if "checkpoint" not in path.name}
    assert "warmlog-orphan.parquet" not in there
    assert "warmlog-young.parquet" in there
    assert len(there) == 5 + 1 + 1, "files that were merged are of versions that are kept"
    maintained(tmp_path, kind, after=LATER, files=timedelta())  # Delta notes when a file was removed
    there = {path.name for path in tmp_path.rglob("*.parquet") if "checkpoint" not in path.name}
    assert there == {Path(path).name for path in files_of(tmp_path, kind)}
    assert offsets_in(tmp_path, kind) == BOTH


def test_a_dry_run_reports_and_changes_nothing(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=20))
    age(tmp_path)
    open_in(tmp_path, kind).store().create("warmlog-orphan.parquet").close()
    before = snapshot_of(tmp_path)
    upkeep = upkeep_of(open_in(tmp_path, kind, ()), after=LATER)
    done = MaintenanceJob(upkeep, dry_run=True).run()
    assert (done.merged_files, done.new_files, done.versions) == (5, 1, 5 if kind == "delta" else 4)
    assert done.deleted_files == (1 if kind == "iceberg" else 0)
    assert snapshot_of(tmp_path) == before


def snapshot_of(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.interop  # takes many seconds
def test_killed_at_every_step_it_neither_loses_nor_doubles(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    import shutil

    original = tmp_path / "original" / "lake"
    copied(open_in(original, kind), options_of(writer, maxOffsetsPerTrigger=45))
    age(original)
    steps, names = 0, set()
    while True:
        lake = tmp_path / "lake" if kind == "delta" else original
        if kind == "delta":
            shutil.rmtree(lake, ignore_errors=True)
            shutil.copytree(original, lake)
        elif steps:
            shutil.rmtree(original)
            copied(open_in(original, kind), options_of(writer, maxOffsetsPerTrigger=45))
            age(original)
        killer = Killer(steps)
        upkeep = WatchedUpkeep(upkeep_of(open_in(lake, kind, ()), after=LATER), killer)
        with suppress(KilledError):
            MaintenanceJob(upkeep, pause=lambda _: None).run()
            break
        names.add(killer.name)
        assert offsets_in(lake, kind) == BOTH, f"killed {killer.name}, step {steps}"
        assert faults(audited(lake, kind, options_of(writer))) == {}
        maintained(lake, kind)
        assert offsets_in(lake, kind) == BOTH, f"killed {killer.name}, step {steps}"
        assert (len(files_of(lake, kind)), counts(lake, kind, writer)[2]) == (1, 0)
        steps += 1
    assert {"after create", "before replace", "after replace", "after expire", "before vacuum", "after vacuum"} <= names


def test_a_job_that_commits_meanwhile_is_no_conflict(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    options = options_of(writer, maxOffsetsPerTrigger=20)
    job = TableJob(options, open_in(tmp_path, kind), TableSettings())
    job.step(LocalRunner())
    job.step(LocalRunner())
    step = once("before replace", lambda: job.step(LocalRunner()))
    upkeep = WatchedUpkeep(upkeep_of(open_in(tmp_path, kind, ())), step)
    done = MaintenanceJob(upkeep, pause=lambda _: None).run()
    assert done.merged_files >= 2
    while job.step(LocalRunner()) is not None:
        pass
    assert offsets_in(tmp_path, kind) == BOTH
    assert faults(audited(tmp_path, kind, options_of(writer))) == {}


def test_maintenance_while_a_batch_is_written_is_no_conflict(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    commits: list[str] = []

    def step(at: str) -> None:
        if at == "before commit":
            commits.append(at)
            if len(commits) in {3, 6}:
                maintained(tmp_path, kind, snapshots=timedelta())

    receipts = copied(Watched(open_in(tmp_path, kind), step), options_of(writer, maxOffsetsPerTrigger=20))
    assert (len(receipts), len(commits)) == (5, 7)
    assert offsets_in(tmp_path, kind) == BOTH
    assert faults(audited(tmp_path, kind, options_of(writer))) == {}


@pytest.mark.parametrize("landed", [True, False], ids=["after the commit", "before it"])
def test_a_lost_answer_is_neither_loss_nor_double(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path, landed: bool
) -> None:
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=20))

    def lose() -> None:
        raise OutcomeUnknownError("the connection was closed")

    step = once("after replace" if landed else "before replace", lose)
    done = MaintenanceJob(WatchedUpkeep(upkeep_of(open_in(tmp_path, kind, ())), step), pause=lambda _: None).run()
    assert (done.merged_files, done.new_files, len(files_of(tmp_path, kind))) == (5, 1, 1)
    assert (offsets_in(tmp_path, kind), counts(tmp_path, kind, writer)[2]) == (BOTH, 0)


def test_files_that_another_program_removes_meanwhile_are_not_brought_back(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=20))
    step = once("before replace", lambda: delete_all(tmp_path, kind))
    done = MaintenanceJob(WatchedUpkeep(upkeep_of(open_in(tmp_path, kind, ())), step), pause=lambda _: None).run()
    assert (done.new_files, offsets_in(tmp_path, kind)) == (0, [])


def delete_all(directory: Path, kind: Kind) -> None:
    if kind == "delta":
        import deltalake

        deltalake.DeltaTable(str(directory / "delta")).delete()
    else:
        iceberg_table(directory).delete()


def test_a_damaged_row_stays_a_finding(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    """Maintenance does not make proofs of rows that are not as they were written."""
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=20))
    path = file_with(tmp_path, kind, 0, 30)
    change(path, altered(0, 30, "value"))
    before = counts(tmp_path, kind, writer)
    assert before[1]["altered"] == 1
    assert maintained(tmp_path, kind).new_files == 1
    after = counts(tmp_path, kind, writer)
    assert (before[0], before[1]) == (after[0], after[1])


def test_rows_of_a_recreated_topic_and_of_the_one_before_stay_apart(
    write_partition: Callable[..., DirectoryWriter], kind: Kind, tmp_path: Path
) -> None:
    writer = write_partition()
    log = writer.segment([b"old"] * 5, [b"old"] * 5)
    recreate(writer, UUID(int=7))
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=5))
    log.unlink()
    writer.next_offset = 0
    writer.segment([b"new"] * 6, [b"new"] * 6)
    recreate(writer, UUID(int=8))
    copied(open_in(tmp_path, kind), options_of(writer, failOnDataLoss="false", maxOffsetsPerTrigger=6))
    done = maintained(tmp_path, kind)
    assert (done.merged_files, len(files_of(tmp_path, kind))) == (4, 2)
    age(tmp_path)
    maintained(tmp_path, kind, after=LATER)
    result = audited(tmp_path, kind, options_of(writer))
    assert (total(result).earlier, total(result).in_log, result.findings) == (10, 12, [])


def test_a_thousand_small_files_need_few_passes_and_little_memory(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bins are bounded, and what they become is merged again."""
    from warmlog.pipeline.lakehouse.maintenance import planning

    monkeypatch.setattr(planning, "OPEN_FILES", 3)
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=10))
    assert len(files_of(tmp_path, kind)) == 9
    done = maintained(tmp_path, kind)
    assert (done.merged_files, done.new_files, proofs_of(tmp_path, kind)) == (9 + 3, 3 + 1, 2)
    assert (offsets_in(tmp_path, kind), counts(tmp_path, kind, writer)[2]) == (BOTH, 0)


def test_two_at_once_merge_each_file_once(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=20))
    others: list[Maintenance] = []
    step = once("before replace", lambda: others.append(maintained(tmp_path, kind)))
    done = MaintenanceJob(WatchedUpkeep(upkeep_of(open_in(tmp_path, kind, ())), step), pause=lambda _: None).run()
    assert ([other.new_files for other in others], done.new_files) == ([1], 0)
    assert (len(files_of(tmp_path, kind)), offsets_in(tmp_path, kind)) == (1, BOTH)
    assert (counts(tmp_path, kind, writer)[2], proofs_of(tmp_path, kind)) == (0, 2)


def test_a_file_that_is_damaged_or_in_no_order_is_named_and_left_alone(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=20))
    damaged, disordered = file_with(tmp_path, kind, 0, 0), file_with(tmp_path, kind, 0, 50)
    Path(_local(damaged)).write_bytes(b"not parquet")
    rows = parquet.read_table(_local(disordered))
    parquet.write_table(rows.sort_by([("offset", "descending")]), _local(disordered), row_group_size=5)
    done = maintained(tmp_path, kind)
    assert (done.merged_files, done.new_files) == (3, 1)
    reasons = {Path(_local(path)).name: reason for path, reason in done.left_alone.items()}
    assert reasons.keys() == {Path(_local(damaged)).name, Path(_local(disordered)).name}
    assert reasons[Path(_local(disordered)).name] == "it is not in the order of partition and offset"


def test_the_receipts_of_a_long_log_are_read(
    writer: DirectoryWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is read in parts, until the ledger is among them."""
    from warmlog.pipeline.lakehouse.delta import log

    monkeypatch.setattr(log, "FIRST_ENTRIES", 2)
    copied(open_in(tmp_path, "delta"), options_of(writer, maxOffsetsPerTrigger=10))
    opened = open_in(tmp_path, "delta")
    assert [commit.version for commit in opened.commits()] == list(range(9, 0, -1))
    maintained(tmp_path, "delta")
    assert [commit.version for commit in open_in(tmp_path, "delta").commits()] == [10]


def test_files_of_other_programs_stay_as_they_are(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=40))
    append_foreign_row(tmp_path, kind)
    append_foreign_row(tmp_path, kind)
    assert maintained(tmp_path, kind).merged_files == 3
    assert (len(files_of(tmp_path, kind)), offsets_in(tmp_path, kind)) == (3, [*BOTH, (7, 7), (7, 7)])


def test_delta_without_a_ledger_of_today_gets_one(writer: DirectoryWriter, tmp_path: Path) -> None:
    """The ledger is in the log, which others clean."""
    copied(open_in(tmp_path, "delta"), options_of(writer))
    version = open_in(tmp_path, "delta").version
    maintained(tmp_path, "delta")
    maintained(tmp_path, "delta")
    assert open_in(tmp_path, "delta").version == version + 1
    maintained(tmp_path, "delta", after=timedelta(days=2))
    assert open_in(tmp_path, "delta").version == version + 2


def run(*arguments: str) -> Any:
    return CliRunner().invoke(root, ["pipeline", "table", *arguments])


def test_the_command_prints_what_it_did(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=20))
    result = run("maintain", *arguments_of(tmp_path, kind))
    assert result.exit_code == 0, result.output
    assert "merge small files" in result.output
    result = run("maintain", *arguments_of(tmp_path, kind), "--dry-run", "--json")
    form = json.loads(result.output)
    assert (form["dry_run"], form["merged_files"], form["deleted_files"]) == (True, 0, 0)


def test_the_command_refuses_what_it_cannot_do(kind: Kind, tmp_path: Path) -> None:
    result = run("maintain", *arguments_of(tmp_path, kind))
    assert result.exit_code != 0
    assert result.output.endswith(": no such table\n")
    result = run("maintain", str(tmp_path / "delta"), "--keep-snapshots", "3")
    assert "--keep-snapshots is for Iceberg" in result.output


def test_files_without_a_commit_stay_for_a_day_whatever_is_asked_for(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    copied(open_in(tmp_path, kind), options_of(writer))
    for name, by in (("young", MIN_AGE - timedelta(hours=2)), ("old", MIN_AGE + timedelta(hours=2))):
        open_in(tmp_path, kind).store().create(f"warmlog-{name}.parquet").close()
        (path,) = tmp_path.rglob(f"warmlog-{name}.parquet")
        then = time.time() - by.total_seconds()
        os.utime(path, (then, then))
    assert run("maintain", *arguments_of(tmp_path, kind), "--older-than", "1s").exit_code == 0
    assert [path.name for path in tmp_path.rglob("warmlog-old.parquet")] == []
    assert len(list(tmp_path.rglob("warmlog-young.parquet"))) == 1


def test_a_delta_table_with_an_unknown_retention_is_refused(writer: DirectoryWriter, tmp_path: Path) -> None:
    table = open_in(tmp_path, "delta")
    copied(table, options_of(writer))
    table.handle.alter.set_table_properties({"delta.logRetentionDuration": "interval 2 fortnights"}, False)
    with pytest.raises(PipelineError, match=r"logRetentionDuration is 'interval 2 fortnights'"):
        maintained(tmp_path, "delta")

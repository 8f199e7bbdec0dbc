"""Delta's RESTORE: jobs notice what it took back, and nothing else, and copy that again once it is accepted."""

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.delta.restored import delta, log_file, restored_by_spark, rewound
from tests.pipeline.lakehouse.tables import copied, files_of, offsets_in, open_in, options_of, query
from tests.pipeline.lakehouse.test_audit import audited
from tests.pipeline.lakehouse.test_exactly_once import BOTH, Watched, append_foreign_row, once
from tests.pipeline.lakehouse.test_maintenance import LATER, maintained
from tests.pipeline.lakehouse.upserts.upserted import KeyedWriter, model_in, upserted
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.delta.table import DeltaTable
from warmlog.pipeline.lakehouse.job import TableJob, TableSettings
from warmlog.pipeline.runner import LocalRunner

WritePartition = Callable[..., DirectoryWriter]


def refused(directory: Path, writer: DirectoryWriter) -> str:
    """The message with which a job ends; nothing is written."""
    before = delta(directory).version(), sorted(directory.rglob("*.parquet"))
    with pytest.raises(PipelineError) as caught:
        copied(open_in(directory, "delta"), options_of(writer))
    assert (delta(directory).version(), sorted(directory.rglob("*.parquet"))) == before
    return str(caught.value)


def ends(directory: Path) -> dict[int, int]:
    """The end of the rows of each partition."""
    return dict(query(directory, "delta", 'SELECT "partition", max("offset") + 1 FROM data GROUP BY ALL'))


def test_what_was_taken_back_is_named_and_copied_again(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    delta(tmp_path).restore(2)
    left = ends(tmp_path)
    message = refused(tmp_path, five_commits)
    table = tmp_path / "delta"
    assert message == (
        f"{table} was restored to an earlier version, which took back rows of orders-0 from offset {left[0]}, orders-1"
        f" from offset {left[1]} (version 6). To copy them again: warmlog pipeline table rewind {table}"
    )
    assert rewound(tmp_path, dry_run=True) == [(0, 60, left[0]), (1, 30, left[1])]
    assert "took back rows" in refused(tmp_path, five_commits)
    assert rewound(tmp_path) == [(0, 60, left[0]), (1, 30, left[1])]
    assert rewound(tmp_path) == []
    (receipt,) = copied(open_in(tmp_path, "delta"), options_of(five_commits))
    assert (receipt.rows, offsets_in(tmp_path, "delta")) == (50, BOTH)
    assert copied(open_in(tmp_path, "delta"), options_of(five_commits)) == []
    audit = audited(tmp_path, "delta", options_of(five_commits))
    assert (audit.findings, [each.proved.in_log for each in audit.partitions]) == ([], [60, 30])


def test_a_table_without_rows_is_copied_from_the_first_offset(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    delta(tmp_path).restore(0)
    assert "orders-0 from offset 0, orders-1 from offset 0" in refused(tmp_path, five_commits)
    rewound(tmp_path)
    copied(open_in(tmp_path, "delta"), options_of(five_commits))
    assert offsets_in(tmp_path, "delta") == BOTH
    assert audited(tmp_path, "delta", options_of(five_commits)).findings == []


@pytest.mark.parametrize(
    "parameters",
    [{"version": 2, "timestamp": None}, {"version": None, "timestamp": "2026-11-30 04:00:00"}],
    ids=["version", "timestamp"],
)
def test_a_restore_of_spark_is_noticed(
    five_commits: DirectoryWriter, tmp_path: Path, parameters: dict[str, Any]
) -> None:
    restored_by_spark(tmp_path, 2, parameters)
    assert delta(tmp_path).history(1)[0]["operationParameters"].keys() == {
        name for name, value in parameters.items() if value is not None or name in parameters
    }
    left = ends(tmp_path)
    assert f"orders-0 from offset {left[0]}, orders-1 from offset {left[1]}" in refused(tmp_path, five_commits)
    rewound(tmp_path)
    copied(open_in(tmp_path, "delta"), options_of(five_commits))
    assert offsets_in(tmp_path, "delta") == BOTH


def test_rows_that_come_back_are_not_copied_twice(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    """The positions were set back before."""
    delta(tmp_path).restore(2)
    left = ends(tmp_path)
    rewound(tmp_path)
    delta(tmp_path).restore(5)
    table = tmp_path / "delta"
    assert refused(tmp_path, five_commits) == (
        f"{table} was restored to an earlier version, which brought back rows of orders-0 from offset {left[0]},"
        f" orders-1 from offset {left[1]} (version 8). To continue after them: warmlog pipeline table rewind {table}"
    )
    assert rewound(tmp_path) == [(0, left[0], 60), (1, left[1], 30)]
    continued(tmp_path, five_commits)
    assert len(offsets_in(tmp_path, "delta")) == 95
    assert audited(tmp_path, "delta", options_of(five_commits)).findings == []


def test_a_restore_to_a_time_is_noticed(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    for version in range(6):
        os.utime(log_file(tmp_path, version), (1_700_000_000 + version, 1_700_000_000 + version))
        path = log_file(tmp_path, version)
        path.write_text(_at(path.read_text(), 1_700_000_000_000 + version * 1000))
        os.utime(path, (1_700_000_000 + version, 1_700_000_000 + version))
    delta(tmp_path).restore(datetime.fromtimestamp(1_700_000_003.5, UTC))
    (info,) = delta(tmp_path).history(1)
    assert "version" not in info["operationParameters"]
    left = ends(tmp_path)
    assert sum(left.values()) == 60
    rewound(tmp_path)
    copied(open_in(tmp_path, "delta"), options_of(five_commits))
    assert offsets_in(tmp_path, "delta") == BOTH


def _at(text: str, time_ms: int) -> str:
    actions = [json.loads(line) for line in text.splitlines()]
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"]["timestamp"] = time_ms
    return "".join(json.dumps(action) + "\n" for action in actions)


def test_a_running_job_ends(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    job = TableJob(options_of(five_commits), open_in(tmp_path, "delta"), TableSettings())
    assert job.step(LocalRunner()) is None
    delta(tmp_path).restore(4)
    five_commits.segment([b"z"] * 5)
    with pytest.raises(PipelineError, match="took back rows of"):
        job.step(LocalRunner())


def test_a_running_job_continues_after_a_restore_that_was_accepted_meanwhile(
    five_commits: DirectoryWriter, tmp_path: Path
) -> None:
    job = TableJob(options_of(five_commits), open_in(tmp_path, "delta"), TableSettings())
    assert job.step(LocalRunner()) is None
    delta(tmp_path).restore(3)
    rewound(tmp_path)
    receipt = job.step(LocalRunner())
    assert receipt is not None
    assert (receipt.rows, offsets_in(tmp_path, "delta")) == (30, BOTH)


def test_a_batch_that_a_restore_overtakes_is_dropped(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    five_commits.segment([b"z"] * 5)
    files = len(list(tmp_path.rglob("*.parquet")))
    step = once("before commit", lambda: delta(tmp_path).restore(4))
    with pytest.raises(PipelineError, match="took back rows of"):
        copied(Watched(open_in(tmp_path, "delta"), step), options_of(five_commits))
    assert delta(tmp_path).version() == 6
    assert len(list(tmp_path.rglob("*.parquet"))) == files


def test_a_partition_without_new_records_is_not_forgotten(
    writer: DirectoryWriter, write_partition: WritePartition, tmp_path: Path
) -> None:
    """The restore takes back rows of partition 1, while a batch of partition 0 is written."""
    first, second = (options_of(writer, topic=None, assign=f'{{"orders":[{number}]}}') for number in (0, 1))
    copied(open_in(tmp_path, "delta"), first)
    copied(open_in(tmp_path, "delta"), second)
    writer.segment([b"z"] * 5)
    step = once("before commit", lambda: delta(tmp_path).restore(1))
    with pytest.raises(PipelineError, match="took back rows of orders-1 from offset 0 "):
        copied(Watched(open_in(tmp_path, "delta"), step), options_of(writer))


def test_another_topic_continues(
    five_commits: DirectoryWriter, write_partition: WritePartition, tmp_path: Path
) -> None:
    write_partition("others").segment([b"o"] * 10)
    others = options_of(five_commits, topic="others")
    copied(open_in(tmp_path, "delta"), others)
    copied(open_in(tmp_path, "delta"), options_of(five_commits, topic="orders"))
    five_commits.segment([b"z"] * 5)
    copied(open_in(tmp_path, "delta"), options_of(five_commits))
    delta(tmp_path).restore(6)
    write_partition("others", 1).segment([b"o"] * 7)
    (receipt,) = copied(open_in(tmp_path, "delta"), others)
    assert receipt.rows == 7
    assert "took back rows of orders-0 from offset 60 (" in refused(tmp_path, five_commits)


# -- no alarm ---------------------------------------------------------------------------------------------------------


def continued(directory: Path, writer: DirectoryWriter, rows: int = 5) -> None:
    """A job copies five new records, and those before."""
    writer.segment([b"z"] * 5)
    (receipt,) = copied(open_in(directory, "delta"), options_of(writer))
    assert receipt.rows == rows


def test_a_restore_to_the_same_rows_is_no_matter(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    delta(tmp_path).alter.set_table_properties({"delta.logRetentionDuration": "interval 31 days"})
    delta(tmp_path).restore(5)
    continued(tmp_path, five_commits)


def test_nor_is_one_that_undoes_a_compaction(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    delta(tmp_path).optimize.compact()
    delta(tmp_path).restore(5)
    assert len(files_of(tmp_path, "delta")) > 1
    continued(tmp_path, five_commits)


def test_nor_one_of_another_programs_rows(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    append_foreign_row(tmp_path, "delta")
    delta(tmp_path).restore(5)
    continued(tmp_path, five_commits)
    assert (7, 7) not in offsets_in(tmp_path, "delta")


def test_nor_one_that_was_undone(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    delta(tmp_path).restore(2)
    delta(tmp_path).restore(5)
    continued(tmp_path, five_commits)


def test_nor_one_to_rows_that_were_copied_again_since(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    """Other commits have the same rows up to the same offsets."""
    delta(tmp_path).restore(2)
    rewound(tmp_path)
    copied(open_in(tmp_path, "delta"), options_of(five_commits))
    delta(tmp_path).restore(5)
    continued(tmp_path, five_commits)
    assert audited(tmp_path, "delta", options_of(five_commits)).findings == []


def test_nor_one_of_commits_without_rows(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    """As of offsets that compaction removed."""
    five_commits.next_offset += 20
    five_commits.segment([b"z"] * 5)
    job = TableJob(options_of(five_commits, maxOffsetsPerTrigger=10), open_in(tmp_path, "delta"), TableSettings())
    receipt = job.step(LocalRunner())
    assert receipt is not None
    assert (receipt.rows, delta(tmp_path).version()) == (0, 6)
    delta(tmp_path).restore(5)
    continued(tmp_path, five_commits, rows=10)


def test_nor_one_after_which_the_topic_was_continued(
    five_commits: DirectoryWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a program that did not notice it, or by this one, after the restore was accepted."""
    delta(tmp_path).restore(4)
    with monkeypatch.context() as unaware:
        unaware.setattr(DeltaTable, "taken_back", lambda *_: None)
        continued(tmp_path, five_commits)
    continued(tmp_path, five_commits)
    delta(tmp_path).restore(6)
    rewound(tmp_path)
    copied(open_in(tmp_path, "delta"), options_of(five_commits))
    continued(tmp_path, five_commits)


def test_nor_one_before_a_table_that_was_never_copied_to(writer: DirectoryWriter, tmp_path: Path) -> None:
    open_in(tmp_path, "delta")
    append_foreign_row(tmp_path, "delta")
    delta(tmp_path).restore(0)
    copied(open_in(tmp_path, "delta"), options_of(writer))
    assert offsets_in(tmp_path, "delta") == BOTH


# -- logs that are cleaned --------------------------------------------------------------------------------------------


def clean_log(directory: Path, kept: int) -> None:
    """Delete the log before the last versions, as far as a checkpoint allows."""
    table = delta(directory)
    table.create_checkpoint()
    for version in range(table.version() + 1 - kept):
        log_file(directory, version).unlink()


def test_without_the_commits_that_were_taken_back_the_job_does_not_guess(
    five_commits: DirectoryWriter, tmp_path: Path
) -> None:
    delta(tmp_path).restore(2)
    clean_log(tmp_path, kept=2)
    for refusal in (refused(tmp_path, five_commits), _refused_rewind(tmp_path)):
        assert "its log no longer has the commits that were taken back: copy the topic to a new table" in refusal


def _refused_rewind(directory: Path) -> str:
    with pytest.raises(PipelineError) as caught:
        rewound(directory)
    return str(caught.value)


def test_the_commits_that_were_taken_back_suffice(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    """Receipts of the commits that remain are gone."""
    delta(tmp_path).restore(2)
    left = ends(tmp_path)
    clean_log(tmp_path, kept=4)
    assert f"orders-0 from offset {left[0]}, orders-1 from offset {left[1]}" in refused(tmp_path, five_commits)
    rewound(tmp_path)
    copied(open_in(tmp_path, "delta"), options_of(five_commits))
    assert offsets_in(tmp_path, "delta") == BOTH


def test_a_cleaned_log_is_no_alarm(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    """The rows before the positions are there."""
    delta(tmp_path).optimize.compact()
    delta(tmp_path).restore(5)
    clean_log(tmp_path, kept=1)
    assert rewound(tmp_path) == []
    maintained(tmp_path, "delta")
    delta(tmp_path).restore(7)
    append_foreign_row(tmp_path, "delta")
    delta(tmp_path).restore(9)
    continued(tmp_path, five_commits)


# -- maintenance, upserts, other programs -----------------------------------------------------------------------------


def test_maintenance_waits_until_a_restore_is_accepted(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    delta(tmp_path).restore(3)
    with pytest.raises(PipelineError, match="took back rows of"):
        maintained(tmp_path, "delta")
    rewound(tmp_path)
    maintained(tmp_path, "delta", after=LATER)
    copied(open_in(tmp_path, "delta"), options_of(five_commits))
    audit = audited(tmp_path, "delta", options_of(five_commits))
    assert (audit.findings, offsets_in(tmp_path, "delta")) == ([], BOTH)


def test_maintenance_keeps_the_log_until_then(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    """Nothing is to be merged, and the ledger is new enough, but versions are old enough to be deleted."""
    delta(tmp_path).alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    maintained(tmp_path, "delta")
    before = delta(tmp_path).version()
    continued(tmp_path, five_commits)
    delta(tmp_path).restore(before)
    with pytest.raises(PipelineError, match="took back rows of orders-0 from offset 60 "):
        maintained(tmp_path, "delta", after=timedelta(minutes=1))
    assert log_file(tmp_path, before + 1).exists()


def test_a_ledger_says_where_rows_end(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    maintained(tmp_path, "delta")
    before = delta(tmp_path).version()
    continued(tmp_path, five_commits)
    continued(tmp_path, five_commits)
    delta(tmp_path).restore(before)
    assert rewound(tmp_path) == [(0, 70, 60)]
    copied(open_in(tmp_path, "delta"), options_of(five_commits))
    assert len(offsets_in(tmp_path, "delta")) == 100
    audit = audited(tmp_path, "delta", options_of(five_commits))
    assert (audit.findings, [each.proved.in_log for each in audit.partitions]) == ([], [70, 30])


def test_rows_by_key_are_taken_back_and_copied_again(tmp_path: Path) -> None:
    writer = KeyedWriter(tmp_path / "data")
    for number in range(3):
        gone = {0, 1} if number == 2 else set()
        writer.add(*((b"k%d" % key, None if key in gone else b"%d-%d" % (number, key)) for key in range(10)))
        upserted(open_in(tmp_path, "delta"), writer)
    newest = dict(writer.model)
    delta(tmp_path).restore(2)
    assert len(model_in(tmp_path, "delta")) == 10
    with pytest.raises(PipelineError, match="took back rows of orders-0 from offset 20 "):
        upserted(open_in(tmp_path, "delta"), writer)
    assert rewound(tmp_path) == [(0, 30, 20)]
    upserted(open_in(tmp_path, "delta"), writer)
    assert model_in(tmp_path, "delta") == newest
    assert audited(tmp_path, "delta", options_of(writer)).findings == []


def test_steps_read_only_new_log_entries(
    five_commits: DirectoryWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = TableJob(options_of(five_commits), open_in(tmp_path, "delta"), TableSettings())
    job.step(LocalRunner())
    limits: list[int] = []
    history = deltalake.DeltaTable.history

    def counted(table: deltalake.DeltaTable, limit: int) -> Any:
        limits.append(limit)
        return history(table, limit)

    monkeypatch.setattr(deltalake.DeltaTable, "history", counted)
    for _ in range(3):
        five_commits.segment([b"z"] * 5)
        assert job.step(LocalRunner()) is not None
        assert job.step(LocalRunner()) is None
    assert limits == [1, 1, 1]

"""Each offset is in the table once: killed at every step, two writers, lost answers, expired snapshots."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.tables import AnyTable, Kind, copied, files_of, offsets_in, open_in, options_of
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.arrangement.spec import Arrangement
from warmlog.pipeline.lakehouse.job import TableJob, TableSettings
from warmlog.pipeline.lakehouse.reading import DataFile
from warmlog.pipeline.lakehouse.receipts import Receipt
from warmlog.pipeline.lakehouse.table import Committed, OutcomeUnknownError
from warmlog.pipeline.lakehouse.writing import FileStore, NewFile
from warmlog.pipeline.runner import LocalRunner
from warmlog.pipeline.source.offsets import Position
from warmlog.protocol.partitions import TopicPartition

BOTH = [(0, offset) for offset in range(60)] + [(1, offset) for offset in range(30)]


class KilledError(BaseException):
    """Nothing after it is done, as after kill -9."""


class Watched:
    """A table that calls `step` by name before and after each call of it, files included."""

    def __init__(self, table: AnyTable, step: Callable[[str], Any]) -> None:
        self._table = table
        self._step = step

    def _stepped(self, name: str, act: Callable[[], Any]) -> Any:
        self._step(f"before {name}")
        result = act()
        self._step(f"after {name}")
        return result

    @property
    def name(self) -> str:
        return self._table.name

    @property
    def version(self) -> int:
        return self._table.version

    def refresh(self) -> None:
        self._stepped("refresh", self._table.refresh)

    def positions(self, keys: Iterable[TopicPartition]) -> dict[TopicPartition, Position]:
        found: dict[TopicPartition, Position] = self._stepped("positions", lambda: self._table.positions(keys))
        return found

    @property
    def is_upserted(self) -> bool:
        return self._table.is_upserted

    def store(self) -> FileStore:
        return WatchedFiles(self._table.store(), self._stepped)

    def schema(self) -> Any:
        return self._table.schema()

    def full_schema(self) -> Any:
        return self._table.full_schema()

    @property
    def is_arranged(self) -> bool:
        return self._table.is_arranged

    def create(self, schema: Any = None) -> None:
        self._table.create(schema)

    def arrangement(self) -> Arrangement:
        return self._table.arrangement()

    def fields(self) -> list[Any]:
        return self._table.fields()

    def stored_type(self, kind: Any) -> Any:
        return self._table.stored_type(kind)

    def check_change(self, before: Any, after: Any) -> None:
        self._table.check_change(before, after)

    def plan_columns(self, schema: Any) -> None:
        self._stepped("plan_columns", lambda: self._table.plan_columns(schema))

    def commit(self, receipt: Receipt, files: Sequence[NewFile], removed: Sequence[DataFile] = ()) -> None:
        self._stepped("commit", lambda: self._table.commit(receipt, files, removed))

    def holds(self, receipt: Receipt) -> bool:
        found: bool = self._stepped("holds", lambda: self._table.holds(receipt))
        return found

    def files(self) -> list[DataFile]:
        return self._table.files()

    def commits(self) -> Iterator[Committed]:
        return self._table.commits()


class WatchedFiles:
    def __init__(self, store: FileStore, stepped: Callable[[str, Callable[[], Any]], Any]) -> None:
        self._store = store
        self._stepped = stepped

    def open(self, path: str) -> Any:
        return self._store.open(path)

    def create(self, name: str) -> Any:
        self._stepped("create", lambda: None)
        return self._store.create(name)

    def path_of(self, name: str) -> str:
        return self._store.path_of(name)

    def finished(self, name: str) -> None:
        self._stepped("finished", lambda: self._store.finished(name))

    def delete(self, name: str) -> None:
        self._stepped("delete", lambda: self._store.delete(name))


class Killer:
    """Kills at the nth step."""

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.name = ""

    def __call__(self, name: str) -> None:
        if not self.left:
            self.name = self.name or name
            raise KilledError(name)
        self.left -= 1


def once(name: str, act: Callable[[], Any]) -> Callable[[str], None]:
    """A step that acts the first time it has this name."""
    acts = iter([act])

    def step(at: str) -> None:
        if at == name:
            next(acts, lambda: None)()

    return step


@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.interop)])
def test_killed_at_every_step_it_neither_loses_nor_doubles(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    options = options_of(writer, maxOffsetsPerTrigger=40)
    steps, names = 0, set()
    while True:
        lake = tmp_path / f"{steps}"
        killer = Killer(steps)
        with suppress(KilledError):
            copied(Watched(open_in(lake, kind), killer), options)
            break
        names.add(killer.name)
        assert len(offsets_in(lake, kind)) in {0, 40, 80, 90}
        copied(open_in(lake, kind), options)
        assert offsets_in(lake, kind) == BOTH, f"killed {killer.name}, step {steps}"
        steps += 1
    assert {"before commit", "after commit", "after create", "before finished", "after refresh"} <= names


def test_killed_again_and_again_it_neither_loses_nor_doubles(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    options = options_of(writer, maxOffsetsPerTrigger=40)
    for steps in range(4, 40, 2):
        with suppress(KilledError):
            copied(Watched(open_in(tmp_path, kind), Killer(steps)), options)
    assert offsets_in(tmp_path, kind) == BOTH


def test_two_writers_at_once_add_each_offset_once(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    """The other one commits when this one has written its files, and again between its attempts."""
    options = options_of(writer, maxOffsetsPerTrigger=30)
    other = TableJob(options, open_in(tmp_path, kind), TableSettings())
    others = []

    def step(at: str) -> None:
        if at == "before commit" and len(others) < 2:
            others.append(other.step(LocalRunner()))

    receipts = copied(Watched(open_in(tmp_path, kind), step), options)
    assert (len(others), len(receipts)) == (2, 1)
    assert offsets_in(tmp_path, kind) == BOTH


def test_files_of_a_batch_that_another_job_has_committed_are_deleted(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    options = options_of(writer)
    step = once("before commit", lambda: copied(open_in(tmp_path, kind), options))
    assert copied(Watched(open_in(tmp_path, kind), step), options) == []
    assert offsets_in(tmp_path, kind) == BOTH
    assert len(list(tmp_path.rglob("*.parquet"))) == len(files_of(tmp_path, kind))


def test_writers_of_different_partitions_do_not_take_each_others_place(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    first, second = (options_of(writer, topic=None, assign=f'{{"orders":[{number}]}}') for number in (0, 1))
    other: list[Receipt] = []
    step = once("before commit", lambda: other.extend(copied(open_in(tmp_path, kind), second)))
    receipts = copied(Watched(open_in(tmp_path, kind), step), first)
    assert [receipt.rows for receipt in (*other, *receipts)] == [30, 60]
    assert offsets_in(tmp_path, kind) == BOTH


@pytest.mark.parametrize("landed", [True, False], ids=["after the commit", "before it"])
def test_a_lost_answer_is_neither_loss_nor_double(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path, landed: bool
) -> None:
    def lose() -> None:
        raise OutcomeUnknownError("the connection was closed")

    step = once("after commit" if landed else "before commit", lose)
    receipts = copied(Watched(open_in(tmp_path, kind), step), options_of(writer))
    assert [receipt.rows for receipt in receipts] == [90]
    assert offsets_in(tmp_path, kind) == BOTH


def test_a_job_whose_answer_was_lost_keeps_its_files_when_its_snapshot_is_expired(
    writer: DirectoryWriter, tmp_path: Path
) -> None:
    """The receipt is gone, but the files are in the table."""

    def expire_and_lose() -> None:
        append_foreign_row(tmp_path, "iceberg")
        table = iceberg_table(tmp_path)
        old = [each.snapshot_id for each in table.metadata.snapshots][:-1]
        table.maintenance.expire_snapshots().by_ids(old).commit()
        raise OutcomeUnknownError("the connection was closed")

    step = once("after commit", expire_and_lose)
    receipts = copied(Watched(open_in(tmp_path, "iceberg"), step), options_of(writer))
    assert [receipt.rows for receipt in receipts] == [90]
    assert offsets_in(tmp_path, "iceberg") == sorted([*BOTH, (7, 7)])


def test_a_commit_of_another_program_is_kept_and_the_same_files_go_on_top(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    steps: list[str] = []

    def step(at: str) -> None:
        steps.append(at)
        if steps.count("before commit") == 1 and at == "before commit":
            append_foreign_row(tmp_path, kind)

    receipts = copied(Watched(open_in(tmp_path, kind), step), options_of(writer))
    assert [receipt.rows for receipt in receipts] == [90]
    assert (steps.count("before commit"), steps.count("before create")) == (2, 1)
    assert offsets_in(tmp_path, kind) == sorted([*BOTH, (7, 7)])


def append_foreign_row(directory: Path, kind: Kind) -> None:
    import pyarrow as pa

    from warmlog.pipeline.source.arrow import arrow_schema

    schema = arrow_schema(("topic", "partition", "offset"))
    rows = pa.table({"topic": ["other"], "partition": [7], "offset": [7]}, schema=schema)
    if kind == "delta":
        import deltalake

        deltalake.write_deltalake(str(directory / "delta"), rows, mode="append", schema_mode="merge")
    else:
        iceberg_table(directory).append(rows)


def iceberg_table(directory: Path) -> Any:
    table = open_in(directory, "iceberg")
    assert table._table is not None
    return table._catalog.load_table("db.orders")


def test_a_table_that_always_changes_is_given_up(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    def step(at: str) -> None:
        if at == "before commit":
            append_foreign_row(tmp_path, kind)

    with pytest.raises(PipelineError, match="gave up after 20 attempts"):
        copied(Watched(open_in(tmp_path, kind), step), options_of(writer))


# -- what the libraries promise, on which the above rests -------------------------------------------------------------


def test_no_commit_goes_on_top_of_a_version_that_was_not_read(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    """Otherwise this one would append after the other program's row."""
    from warmlog.pipeline.lakehouse.table import ConflictError

    table = open_in(tmp_path, kind)
    table.positions([("orders", 0)])
    append_foreign_row(tmp_path, kind)
    with pytest.raises(ConflictError):
        table.commit(Receipt(id="1", spans={}), [])
    table.refresh()
    assert not table.holds(Receipt(id="1", spans={}))
    assert offsets_in(tmp_path, kind) == [(7, 7)]


def test_delta_refuses_the_same_transaction_of_another_writer_even_if_it_may_retry(tmp_path: Path) -> None:
    """The second fence: a program that retries cannot pass it either."""
    from deltalake import DeltaTable, Transaction
    from deltalake.exceptions import CommitFailedError
    from deltalake.transaction import CommitProperties

    open_in(tmp_path, "delta")
    first, second = (DeltaTable(str(tmp_path / "delta")) for _ in range(2))
    properties = CommitProperties(app_transactions=[Transaction("warmlog/orders/0", 10)], max_commit_retries=5)
    first.create_write_transaction([], "append", first.schema(), commit_properties=properties)
    with pytest.raises(CommitFailedError, match="Concurrent transaction"):
        second.create_write_transaction([], "append", second.schema(), commit_properties=properties)


# -- histories that are shortened, and tables that are set back -------------------------------------------------------


def test_expired_snapshots_change_nothing(writer: DirectoryWriter, tmp_path: Path) -> None:
    copied(open_in(tmp_path, "iceberg"), options_of(writer, maxOffsetsPerTrigger=20))
    expire_all_but_the_last(tmp_path)
    writer.segment([b"z"] * 5)
    (receipt,) = copied(open_in(tmp_path, "iceberg"), options_of(writer))
    assert receipt.rows == 5
    assert offsets_in(tmp_path, "iceberg") == sorted([*BOTH, *((0, offset) for offset in range(60, 65))])


def test_a_compacted_table_whose_snapshots_are_expired_is_not_taken_for_a_new_one(
    writer: DirectoryWriter, tmp_path: Path
) -> None:
    """The only snapshot has added all rows, as the first one of a table has, but it replaced others."""
    copied(open_in(tmp_path, "iceberg"), options_of(writer, maxOffsetsPerTrigger=20))
    table = iceberg_table(tmp_path)
    table.overwrite(table.scan().to_arrow())
    expire_all_but_the_last(tmp_path)
    assert copied(open_in(tmp_path, "iceberg"), options_of(writer)) == []


def test_a_snapshot_that_expires_while_a_batch_is_written_changes_nothing(
    writer: DirectoryWriter, tmp_path: Path
) -> None:
    options = options_of(writer, maxOffsetsPerTrigger=20)
    commits = []

    def step(at: str) -> None:
        if at == "before commit":
            commits.append(at)
            if len(commits) > 2:
                expire_all_but_the_last(tmp_path)

    copied(Watched(open_in(tmp_path, "iceberg"), step), options)
    assert offsets_in(tmp_path, "iceberg") == BOTH


def expire_all_but_the_last(directory: Path) -> None:
    table = iceberg_table(directory)
    current = table.metadata.current_snapshot_id
    for snapshot in table.metadata.snapshots:
        if snapshot.snapshot_id != current:
            table.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
            table = iceberg_table(directory)


def remove_property(directory: Path) -> None:
    with iceberg_table(directory).transaction() as transaction:
        transaction.remove_properties("warmlog.orders")


def test_without_the_property_the_snapshots_say_where_to_continue(writer: DirectoryWriter, tmp_path: Path) -> None:
    copied(open_in(tmp_path, "iceberg"), options_of(writer, maxOffsetsPerTrigger=20))
    append_foreign_row(tmp_path, "iceberg")
    remove_property(tmp_path)
    assert copied(open_in(tmp_path, "iceberg"), options_of(writer)) == []


def test_with_neither_the_job_does_not_guess(writer: DirectoryWriter, tmp_path: Path) -> None:
    copied(open_in(tmp_path, "iceberg"), options_of(writer, maxOffsetsPerTrigger=20))
    append_foreign_row(tmp_path, "iceberg")
    expire_all_but_the_last(tmp_path)
    remove_property(tmp_path)
    with pytest.raises(PipelineError, match="its offsets cannot be determined"):
        copied(open_in(tmp_path, "iceberg"), options_of(writer))


def test_a_table_of_others_whose_snapshots_are_expired_takes_a_topic(writer: DirectoryWriter, tmp_path: Path) -> None:
    open_in(tmp_path, "iceberg")
    append_foreign_row(tmp_path, "iceberg")
    append_foreign_row(tmp_path, "iceberg")
    expire_all_but_the_last(tmp_path)
    copied(open_in(tmp_path, "iceberg"), options_of(writer))
    assert offsets_in(tmp_path, "iceberg") == [*BOTH, (7, 7), (7, 7)]


def test_a_table_that_was_rolled_back_is_not_continued_with_a_gap(writer: DirectoryWriter, tmp_path: Path) -> None:
    copied(open_in(tmp_path, "iceberg"), options_of(writer, maxOffsetsPerTrigger=30))
    table = iceberg_table(tmp_path)
    table.manage_snapshots().set_current_snapshot(snapshot_id=table.metadata.snapshots[0].snapshot_id).commit()
    with pytest.raises(PipelineError, match="was rolled back"):
        copied(open_in(tmp_path, "iceberg"), options_of(writer))
    remove_property(tmp_path)
    copied(open_in(tmp_path, "iceberg"), options_of(writer))
    assert offsets_in(tmp_path, "iceberg") == BOTH


def test_a_table_that_was_rolled_back_to_before_the_topic_is_not_continued(
    writer: DirectoryWriter, tmp_path: Path
) -> None:
    open_in(tmp_path, "iceberg")
    append_foreign_row(tmp_path, "iceberg")
    copied(open_in(tmp_path, "iceberg"), options_of(writer))
    table = iceberg_table(tmp_path)
    table.manage_snapshots().set_current_snapshot(snapshot_id=table.metadata.snapshots[0].snapshot_id).commit()
    with pytest.raises(PipelineError, match="took back rows of orders-0 from offset 0, orders-1 from offset 0"):
        copied(open_in(tmp_path, "iceberg"), options_of(writer))


def test_checkpoints_and_a_deleted_log_keep_deltas_positions(writer: DirectoryWriter, tmp_path: Path) -> None:
    import deltalake

    copied(open_in(tmp_path, "delta"), options_of(writer, maxOffsetsPerTrigger=20))
    deltalake.DeltaTable(str(tmp_path / "delta")).create_checkpoint()
    for log in sorted((tmp_path / "delta" / "_delta_log").glob("*.json"))[:-1]:
        log.unlink()
    writer.segment([b"z"] * 5)
    (receipt,) = copied(open_in(tmp_path, "delta"), options_of(writer))
    assert receipt.rows == 5
    assert len(offsets_in(tmp_path, "delta")) == 95


def test_a_table_that_is_replaced_while_the_job_runs_is_noticed(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    import shutil

    options = options_of(writer, maxOffsetsPerTrigger=40)
    job = TableJob(options, open_in(tmp_path, kind), TableSettings())
    job.step(LocalRunner())
    if kind == "delta":
        shutil.rmtree(tmp_path / "delta")
    else:
        open_in(tmp_path, kind)._catalog.drop_table("db.orders")  # type: ignore[union-attr]
    open_in(tmp_path, kind)
    with pytest.raises(PipelineError, match=r"replaced|not match|UUID"):
        job.step(LocalRunner())

"""Tables of topics: their rows, columns and files, losses that are noticed, and the command."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner

from tests.golden.partitions import read_seen
from tests.pipeline.conftest import NOW_MS, DirectoryWriter, register
from tests.pipeline.lakehouse.tables import (
    Kind,
    arguments_of,
    catalog_of,
    copied,
    files_of,
    offsets_in,
    open_in,
    options_of,
    query,
)
from tests.pipeline.local import damage, plan
from tests.pipeline.source.test_recreated import write_epochs
from warmlog.broker.log.directory.checkpoint import PARTITION_METADATA, write_topic_id
from warmlog.broker.log.io.disk import Disk
from warmlog.cli.pipeline.table import table as table_command
from warmlog.client.blocking import Client
from warmlog.pipeline.errors import DataLossError, PipelineError
from warmlog.pipeline.lakehouse.delta.actions import stats_of
from warmlog.pipeline.lakehouse.job import TableJob, TableSettings
from warmlog.pipeline.lakehouse.pace import Pace, Targets
from warmlog.pipeline.lakehouse.receipts import parse_receipt
from warmlog.pipeline.lakehouse.writing import FileSequence, LocalFiles, NewFile, ParquetRules
from warmlog.pipeline.runner import LocalRunner
from warmlog.pipeline.source.options import COLUMNS, read_options
from warmlog.testing import Broker

WritePartition = Callable[..., DirectoryWriter]


def test_rows_are_those_of_the_source(kafka_fixtures: Path, kind: Kind, tmp_path: Path) -> None:
    """Directories that Kafka wrote, with headers, nulls, codecs and both kinds of timestamps."""
    assigned = json.dumps({"append-time": [0], "keyed": [0, 1, 2, 3], "plain": [0], "transactional": [0], "zstd": [0]})
    given = {"topic": None, "assign": assigned, "includeHeaders": "true", "isolationLevel": "read_committed"}
    source = plan(kafka_fixtures / "clean", **given)
    copied(open_in(tmp_path, kind), source.options)
    names = ", ".join(f'"{name}"' for name in COLUMNS)
    sql = f'SELECT {names} FROM data ORDER BY topic, "partition", "offset"'
    assert [dict(zip(COLUMNS, row, strict=True)) for row in query(tmp_path, kind, sql)] == source.read()


def test_each_run_copies_what_is_new(
    writer: DirectoryWriter, write_partition: WritePartition, kind: Kind, tmp_path: Path
) -> None:
    (first,) = copied(open_in(tmp_path, kind), options_of(writer))
    assert copied(open_in(tmp_path, kind), options_of(writer)) == []
    writer.segment([b"c"] * 5)
    write_partition(partition=2).segment([b"d"] * 3)
    table = open_in(tmp_path, kind)
    (second,) = copied(table, options_of(writer))
    assert (first.rows, second.rows) == (90, 8)
    spans = {key: (span.first, span.end.offset) for key, span in second.spans.items()}
    assert spans == {("orders", 0): (60, 65), ("orders", 2): (0, 3)}
    table.refresh()
    assert [commit.receipt for commit in table.commits()] == [second, first]
    assert parse_receipt(second.text(), "test") == second
    assert len(offsets_in(tmp_path, kind)) == 98


def test_a_table_of_others_gets_the_rows_beside_its_own(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    import pyarrow as pa

    from warmlog.pipeline.source.arrow import arrow_schema

    schema = pa.schema([pa.field("note", pa.string()), *reversed(arrow_schema(COLUMNS))])
    create(tmp_path, kind, schema)
    copied(open_in(tmp_path, kind), options_of(writer))
    assert len(offsets_in(tmp_path, kind)) == 90
    assert read_by_library(tmp_path, kind).column("note").null_count == 90


def create(directory: Path, kind: Kind, schema: Any) -> None:
    if kind == "delta":
        import deltalake

        deltalake.DeltaTable.create(str(directory / "delta"), schema=schema)
        return
    from pyiceberg.catalog import load_catalog

    where = catalog_of(directory)
    catalog = load_catalog("default", type="sql", uri=where["catalog"], warehouse=where["warehouse"])
    catalog.create_namespace("db")
    catalog.create_table("db.orders", schema)


def read_by_library(directory: Path, kind: Kind) -> Any:
    if kind == "delta":
        import deltalake

        return deltalake.DeltaTable(str(directory / "delta")).to_pyarrow_table()
    table = open_in(directory, "iceberg", ())._table
    return table.scan().to_arrow()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offset": "int32"}, "column offset is int32, and the topic's is int64"),
        ({"headers": None}, r"has no column headers: add it .* or choose others by -o columns"),
        ({"note": "string not null"}, "column note must not be null, and rows may have no value for it: make it null"),
        ({"key": "binary not null"}, r"column key must not be null.* \(ALTER TABLE … ALTER COLUMN key DROP NOT NULL\)"),
        ({"value": "binary not null"}, "column value must not be null, and rows may have no value for it"),
        ({"headers": "headers not null"}, "column headers must not be null, and rows may have no value for it"),
        ({"headers": "headers"}, r"column headers\.element\.value must not be null"),
    ],
)
def test_a_table_that_cannot_take_the_rows_is_refused(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path, change: dict[str, str | None], message: str
) -> None:
    import pyarrow as pa

    from warmlog.pipeline.source.arrow import TYPES

    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary(), nullable=False)])
    types = {
        "int32": pa.int32(),
        "string not null": pa.string(),
        "binary not null": pa.binary(),
        "headers not null": TYPES["headers"],
        "headers": pa.list_(pa.field("element", header)),
    }
    fields = {name: pa.field(name, kind_of) for name, kind_of in TYPES.items()}
    for name, text in change.items():
        fields.pop(name, None)
        if text is not None:
            fields[name] = pa.field(name, types[text], nullable="not null" not in text)
    create(tmp_path, kind, pa.schema(list(fields.values())))
    with pytest.raises(PipelineError, match=message):
        copied(open_in(tmp_path, kind), options_of(writer))


def test_columns_that_have_a_value_in_each_row_may_be_required(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    import pyarrow as pa

    from warmlog.pipeline.source.arrow import TYPES

    nullable = ("key", "value", "headers")
    create(tmp_path, kind, pa.schema([pa.field(name, type_of, name in nullable) for name, type_of in TYPES.items()]))
    writer.segment([None, b"x"])  # type: ignore[list-item]
    copied(open_in(tmp_path, kind), options_of(writer))
    assert len(offsets_in(tmp_path, kind)) == 92
    assert read_by_library(tmp_path, kind).column("value").null_count == 1
    assert read_by_library(tmp_path, kind).schema.field("offset").nullable is False
    with pytest.raises(PipelineError, match="column timestamp must not be null, and rows may have no value for it"):
        columns = "key,value,topic,partition,offset,timestampType,headers"
        copied(open_in(tmp_path, kind, columns.split(",")), options_of(writer, columns=columns))


def test_a_delta_table_whose_header_keys_are_required_gets_rows(writer: DirectoryWriter, tmp_path: Path) -> None:
    """As Spark declares the headers of its source for Kafka."""
    import pyarrow as pa

    from warmlog.pipeline.source.arrow import TYPES

    header = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
    types = {**TYPES, "headers": pa.list_(pa.field("element", header, nullable=False))}
    create(tmp_path, "delta", pa.schema([pa.field(name, type_of) for name, type_of in types.items()]))
    copied(open_in(tmp_path, "delta"), options_of(writer))
    assert read_by_library(tmp_path, "delta").num_rows == 90


def test_a_delta_table_with_rules_that_are_not_kept_is_refused(tmp_path: Path) -> None:
    import deltalake

    open_in(tmp_path, "delta")
    table = deltalake.DeltaTable(str(tmp_path / "delta"))
    table.alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 1 days"})
    with pytest.raises(PipelineError, match=r"has delta\.setTransactionRetentionDuration, which is not supported"):
        open_in(tmp_path, "delta")
    table.alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 100 years"})
    table.alter.add_constraint({"positive": '"offset" >= 0'})
    with pytest.raises(PipelineError, match="which is not supported"):
        open_in(tmp_path, "delta")


@pytest.mark.parametrize("columns", ["key,value", "partition,value", "offset"])
def test_columns_without_which_no_row_can_be_accounted_for_are_needed(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path, columns: str
) -> None:
    with pytest.raises(PipelineError, match="a table needs the columns"):
        copied(open_in(tmp_path, kind), options_of(writer, columns=columns, includeHeaders=None))


# -- losses -----------------------------------------------------------------------------------------------------------


def test_records_that_were_deleted_before_they_were_copied_are_an_error_or_counted(
    write_partition: WritePartition, kind: Kind, tmp_path: Path
) -> None:
    writer = write_partition()
    first = writer.segment([b"a"] * 10)
    copied(open_in(tmp_path, kind), options_of(writer))
    gone = writer.segment([b"b"] * 10)
    writer.segment([b"c"] * 10)
    for log in (first, gone):
        os.unlink(log)
    with pytest.raises(
        DataLossError, match=r"offsets 10 to 19 were deleted .*failOnDataLoss=false copies what is left"
    ):
        copied(open_in(tmp_path, kind), options_of(writer))
    (receipt,) = copied(open_in(tmp_path, kind), options_of(writer, failOnDataLoss="false"))
    assert (receipt.rows, receipt.lost, receipt.lost_before) == (10, 10, {("orders", 0): 10})
    assert offsets_in(tmp_path, kind) == [(0, offset) for offset in (*range(10), *range(20, 30))]


def test_a_recreated_topic_is_an_error_or_copied_from_its_start(
    write_partition: WritePartition, kind: Kind, tmp_path: Path
) -> None:
    writer = write_partition()
    log = writer.segment([b"old"] * 10)
    recreate(writer, UUID(int=7))
    copied(open_in(tmp_path, kind), options_of(writer))
    log.unlink()
    writer.next_offset = 0
    writer.segment([b"new"] * 12)
    recreate(writer, UUID(bytes=bytes(range(200, 216))))
    with pytest.raises(
        DataLossError, match=r"created again \(topic id yMnKy8zNzs_Q0dLT1NXW1w, before AAAAAAAAAAAAAAAAAAAABw"
    ):
        copied(open_in(tmp_path, kind), options_of(writer))
    (receipt,) = copied(open_in(tmp_path, kind), options_of(writer, failOnDataLoss="false"))
    assert receipt.rows == 12
    assert [span.end.topic_id for span in receipt.spans.values()] == ["yMnKy8zNzs_Q0dLT1NXW1w"]
    assert copied(open_in(tmp_path, kind), options_of(writer)) == []


def recreate(writer: DirectoryWriter, topic_id: UUID) -> None:
    write_topic_id(Disk(), str(writer.directory / PARTITION_METADATA), topic_id, sync=False)
    register(writer.directory.parent, "orders", 1, topic_id)


def test_a_truncated_tail_is_an_error_or_copied_again(
    write_partition: WritePartition, kind: Kind, tmp_path: Path
) -> None:
    writer = write_partition()
    write_epochs(writer, (0, 0, 20), (3, 20, 100))
    copied(open_in(tmp_path, kind), options_of(writer))
    write_epochs(writer, (0, 0, 20), (3, 20, 60), (5, 60, 150))
    with pytest.raises(DataLossError, match="orders-0: offsets 60 to 99 were truncated and written again"):
        copied(open_in(tmp_path, kind), options_of(writer))
    (receipt,) = copied(open_in(tmp_path, kind), options_of(writer, failOnDataLoss="false"))
    ((_, span),) = receipt.spans.items()
    assert (span.first, span.end.offset, span.end.leader_epoch, receipt.lost) == (60, 150, 5, 40)


def test_a_shorter_log_is_an_error(write_partition: WritePartition, kind: Kind, tmp_path: Path) -> None:
    writer = write_partition()
    writer.segment([b"a"] * 10)
    last = writer.segment([b"b"] * 10)
    copied(open_in(tmp_path, kind), options_of(writer))
    last.write_bytes(b"")
    with pytest.raises(DataLossError, match="offset 20 no longer exists: the log ends at 10"):
        copied(open_in(tmp_path, kind), options_of(writer))


def test_damage_is_an_error_or_named_in_the_receipt(
    write_partition: WritePartition, kind: Kind, tmp_path: Path
) -> None:
    writer = write_partition()
    log = writer.segment([b"a"] * 10, [b"b"] * 10)
    damage(log)
    with pytest.raises(PipelineError, match=f"{log}: damaged batch at position 0"):
        copied(open_in(tmp_path, kind), options_of(writer))
    assert list(tmp_path.rglob("*.parquet")) == []
    (receipt,) = copied(open_in(tmp_path, kind), options_of(writer, onCorrupt="skip"))
    assert (receipt.rows, [f"{log}: damaged" in each for each in receipt.damaged]) == (10, [True])
    with pytest.raises(PipelineError, match="onCorrupt=stop is not supported for tables"):
        copied(open_in(tmp_path, kind), options_of(writer, onCorrupt="stop"))


class FullDisk(LocalFiles):
    """Files that are all the device that has no space."""

    def create(self, name: str) -> Any:
        Path(self.directory, name).touch()
        return open("/dev/full", "wb")


@pytest.mark.parametrize("rows", [1, 100_000])
def test_a_full_disk_is_named_with_the_file_and_leaves_none(tmp_path: Path, rows: int) -> None:
    import pyarrow as pa

    table = pa.table({"offset": range(rows), "value": [os.urandom(20) for _ in range(rows)]})
    rules = ParquetRules(store=FullDisk(str(tmp_path)), schema=table.schema, file_bytes=1)
    with pytest.raises(OSError, match="No space left on device: '/dev/full'") as raised, FileSequence(rules) as files:
        for batch in table.to_batches():
            files.write(batch)
    assert pickle.loads(pickle.dumps(raised.value)).filename == "/dev/full"  # as from a worker
    assert list(tmp_path.iterdir()) == []


# -- sizes ------------------------------------------------------------------------------------------------------------


def test_small_partitions_share_a_file(write_partition: WritePartition, kind: Kind, tmp_path: Path) -> None:
    for partition in range(20):
        writer = write_partition(partition=partition)
        writer.segment([b"x"] * 3)
    copied(open_in(tmp_path, kind), options_of(writer))
    assert len(files_of(tmp_path, kind)) == 1
    assert len(offsets_in(tmp_path, kind)) == 60


def test_rows_of_small_partitions_hold_no_memory_of_larger_ones() -> None:
    """A row group may wait for rows of a thousand partitions."""
    from warmlog.pipeline.source.arrow import ArrowDecoder
    from warmlog.protocol.records.arrow.columns import Wanted
    from warmlog.protocol.records.batch import headers
    from warmlog.protocol.records.builder import build_batch

    decoder = ArrowDecoder("orders", 0, COLUMNS)
    data = memoryview(build_batch([(NOW_MS, b"key", b"value", ())] * 10, base_offset=0))
    for position, header in headers(data):
        decoder.add(data, position, header, Wanted(0, 9, 0, NOW_MS))
    assert decoder.take().get_total_buffer_size() < 4096


def test_a_file_that_has_its_size_is_followed_by_another(
    write_partition: WritePartition, kind: Kind, tmp_path: Path
) -> None:
    writer = write_partition()
    for _ in range(6):
        writer.segment([os.urandom(1 << 20) for _ in range(8)])
    copied(open_in(tmp_path, kind), options_of(writer, maxSplitBytes=1 << 30), TableSettings(file_bytes=10 << 20))
    assert len(files_of(tmp_path, kind)) > 2
    assert offsets_in(tmp_path, kind) == [(0, offset) for offset in range(48)]


def test_a_commit_takes_what_its_targets_allow() -> None:
    pace = Pace(Targets(rows=1000, bytes=10_000, seconds=10), bytes_per_offset=100)
    assert pace.offsets == 100
    pace.measured(100, 1000, 1.0)
    assert pace.offsets == 400, "files are a tenth of that, but it grows by four at most"
    pace.measured(400, 4000, 8.0)
    assert pace.offsets == 500, "ten seconds take so many"
    pace.measured(500, 500, 1.0)
    assert pace.offsets == 1000, "the rows"
    pace.measured(1000, 10_000_000, 1.0)
    assert pace.offsets == 1, "at least one"
    pace.measured(0, 0, 0.0)
    assert Pace(Targets(rows=7)).offsets == 7


def test_commits_keep_to_their_rows(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    receipts = copied(open_in(tmp_path, kind), options_of(writer), TableSettings(targets=Targets(rows=50)))
    assert [receipt.rows for receipt in receipts] == [50, 40]


def test_statistics_of_a_file_are_deltas() -> None:
    bounds = {"topic": ("a", "b"), "partition": (0, 3), "offset": (5, 9), "timestamp": (-1, NOW_MS * 1000 + 1)}
    file = NewFile(name="x", size=1, rows=4, bounds=bounds)
    assert stats_of(file, ("topic", "partition", "offset", "timestamp")) == {
        "numRecords": 4,
        "minValues": {"topic": "a", "partition": 0, "offset": 5, "timestamp": "1969-12-31T23:59:59.999Z"},
        "maxValues": {"topic": "b", "partition": 3, "offset": 9, "timestamp": "2023-11-14T22:13:20.001Z"},
        "nullCount": {"topic": 0, "partition": 0, "offset": 0, "timestamp": 0},
    }
    assert stats_of(file, ("offset",))["maxValues"] == {"offset": 9}
    assert stats_of(file, ()) == stats_of(file, ("offset", "price")) == {"numRecords": 4}
    late = {"timestamp": (0, 1 << 62)}
    assert stats_of(NewFile(name="x", size=1, rows=4, bounds=late), ("timestamp",)) == {"numRecords": 4}


# -- brokers, and the command -----------------------------------------------------------------------------------------


def test_a_broker_that_is_away_is_waited_for_and_the_group_follows(kind: Kind, tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path / "data") as broker:

        def produce(count: int) -> None:
            with Client(broker.native) as client:
                client.produce_many("orders", [b"a"] * count, partition=0)

        with Client(broker.native) as client:
            client.create_topic("orders", partitions=2)
        produce(10)
        turns = iter([broker.restart, broker.stop, broker.start, lambda: produce(5)])
        given = {"bootstrap": broker.native, "topic": "orders", "group": "lake", "includeHeaders": "true"}
        job = TableJob(read_options(given), open_in(tmp_path, kind), TableSettings())

        def wait() -> None:
            next(turns, lambda: None)()  # a broker under load may be away once more

        receipts = job.run_every(LocalRunner(), wait)
        assert [next(receipts).rows for _ in range(2)] == [10, 5]
        while job._group.is_behind:  # the coordinator may still be loading
            assert job.step(LocalRunner()) is None
        with Client(broker.native) as client:
            (group,) = client.describe_groups("lake")
        assert {(each.partition, each.offset, each.lag) for each in group.positions} == {(0, 15, 0), (1, 0, 0)}
        receipts.close()
    assert offsets_in(tmp_path, kind) == [(0, offset) for offset in range(15)]


def invoke(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(table_command, arguments)
    assert result.exit_code == status, result.output
    return result.output


def test_the_command_copies_until_the_end(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    where = [*arguments_of(tmp_path, kind), "--path", str(writer.directory.parent), "--until-end"]
    output = invoke("orders", *where, "--report", str(tmp_path / "report.json"))
    assert "committed 90 records of 90 offsets in 2 partitions" in output
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["job"], report["rows"], report["commits"]) == ("table", 90, 1)
    assert "nothing new" in invoke("orders", *where)
    writer.segment([b"z"] * 5)
    receipt = json.loads(invoke("orders", *where, "--json"))
    assert (receipt["rows"], receipt["topics"]["orders"][""]) == (5, {"0": [60, 65, None]})
    assert len(offsets_in(tmp_path, kind)) == 95


def test_the_command_leaves_out_aborted_transactions(kafka_fixtures: Path, kind: Kind, tmp_path: Path) -> None:
    where = [*arguments_of(tmp_path, kind), "--path", str(kafka_fixtures / "clean"), "--until-end"]
    invoke("transactional", *where, "-o", 'assign={"transactional":[0]}')
    seen = read_seen("read_committed/transactional-0").records
    assert offsets_in(tmp_path, kind) == [(0, record.offset) for record in seen]


def test_wrong_targets_are_named(writer: DirectoryWriter, tmp_path: Path) -> None:
    source = ["--path", str(writer.directory.parent), "--until-end"]
    assert "the table has no name" in invoke("orders", "", *source, status=1)
    given = ["--storage", "AWS_REGION=x"]
    local = invoke("orders", str(tmp_path), *given, *source, status=1)
    assert "is a local directory: storage options (AWS_REGION) are for object stores" in local
    assert "name the catalog, too (--catalog)" in invoke("orders", "x", "--warehouse", "y", *source, status=1)
    assert "is not NAMESPACE.TABLE" in invoke(
        "orders", "orders", "--catalog", f"sqlite:///{tmp_path}/catalog.db", *source, status=1
    )
    assert "catalog nowhere" in invoke("orders", "db.orders", "--catalog", "nowhere", *source, status=1)
    output = invoke("nothing", str(tmp_path / "delta"), *source, status=1)
    assert "has no topic nothing" in output


def test_spark_writes_the_same_rows(writer: DirectoryWriter, kind: Kind, tmp_path: Path, on_this_spark: None) -> None:
    where = [*arguments_of(tmp_path, kind), "--path", str(writer.directory.parent), "--until-end", "--engine", "spark"]
    assert "committed 90 records" in invoke("orders", *where, "-o", "minPartitions=4")
    assert offsets_in(tmp_path, kind) == [(0, at) for at in range(60)] + [(1, at) for at in range(30)]

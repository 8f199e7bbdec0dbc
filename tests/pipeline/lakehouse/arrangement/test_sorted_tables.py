"""Tables whose files are sorted by other columns than the offset: what was written stays provable."""

from pathlib import Path

import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.arrangement.arranged import arranged_in, iceberg_catalog, listed, read
from tests.pipeline.lakehouse.tables import Kind, copied, offsets_in, open_in, options_of
from tests.pipeline.lakehouse.test_audit import altered, audited, change, dropped, faults, file_with, messages, total
from warmlog.pipeline.errors import PipelineError

BOTH = [(0, offset) for offset in range(60)] + [(1, offset) for offset in range(30)]


def test_rows_of_each_file_are_sorted(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    receipts = copied(arranged_in(tmp_path, kind, sort_by="value,key"), options_of(writer, maxOffsetsPerTrigger=45))
    assert len(receipts) == 2
    files = listed(tmp_path, kind)
    for file in files:
        pairs = list(zip(file.values("value"), file.values("key"), strict=True))
        assert pairs == sorted(pairs)
    assert any(file.values("offset") != sorted(file.values("offset")) for file in files)
    assert offsets_in(tmp_path, kind) == BOTH
    audit = audited(tmp_path, kind, options_of(writer))
    assert (total(audit).in_log, audit.findings) == (90, [])


def test_receipts_are_those_of_an_unsorted_table(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    """Digests depend on the rows, not on their files."""
    plain = copied(open_in(tmp_path / "plain", kind), options_of(writer))
    for number, terms in enumerate([("", "key"), ("partition", ""), ("day(timestamp), partition", "value")]):
        table = arranged_in(tmp_path / str(number), kind, *terms)
        assert [receipt.proofs for receipt in copied(table, options_of(writer))] == [each.proofs for each in plain]


def test_iceberg_says_that_files_are_sorted(writer: DirectoryWriter, tmp_path: Path) -> None:
    copied(arranged_in(tmp_path, "iceberg", sort_by="key"), options_of(writer))
    table = iceberg_catalog(tmp_path).load_table("db.orders")
    (field,) = table.sort_order().fields
    assert (table.schema().find_column_name(field.source_id), str(field.transform)) == ("key", "identity")
    assert [task.file.sort_order_id for task in table.scan().plan_files()] == [table.sort_order().order_id]


def test_the_order_of_a_table_is_kept_without_the_option(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    arranged_in(tmp_path, kind, sort_by="key")
    copied(open_in(tmp_path, kind), options_of(writer))
    for file in listed(tmp_path, kind):
        assert file.values("key") == sorted(file.values("key"))


def test_the_order_of_another_program_is_kept(writer: DirectoryWriter, tmp_path: Path) -> None:
    """Descending, by a transform and a column."""
    from pyiceberg.transforms import BucketTransform, IdentityTransform

    open_in(tmp_path, "iceberg")
    table = iceberg_catalog(tmp_path).load_table("db.orders")
    with table.update_sort_order() as order:
        order.asc("key", BucketTransform(2))
        order.desc("offset", IdentityTransform())
    copied(open_in(tmp_path, "iceberg"), options_of(writer))
    (file,) = listed(tmp_path, "iceberg")
    bucket = BucketTransform(2).transform(table.schema().find_field("key").field_type)
    keys = [(bucket(key), -offset) for key, offset in zip(file.values("key"), file.values("offset"), strict=True)]
    assert keys == sorted(keys)
    assert {key for key, _ in keys} == {0, 1}


def test_faults_of_sorted_files_are_named(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    copied(arranged_in(tmp_path, kind, "partition", sort_by="value,key"), options_of(writer))
    first, second = file_with(tmp_path, kind, 0, 7), file_with(tmp_path, kind, 1, 3)
    assert first != second
    change(first, dropped(0, 7))
    change(second, altered(1, 3, "key"))
    audit = audited(tmp_path, kind, options_of(writer))
    assert faults(audit) == {"missing": 1, "altered": 1}
    assert sorted(messages(audit)) == [
        f"offset 3 is not as in the log: {second}",
        f"offset 7 is in the log, but not in the table: {first}",
    ]


@pytest.mark.parametrize(
    ("partition_by", "sort_by", "message"),
    [
        (
            "day(timestamp)",
            "",
            r"exists and is partitioned by partition, not by day\(timestamp\): leave out --partition",
        ),
        ("", "value", "exists and is sorted by key, not by value: leave out --sort-by, or name a new table"),
        ("partition, topic", "", "not by partition, topic"),
    ],
)
def test_a_table_has_the_arrangement_it_was_made_with(
    kind: Kind, tmp_path: Path, partition_by: str, sort_by: str, message: str
) -> None:
    arranged_in(tmp_path, kind, "partition", "key")
    arranged_in(tmp_path, kind, "partition", "key")
    with pytest.raises(PipelineError, match=message):
        arranged_in(tmp_path, kind, partition_by, sort_by)


@pytest.mark.parametrize(
    ("partition_by", "sort_by", "message"),
    [
        ("nothing", "", "--partition-by nothing: .* would have no column nothing, but key, value, topic"),
        ("", "nothing", "--sort-by nothing: .* would have no column nothing"),
        ("timestamp", "", r"cannot be partitioned by timestamp, because .* but by day\(timestamp\)"),
        ("day(offset)", "", r"cannot be partitioned by day\(offset\), because offset is int64"),
        ("headers", "", "cannot be partitioned by headers, because headers is list"),
        ("", "headers", "cannot be sorted by headers, because it is list"),
    ],
)
def test_a_term_that_a_new_table_cannot_have_is_refused(
    kind: Kind, tmp_path: Path, partition_by: str, sort_by: str, message: str
) -> None:
    with pytest.raises(PipelineError, match=message):
        arranged_in(tmp_path, kind, partition_by, sort_by)
    if kind == "delta":
        assert not (tmp_path / "delta" / "_delta_log").exists()
    else:
        assert not iceberg_catalog(tmp_path).table_exists("db.orders")


@pytest.mark.parametrize("term", ["bucket(4, key)", "truncate(2, key)", "key"])
def test_delta_has_no_hashes_and_no_partitions_by_bytes(tmp_path: Path, term: str) -> None:
    with pytest.raises(PipelineError, match=r"partition|Delta tables have no partitions by .*: name a column, or year"):
        arranged_in(tmp_path, "delta", term)


def test_queries_of_a_sorted_table_return_all_rows(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    copied(arranged_in(tmp_path, kind, "partition", "key"), options_of(writer, maxOffsetsPerTrigger=20))
    rows = read(tmp_path, kind)
    assert sorted(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True)) == BOTH

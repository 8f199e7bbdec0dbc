"""Terms of partitions and orders: their texts, and their values."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.arrangement.delta import partition_text
from warmlog.pipeline.lakehouse.arrangement.spec import (
    Arrangement,
    PartitionField,
    SortField,
    Term,
    Transform,
    wanted_of,
)
from warmlog.pipeline.lakehouse.arrangement.values import Terms, transformed

US = pa.timestamp("us", "UTC")


def test_terms_are_separated_by_commas_or_repeated() -> None:
    wanted = wanted_of(["partition, day(timestamp)", "BUCKET(16,key) , truncate( 4, value )"], ["key,offset"])
    assert [str(term) for term in wanted.partition] == [
        "partition",
        "day(timestamp)",
        "bucket(16, key)",
        "truncate(4, value)",
    ]
    assert [term.name for term in wanted.partition] == ["partition", "timestamp_day", "key_bucket_16", "value_trunc_4"]
    assert wanted.sort == (Term("key"), Term("offset"))


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ("", "'' is none of COLUMN, year"),
        ("a,,b", "'' is none of COLUMN"),
        ("week(timestamp)", r"'week\(timestamp\)' is none of"),
        ("bucket(key)", r"'bucket\(key\)' is none of"),
        ("day(3, timestamp)", "is none of"),
        ("bucket(0, key)", r"bucket\(0, key\) needs a number from 1 to 2,147,483,647"),
        ("truncate(99999999999, key)", "needs a number"),
        ("day(timestamp", "is none of"),
        ("key,key", "names key twice"),
        ("bucket(1, a), bucket(1, a)", "twice"),
        ("day(a), a_day", "two partition fields would have the name a_day"),
    ],
)
def test_what_is_no_term_is_refused(terms: str, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        wanted_of([terms], [])


def test_rows_are_sorted_by_columns_only() -> None:
    with pytest.raises(PipelineError, match=r"sorts by columns, and day\(timestamp\) is none: --sort-by timestamp"):
        wanted_of([], ["day(timestamp)"])


# The hashes are those of the Iceberg specification, appendix B.
@pytest.mark.parametrize(
    ("value", "kind", "hashed"),
    [
        (34, pa.int32(), 2017239379),
        (34, pa.int64(), 2017239379),
        (Decimal("14.20"), pa.decimal128(9, 2), -500754589),
        (date(2017, 11, 16), pa.date32(), -653330422),
        (datetime(2017, 11, 16, 22, 31, 8, tzinfo=UTC), US, -2047944441),
        ("iceberg", pa.string(), 1210000089),
        (b"\x00\x01\x02\x03", pa.binary(), -188683207),
    ],
)
def test_buckets_are_those_of_the_specification(value: Any, kind: Any, hashed: int) -> None:
    buckets = transformed(Term("c", "bucket", 1000), pa.array([value, None, value], kind))
    expected = (hashed & 0x7FFFFFFF) % 1000
    assert buckets.to_pylist() == [expected, None, expected]


@pytest.mark.parametrize(
    ("kind", "value", "width", "expected"),
    [
        (pa.int64(), -1, 10, -10),
        (pa.int64(), 19, 10, 10),
        (pa.string(), "äöüß", 2, "äö"),
        (pa.binary(), b"abcdef", 3, b"abc"),
        (pa.decimal128(9, 2), Decimal("10.65"), 50, Decimal("10.50")),
    ],
)
def test_truncated_values_are_those_of_the_specification(kind: Any, value: Any, width: int, expected: Any) -> None:
    truncated = transformed(Term("c", "truncate", width), pa.array([value, None], kind))
    assert truncated.to_pylist() == [expected, None]


@pytest.mark.parametrize(
    ("transform", "times", "dates"), [("year", [-1, 0], [-1]), ("month", [-1, 0], [-1]), ("day", [-1, 0], [-1])]
)
def test_times_before_1970_are_rounded_down(transform: Transform, times: list[int], dates: list[int]) -> None:
    assert transformed(Term("t", transform), pa.array([-1, 0], US)).to_pylist() == times
    assert transformed(Term("t", transform), pa.array([date(1969, 12, 31)])).to_pylist() == dates


def test_hours_are_counted_from_1970() -> None:
    hours = transformed(Term("t", "hour"), pa.array([-1, 0, 3_599_999_999, 3_600_000_000, None], US))
    assert hours.to_pylist() == [-1, 0, 0, 1, None]


def delta(transform: Transform, kind: str, times_us: list[int | None]) -> list[str | None]:
    field = PartitionField(term=Term("t", transform), name="p", column=kind)
    terms = Terms(Arrangement(partition=(field,)), ["t"])
    table = terms.added(pa.table({"t": pa.array(times_us, US)}))
    return [partition_text(kind, value) for value in table.column("partition 0").to_pylist()]


def test_times_that_delta_has_no_date_for_are_null() -> None:
    late = 253_402_300_800_000_000  # the year 10000
    assert delta("day", "date32[day]", [0, late - 1, late, None]) == ["1970-01-01", "9999-12-31", None, None]
    assert delta("hour", "string", [-1, late]) == ["1969-12-31-23", None]
    assert delta("month", "string", [0, late]) == ["1970-01", None]
    assert delta("year", "int32", [0, late]) == ["1970", None]


def test_an_hour_that_is_no_number_of_32_bits_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"so far from 1970 that hour\(t\) has more than 32 bits"):
        transformed(Term("t", "hour"), pa.array([(1 << 63) - 1], US))


def test_a_number_that_would_become_less_than_the_least_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"a row has a n for which truncate\(10, n\) has no value of its type"):
        transformed(Term("n", "truncate", 10), pa.array([-(1 << 63)], pa.int64()))


def test_an_empty_text_is_no_partition_of_delta() -> None:
    field = PartitionField(term=Term("c"), name="c", column="string")
    with pytest.raises(PipelineError, match="a row has an empty c, which Delta tables cannot tell from null"):
        Terms(Arrangement(partition=(field,)), ["c"]).added(pa.table({"c": ["a", ""]}))


def test_orders_have_texts() -> None:
    assert str(SortField(term=Term("key"))) == "key"
    assert str(SortField(term=Term("key"), descending=True, nulls_last=True)) == "key desc"
    assert str(SortField(term=Term("key"), nulls_last=True)) == "key nulls last"

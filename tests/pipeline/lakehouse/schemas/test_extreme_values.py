"""Values at the limits of formats and tables: times after the year 9999, large numbers, text of numbers."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.schemas.decoded import V1, audited_with, decoded, encoded, order, rows_in, schema_file
from tests.pipeline.lakehouse.tables import Kind, copied, files_of, offsets_in, open_in, options_of, query
from tests.pipeline.lakehouse.test_audit import audited, total
from tests.pipeline.lakehouse.test_maintenance import maintained
from tests.pipeline.lakehouse.test_table import create
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.schemas.auditing import SchemaSources
from warmlog.pipeline.lakehouse.schemas.formats import formats_of
from warmlog.pipeline.source.arrow import TYPES

AFTER_9999_MS = 253_402_300_800_000
LIMIT_MS = (1 << 63) // 1000 - 100  # in a table's microseconds
TIMES = {
    "day": {"type": "int", "logicalType": "date"},
    "hour": {"type": "long", "logicalType": "time-micros"},
    "seen": {"type": "long", "logicalType": "timestamp-micros"},
    "wall": {"type": "long", "logicalType": "local-timestamp-micros"},
}
LATEST = {"day": 10_000_000, "hour": 1_000_000_000_000, "seen": 1 << 61, "wall": -(1 << 61)}


def record_of(types: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in types.items()]}


@pytest.mark.parametrize("first_ms", [AFTER_9999_MS - 2, LIMIT_MS])
def test_times_of_records_after_the_year_9999_are_copied(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path, first_ms: int
) -> None:
    writer.segment([b"x"] * 2)
    writer.segment([b"y"] * 4, first_ms=first_ms)
    copied(open_in(tmp_path, kind), options_of(writer))
    writer.segment([b"z"] * 4)
    copied(open_in(tmp_path, kind), options_of(writer))
    maintained(tmp_path, kind)
    assert offsets_in(tmp_path, kind) == [(0, offset) for offset in range(10)]
    times = query(tmp_path, kind, 'SELECT epoch_ms(timestamp) FROM data WHERE "offset" BETWEEN 2 AND 5 ORDER BY ALL')
    assert times == [(first_ms + at,) for at in range(4)]
    audit = audited(tmp_path, kind, options_of(writer))
    assert (audit.findings, total(audit).in_log) == ([], 10)


def test_a_file_has_no_bounds_of_times_that_have_none(writer: DirectoryWriter, tmp_path: Path) -> None:
    from pyiceberg.conversions import from_bytes
    from pyiceberg.expressions import GreaterThanOrEqual

    writer.segment([b"x"] * 2)
    copied(open_in(tmp_path, "iceberg"), options_of(writer))
    writer.segment([b"y"] * 4, first_ms=AFTER_9999_MS - 2)
    copied(open_in(tmp_path, "iceberg"), options_of(writer))
    handle: Any = open_in(tmp_path, "iceberg").handle
    fields = {field.name: field for field in handle.schema().fields}
    late, early = (task.file for task in handle.scan().plan_files())
    assert fields["timestamp"].field_id not in late.lower_bounds | late.upper_bounds
    assert fields["timestamp"].field_id in early.lower_bounds
    offset = fields["offset"]
    assert from_bytes(offset.field_type, late.upper_bounds[offset.field_id]) == 5
    equal: Any = GreaterThanOrEqual
    assert len(list(handle.scan(row_filter=equal("timestamp", "9999-01-01T00:00:00+00:00")).plan_files())) == 1


def test_decoded_times_outside_of_years_are_copied(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    raw = record_of({name: each["type"] for name, each in TIMES.items()})
    writer.segment(encoded(raw, dict.fromkeys(LATEST, 0), LATEST, {**LATEST, "hour": 5, "day": -10_000_000}))
    path = schema_file(tmp_path, record_of(TIMES))
    decoded(writer, tmp_path, kind, formats_of(value_format="avro", value_schema=path))
    assert query(tmp_path, kind, 'SELECT epoch_us(seen) FROM data ORDER BY "offset"') == [(0,), (1 << 61,), (1 << 61,)]
    maintained(tmp_path, kind)
    audit = audited_with(tmp_path, kind, writer, SchemaSources(value=(path,)))
    assert (audit.findings, total(audit).in_log) == ([], 3)


def test_a_time_that_no_table_can_store_is_a_bad_row(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    types = {"sent": {"type": "long", "logicalType": "timestamp-millis"}}
    writer.segment(encoded(record_of({"sent": "long"}), {"sent": 1 << 62}, {"sent": 0}))
    formats = formats_of(value_format="avro", value_schema=schema_file(tmp_path, record_of(types)), on_bad_row="null")
    decoded(writer, tmp_path, kind, formats)
    (bad, good) = rows_in(tmp_path, kind, "sent", "decodeError")
    assert bad[0] is None
    assert "field sent" in bad[1]
    assert good[1] is None


# -- numbers of JSON -------------------------------------------------------------------------------------------------

NUMBERS = {
    "properties": {
        "price": {"type": "number"},
        "count": {"type": "integer"},
        "extra": {},
        "prices": {"type": "array", "items": {"type": ["number", "null"]}},
        "times": {"type": "array", "items": {"type": ["string", "null"], "format": "date-time"}},
    }
}
DIGITS = "0.1000000000000000055511151231257827"
JSON_ROWS: list[tuple[str, str, Any]] = [
    ('{"price": 9007199254740993}', "price", 9007199254740992.0),
    ('{"price": 18446744073709551616}', "price", 18446744073709551616.0),
    ('{"price": -1e300}', "price", -1e300),
    ('{"prices": [9007199254740993, null, 0.5]}', "prices", [9007199254740992.0, None, 0.5]),
    ('{"count": 9223372036854775807}', "count", 9223372036854775807),
    ('{"count": 1E2}', "count", 100),
    ('{"times": ["2026-01-02T12:00:00Z", null]}', "times", [datetime(2026, 1, 2, 12, tzinfo=UTC), None]),
    (f'{{"extra": {{"a": [{DIGITS}, 1.10, 1E2, -0.0], "b": 18446744073709551616}}}}', "extra", None),
]
JSON_BAD = [
    (b'{"count": 9223372036854775808}', "field count: an integer beyond 64 bits"),
    (b'{"count": 1e30}', "field count: Could not convert 1e+30"),
    (b'{"price": 1%s}' % (b"0" * 400), "field price: a number beyond the range of a double"),
    (b'{"price": 1e400}', "not JSON: Number out of range"),
    (b'{"extra": "\xff"}', "not JSON: 'utf-8' codec can't decode byte 0xff"),
]


def test_numbers_of_json_are_the_nearest_of_their_column(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    writer.segment([text.encode() for text, _, _ in JSON_ROWS])
    path = schema_file(tmp_path, NUMBERS)
    decoded(writer, tmp_path, kind, formats_of(value_format="json", value_schema=path))
    rows = rows_in(tmp_path, kind, *NUMBERS["properties"])
    for row, (_, name, expected) in zip(rows[:-1], JSON_ROWS, strict=False):
        assert dict(zip(NUMBERS["properties"], row, strict=True)) == {
            **dict.fromkeys(NUMBERS["properties"]),
            name: expected,
        }
    assert rows[-1][2] == f'{{"a":[{DIGITS},1.10,1E2,-0.0],"b":18446744073709551616}}'
    audit = audited_with(tmp_path, kind, writer, SchemaSources(value=(path,)))
    assert (audit.findings, total(audit).in_log) == ([], len(JSON_ROWS))


def test_numbers_that_no_column_holds_are_bad_rows(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    writer.segment([data for data, _ in JSON_BAD])
    given: dict[str, Any] = {"value_format": "json", "value_schema": schema_file(tmp_path, NUMBERS)}
    with pytest.raises(PipelineError, match=r"orders-0: offset 0: value: field count: an integer beyond 64 bits"):
        decoded(writer, tmp_path, kind, formats_of(**given))
    decoded(writer, tmp_path, kind, formats_of(**given, on_bad_row="null"))
    for (error, raw), (data, reason) in zip(rows_in(tmp_path, kind, "decodeError", "rawValue"), JSON_BAD, strict=True):
        assert error.startswith(reason)
        assert raw == data


NOTHING = {"type": "fixed", "name": "Nothing", "size": 0}


@pytest.mark.parametrize("items", [NOTHING, record_of({"a": NOTHING, "b": "Nothing"})])
def test_arrays_that_a_few_bytes_could_make_endless_are_refused(tmp_path: Path, items: dict[str, Any]) -> None:
    path = schema_file(tmp_path, record_of({"list": {"type": "array", "items": {**items, "name": "Item"}}}))
    with pytest.raises(PipelineError, match="field list is an array of items without bytes"):
        formats_of(value_format="avro", value_schema=path)


# -- columns of a table that must not be null ------------------------------------------------------------------------


@pytest.mark.parametrize("required", ["id", "item.sku"])
def test_decoded_columns_that_must_not_be_null_are_refused(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path, required: str
) -> None:
    item = pa.struct([pa.field("sku", pa.string(), required != "item.sku"), pa.field("n", pa.int32())])
    own = [pa.field(name, type_of) for name, type_of in TYPES.items() if name != "value"]
    create(tmp_path, kind, pa.schema([*own, pa.field("id", pa.int32(), required != "id"), pa.field("item", item)]))
    writer.segment(encoded(V1, order(1)))
    formats = formats_of(value_format="avro", value_schema=schema_file(tmp_path, V1))
    with pytest.raises(PipelineError, match=f"column {required} must not be null, and rows may have no value for it"):
        decoded(writer, tmp_path, kind, formats)
    assert list(tmp_path.rglob("*.parquet")) == []


def test_files_with_required_columns_are_merged(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    fields = [pa.field(name, type_of, name in {"key", "value", "headers"}) for name, type_of in TYPES.items()]
    create(tmp_path, kind, pa.schema(fields))
    for _ in range(3):
        writer.segment([b"x"] * 2)
        copied(open_in(tmp_path, kind), options_of(writer))
    assert maintained(tmp_path, kind).merged_files == 3
    audit = audited(tmp_path, kind, options_of(writer))
    assert (audit.findings, total(audit).in_log, len(files_of(tmp_path, kind))) == ([], 6, 1)

"""Decode the keys and values of record batches into columns: the work of a task for each batch of the source.

1. Values of one schema are decoded together into one Arrow array. If that fails, they are bisected until each value
   that
does not fit is known.
2. A row that does not fit is an error, or is stored with nulls, the reason and its bytes, or is omitted and becomes a
dead letter.
3. In a table with one row for each key, a record without a key does not fit, and one without a value is a deletion.
4. A schema that the task does not know is reported to the job, which repeats the batch with it. The task continues only
to collect further unknown schemas.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.schemas.dead_letters import Letter
from warmlog.pipeline.lakehouse.schemas.formats import ERROR_COLUMN, RAW_COLUMNS, SIDES, Side
from warmlog.pipeline.lakehouse.schemas.layout import Layout
from warmlog.pipeline.lakehouse.schemas.protobuf import split_indexes
from warmlog.pipeline.lakehouse.schemas.readers import Reader, WriterSchema, reader_of
from warmlog.pipeline.lakehouse.schemas.registry import HEADER, schema_id_of
from warmlog.pipeline.lakehouse.schemas.types import BadValueError, conformed
from warmlog.pipeline.lakehouse.upserts.envelopes import DELETED

NO_KEY = "it is null, and a row of this table needs a key"

SchemaKey = tuple[Side, int, str]  # side, schema id, message (only for Protobuf)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRules:
    """Rules for decoding rows. `schema`: schema of the table's rows; `fields`: columns of each decoded side.

    Columns of the schema that no side has are null. `schemas`: known schemas by id. `refused`: the reason why values of
    a schema have no columns in the table. `met`: schemas whose columns are in `fields`.
    """

    layout: Layout
    schema: Any
    fields: Mapping[Side, Any]
    schemas: Mapping[int, WriterSchema] = field(default_factory=dict)
    refused: Mapping[SchemaKey, str] = field(default_factory=dict)
    met: frozenset[SchemaKey] = frozenset()

    @property
    def has_dead_letters(self) -> bool:
        """Whether rows that do not fit become dead letters."""
        return self.layout.formats.dead_letters is not None


@dataclass(slots=True)
class _Values:
    """Values of one schema in a batch: their rows, and the decoded objects."""

    reader: Reader
    rows: list[int] = field(default_factory=list)
    objects: list[Any] = field(default_factory=list)


class RowDecoder:
    """Decodes batches of one partition. `unknown`: schemas that the rules lack.

    `letters`: dead letters of omitted rows; the caller that writes them clears the list. `dead`: offsets of these rows.
    `deletes`: for each row of the last batch, whether it deletes the row of its key; None if rows have no keys.
    """

    def __init__(self, rules: DecodeRules, topic: str, partition: int) -> None:
        self._rules = rules
        self._layout = rules.layout
        self._key = topic, partition
        self._messages: dict[SchemaKey, WriterSchema] = {}
        formats = rules.layout.formats
        of_files = {side: formats.of(side).schema for side in SIDES}
        self._schemas = {
            side: None if schema is None else formats.enveloped(side, schema) for side, schema in of_files.items()
        }
        self._deleted: set[int] = set()  # rows of the batch that an envelope deletes
        self.unknown: set[SchemaKey] = set()
        self.letters: list[Letter] = []
        self.dead: list[int] = []
        self.deletes: Any = None

    def decode(self, batch: Any) -> Any:
        """Return a batch of the source as the table's rows; empty if schemas are unknown. Raises PipelineError."""
        import pyarrow as pa

        formats = self._layout.formats
        if not self._layout.decoded and not formats.upsert:
            return batch
        columns = {name: batch.column(name) for name in self._layout.plain}
        reasons: dict[int, str] = {}
        self._deleted.clear()
        for side in self._layout.decoded:
            bad: dict[int, str] = {}
            decoded = self._side(side, batch.column(side), bad)
            if bad and self._stops(side):
                self._fail(batch, side, min(bad), bad[min(bad)])
            columns |= zip((each.name for each in decoded.type), decoded.flatten(), strict=True)
            columns[RAW_COLUMNS[side]] = _only(batch.column(side), bad)
            reasons |= {row: f"{reasons[row]}; {why}" if row in reasons else why for row, why in bad.items()}
        if formats.upsert:
            self.deletes = _with_rows(batch.column("value").is_null(), self._deleted)
            without = [
                row
                for row in _null_rows(columns.get("key", pa.nulls(batch.num_rows)))
                if row not in reasons and not self.unknown
            ]
            if without and self._stops("key"):
                self._fail(batch, "key", without[0], NO_KEY)
            reasons |= dict.fromkeys(without, NO_KEY)
        columns[ERROR_COLUMN] = pa.array([reasons.get(row) for row in range(batch.num_rows)], pa.string())
        schema = self._rules.schema
        arrays = [columns[each.name] if each.name in columns else _nulls(batch, each.type) for each in schema]
        rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
        if self.unknown:
            return rows.slice(0, 0)
        return self._left_out(batch, rows, reasons) if reasons and self._rules.has_dead_letters else rows

    def _left_out(self, batch: Any, rows: Any, reasons: Mapping[int, str]) -> Any:
        """Return the rows that fit, and add the others to the dead letters."""
        import pyarrow as pa

        numbers = sorted(reasons)
        names = [name for name in ("key", "value", "headers") if name in batch.schema.names]
        for row, record in zip(numbers, batch.select([*names, "offset"]).take(numbers).to_pylist(), strict=True):
            headers = tuple((each["key"], each["value"]) for each in record.get("headers") or ())
            topic, partition = self._key
            letter = Letter(
                topic=topic,
                partition=partition,
                offset=record["offset"],
                key=record.get("key"),
                value=record.get("value"),
                headers=headers,
                reason=reasons[row],
            )
            self.letters.append(letter)
            self.dead.append(record["offset"])
        fits = pa.array([row not in reasons for row in range(batch.num_rows)])
        if self.deletes is not None:
            self.deletes = self.deletes.filter(fits)
        return rows.filter(fits)

    def _stops(self, side: Side) -> bool:
        """Return whether a key or value that does not fit stops the job. A row cannot be stored without its key."""
        formats = self._layout.formats
        return formats.on_bad_row == "fail" or (formats.on_bad_row == "null" and formats.upsert and side == "key")

    def _fail(self, batch: Any, side: Side, row: int, why: str) -> None:
        offset = batch.column("offset")[row].as_py()
        how = "--on-bad-row says what else to do with such rows"
        if self._layout.formats.upsert and side == "key":
            how = "--on-bad-row dead-letter --dead-letter-topic TOPIC stores such records there"
        raise PipelineError(
            f"{self._key[0]}-{self._key[1]}: offset {offset}: {side}"
            f"{_of_schema(self._layout, side, batch.column(side)[row].as_py())}: {why} ({how})"
        )

    def _side(self, side: Side, column: Any, bad: dict[int, str]) -> Any:
        """Return the columns of a side as an array of structs. `bad`: receives the reasons of rows that do not fit."""
        import numpy as np
        import pyarrow as pa

        kind = self._rules.fields[side]
        order = np.full(len(column), -1)
        parts, count = [], 0
        for values in self._decoded(side, column.to_pylist(), bad).values():
            spread = self._layout.is_spread(side, values.reader.type)
            for start, array in _arrays(values, side, kind, is_spread=spread, bad=bad):
                order[values.rows[start : start + len(array)]] = np.arange(count, count + len(array))
                parts.append(array)
                count += len(array)
        if not parts:
            return pa.nulls(len(column), kind)
        whole = pa.concat_arrays(parts)
        return whole.take(pa.array(order, mask=order < 0))

    def _decoded(self, side: Side, values: Sequence[bytes | None], bad: dict[int, str]) -> dict[Any, _Values]:
        """Return the decoded values by schema."""
        by_schema: dict[Any, _Values] = {}
        for row, value in enumerate(values):
            if value is None:
                continue
            try:
                schema, data = self._split(side, value)
                if schema is None:
                    continue
                group = by_schema.get(schema)
                if group is None:
                    group = by_schema[schema] = _Values(reader_of(schema))
                decoded = group.reader.decode(data)
            except BadValueError as error:
                bad[row] = str(error)
                continue
            if decoded is DELETED:
                self._deleted.add(row)
            else:
                group.rows.append(row)
                group.objects.append(decoded)
        return by_schema

    def _split(self, side: Side, value: bytes) -> tuple[WriterSchema | None, bytes]:
        """Return the schema of a value (None if unknown) and the bytes without the header.

        Raises BadValueError if the header is invalid, or if the schema is refused.
        """
        schema = self._schemas[side]
        if schema is not None:
            return schema, value
        schema_id, data, message = schema_id_of(value), value[HEADER.size :], ""
        known = self._rules.schemas.get(schema_id)
        if known is not None and known.kind == "protobuf":
            message, data = split_indexes(data)
        key = side, schema_id, message
        if key in self._rules.refused:
            raise BadValueError(f"schema {schema_id}: {self._rules.refused[key]}")
        if known is None or key not in self._rules.met:
            self.unknown.add(key)
            return None, data
        if key not in self._messages:
            self._messages[key] = self._layout.formats.enveloped(side, replace(known, message=message))
        return self._messages[key], data


def _arrays(
    values: _Values, side: Side, kind: Any, *, is_spread: bool, bad: dict[int, str]
) -> Iterator[tuple[int, Any]]:
    """Yield arrays of structs of consecutive values, each with the index of its first value.

    `bad`: receives the reasons of values that are in no array.
    """
    waiting = [(0, len(values.objects))]
    while waiting:
        start, end = waiting.pop()
        if start == end:
            continue
        try:
            yield start, _array(values.reader, values.objects[start:end], side, kind, is_spread=is_spread)
        except _errors_of_values() as error:
            if end - start > 1:
                middle = (start + end) // 2
                waiting += [(middle, end), (start, middle)]
                continue
            path = _blamed(values.objects[start], values.reader.raw_type, values.reader.type, "")
            reason = "an integer beyond 64 bits" if isinstance(error, OverflowError) else str(error)
            bad[values.rows[start]] = f"field {path}: {reason}" if path else reason


def _array(reader: Reader, objects: Sequence[Any], side: Side, kind: Any, *, is_spread: bool) -> Any:
    import pyarrow as pa

    array = pa.array(objects, reader.raw_type)
    if is_spread:
        return conformed(array, kind)
    target = kind.field(side).type
    inner = conformed(array, target)
    return conformed(pa.StructArray.from_arrays([inner], fields=[pa.field(side, target)]), kind)


def _errors_of_values() -> tuple[type[Exception], ...]:
    """Return the exceptions that pyarrow raises for a value that does not fit a type."""
    import pyarrow as pa

    return (pa.ArrowException, ValueError, TypeError, OverflowError)


def _blamed(value: Any, raw: Any, final: Any, path: str) -> str:
    """Return the path, as far as known, of the field of a value that does not fit its type."""
    import pyarrow as pa

    if pa.types.is_struct(raw) and isinstance(value, dict):
        parts = [(field.name, value.get(field.name), field.type, final.field(field.name).type) for field in raw]
    elif pa.types.is_list(raw) and isinstance(value, list):
        parts = [(f"[{at}]", each, raw.value_type, final.value_type) for at, each in enumerate(value)]
    elif pa.types.is_map(raw) and isinstance(value, dict):
        parts = [(f"[{name}]", each, raw.item_type, final.item_type) for name, each in value.items()]
    else:
        return path
    for name, each, raw_part, final_part in parts:
        try:
            conformed(pa.array([each], raw_part), final_part)
        except _errors_of_values():
            inner = name if name.startswith("[") or not path else f".{name}"
            return _blamed(each, raw_part, final_part, f"{path}{inner}")
    return path


def _with_rows(mask: Any, rows: Collection[int]) -> Any:
    """Return a mask that also has the given rows."""
    import pyarrow as pa

    if not rows:
        return mask
    values = mask.to_numpy(zero_copy_only=False).copy()
    values[list(rows)] = True
    return pa.array(values)


def _null_rows(column: Any) -> list[int]:
    import numpy as np

    return np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist() if column.null_count else []


def _nulls(batch: Any, kind: Any) -> Any:
    import pyarrow as pa

    return pa.nulls(batch.num_rows, kind)


def _only(column: Any, rows: Mapping[int, str]) -> Any:
    """Return a column with the values of the given rows; other rows are null."""
    import numpy as np
    import pyarrow as pa

    if not rows:
        return pa.nulls(len(column), column.type)
    order = np.full(len(column), -1)
    order[list(rows)] = list(rows)
    return column.take(pa.array(order, mask=order < 0))


def _of_schema(layout: Layout, side: Side, value: bytes) -> str:
    if layout.formats.of(side).schema is not None:
        return ""
    try:
        return f" of schema {schema_id_of(value)}"
    except BadValueError:
        return ""

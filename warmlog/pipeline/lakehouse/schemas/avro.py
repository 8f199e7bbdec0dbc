"""Avro: converts types of schemas to Arrow types, and decodes values with fastavro.

Logical types are removed from the schema that fastavro reads by, so that values stay plain numbers, which pyarrow
converts without creating an object for each; only decimals are an exception. A union of several types becomes a struct
with a field for each, of which one is set.

Source: the Avro specification 1.12, "Logical Types".
"""

import json
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any

from warmlog.pipeline.lakehouse.schemas.types import DECIMAL_DIGITS, BadValueError, SchemaError, list_of, map_of

Convert = Callable[[Any], Any] | None
Typed = tuple[Any, Any, Convert]  # type in the table, type of what is decoded, and what turns fastavro's values into it


class AvroReader:
    """Reads values of a schema. `references`: schemas of the types that it refers to. Raises SchemaError."""

    def __init__(self, text: str, references: Mapping[str, str]) -> None:
        from fastavro import parse_schema
        from fastavro.schema import SchemaParseException, UnknownType

        try:
            parts = [json.loads(part) for part in (*references.values(), text)]
            self._names: dict[str, Any] = {}
            whole = [parse_schema(part, named_schemas=self._names) for part in parts][-1]
            names: dict[str, Any] = {}
            self._schema = [parse_schema(_without_logical(part), named_schemas=names) for part in parts][-1]
        except (ValueError, TypeError, KeyError, AttributeError, SchemaParseException, UnknownType) as error:
            raise SchemaError(f"not an Avro schema: {error!r}") from error
        self.type, self.raw_type, self._convert = self._typed(whole, "", ())

    def decode(self, data: bytes) -> Any:
        """Return the value. Raises BadValueError unless the bytes are exactly one value."""
        from fastavro import schemaless_reader

        stream = BytesIO(data)
        try:
            value = schemaless_reader(
                stream, self._schema, None, return_record_name=True, return_record_name_override=True
            )
        except Exception as error:  # a decoder may raise any exception for invalid bytes
            raise BadValueError(f"not a value of its Avro schema: {str(error) or repr(error)}") from error
        if stream.tell() != len(data):
            raise BadValueError(f"not a value of its Avro schema: {len(data) - stream.tell()} bytes follow the value")
        return value if self._convert is None else self._convert(value)

    def _typed(self, node: Any, path: str, outer: tuple[str, ...]) -> Typed:
        """Return the types of a schema. `outer`: names of the enclosing records."""
        if isinstance(node, list):
            return self._union(node, path, outer)
        if isinstance(node, str):
            return self._typed(self._names[node], path, outer) if node in self._names else _primitive(node, {}, path)
        kind = node["type"]
        if isinstance(kind, list | dict) or kind in self._names:
            return self._typed(kind, path, outer)
        compound = {"record": self._record, "error": self._record, "array": self._array, "map": self._map}
        return compound[kind](node, path, outer) if kind in compound else _primitive(kind, node, path)

    def _array(self, node: Any, path: str, outer: tuple[str, ...]) -> Typed:
        inner, raw, convert = self._typed(node["items"], f"{path}[]", outer)
        if self._is_empty(node["items"]):  # a few bytes could claim any number of items
            raise SchemaError(f"field {path or 'value'} is an array of items without bytes")
        return list_of(inner), list_of(raw), None if convert is None else _each(convert)

    def _is_empty(self, node: Any) -> bool:
        """Return whether values of a schema have no bytes. It is not recursive."""
        node = self._names.get(node, node) if isinstance(node, str) else node
        if not isinstance(node, dict):
            return False
        if node["type"] in {"record", "error"}:
            return all(self._is_empty(each["type"]) for each in node["fields"])
        return node["size"] == 0 if node["type"] == "fixed" else self._is_empty(node["type"])

    def _map(self, node: Any, path: str, outer: tuple[str, ...]) -> Typed:
        import pyarrow as pa

        inner, raw, convert = self._typed(node["values"], f"{path}[]", outer)
        return map_of(pa.string(), inner), map_of(pa.string(), raw), None if convert is None else _values(convert)

    def _record(self, node: Any, path: str, outer: tuple[str, ...]) -> Typed:
        import pyarrow as pa

        name = node["name"]
        if name in outer:
            raise SchemaError(f"field {path} contains its own record {name}: columns cannot be recursive")
        if not node["fields"]:
            raise SchemaError(f"record {name} has no fields")
        typed = {
            each["name"]: self._typed(each["type"], _join(path, each["name"]), (*outer, name))
            for each in node["fields"]
        }
        converts = {name: convert for name, (_, _, convert) in typed.items() if convert is not None}
        return (
            pa.struct([pa.field(name, kind) for name, (kind, _, _) in typed.items()]),
            pa.struct([pa.field(name, raw) for name, (_, raw, _) in typed.items()]),
            _fields(converts) if converts else None,
        )

    def _union(self, branches: list[Any], path: str, outer: tuple[str, ...]) -> Typed:
        import pyarrow as pa

        branches = [branch for branch in branches if branch != "null"]
        if not branches:
            raise SchemaError(f"field {path or 'value'} is always null")
        typed = [(self._category(branch), *self._typed(branch, path, outer)) for branch in branches]
        if len(typed) == 1:
            _, kind, raw, convert = typed[0]
            return kind, raw, None if convert is None else _optional(convert)
        members: dict[str, Typed] = {}
        for category, *types in typed:
            member: Typed = (types[0], types[1], types[2])
            before = members.get(category)
            if before is not None and before[1] != member[1]:
                member = (*_wider(before, member, path), member[2])
            members[category] = member
        records = [category for category in members if category.startswith("record ")]
        if records and "map" in members and len(records) == 1:
            raise SchemaError(f"field {path} is a union of a record and a map, which cannot be told apart")
        names = _branch_names(members)
        return (
            pa.struct([pa.field(names[category], kind) for category, (kind, _, _) in members.items()]),
            pa.struct([pa.field(names[category], raw) for category, (_, raw, _) in members.items()]),
            _branch(names, {category: convert for category, (_, _, convert) in members.items()}, records),
        )

    def _category(self, branch: Any) -> str:
        """Return the Python-visible category of a union's branch."""
        node = self._names.get(branch, branch) if isinstance(branch, str) else branch
        kind = node if isinstance(node, str) else node["type"]
        if kind in {"record", "error"}:
            return f"record {node['name']}"
        if not isinstance(node, str) and node.get("logicalType") == "decimal":
            return "decimal"
        return {"int": "long", "float": "double", "enum": "string", "fixed": "bytes"}.get(kind, kind)


def _primitive(kind: str, node: Mapping[str, Any], path: str) -> Typed:
    import pyarrow as pa

    logical = str(node.get("logicalType"))
    if logical == "decimal" and kind in {"bytes", "fixed"}:
        precision, scale = node.get("precision", 0), node.get("scale", 0)
        if precision > DECIMAL_DIGITS:
            raise SchemaError(f"field {path} is a decimal of {precision} digits, and tables have {DECIMAL_DIGITS}")
        try:
            decimal = pa.decimal128(precision, scale)
        except (ValueError, TypeError, pa.ArrowInvalid):
            raise SchemaError(f"field {path} is a decimal of precision {precision!r} and scale {scale!r}") from None
        return decimal, decimal, None
    utc, local = pa.timestamp("us", "UTC"), pa.timestamp("us")
    of_logical = {
        ("int", "date"): (pa.date32(), pa.date32()),
        ("int", "time-millis"): (pa.time64("us"), pa.time32("ms")),
        ("long", "time-micros"): (pa.time64("us"), pa.time64("us")),
        ("long", "timestamp-millis"): (utc, pa.timestamp("ms", "UTC")),
        ("long", "timestamp-micros"): (utc, utc),
        ("long", "local-timestamp-millis"): (local, pa.timestamp("ms")),
        ("long", "local-timestamp-micros"): (local, local),
    }
    if (kind, logical) in of_logical:
        return (*of_logical[kind, logical], None)
    plain = {
        "boolean": pa.bool_(),
        "int": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "bytes": pa.binary(),
        "fixed": pa.binary(),
        "string": pa.string(),
        "enum": pa.string(),
    }
    if kind not in plain:
        raise SchemaError(f"field {path or 'value'} is of type {kind}, which is no column")
    return plain[kind], plain[kind], None


def _wider(first: Typed, second: Typed, path: str) -> tuple[Any, Any]:
    """Return the common type of two branches that have the same Python type, such as int and long."""
    import pyarrow as pa

    for wide in (pa.int64(), pa.float64()):
        if wide in {first[1], second[1]} and {first[0], second[0]} <= {pa.int32(), pa.int64(), pa.float32(), wide}:
            return wide, wide
    raise SchemaError(f"field {path} is a union of {first[0]} and {second[0]}, which cannot be told apart")


def _branch_names(members: Mapping[str, Typed]) -> dict[str, str]:
    """Return the name of each branch's field: a record's name, with its namespace if others have the same name."""
    short = {category: category.removeprefix("record ").rpartition(".")[2] for category in members}
    return {
        category: name if list(short.values()).count(name) == 1 else category.removeprefix("record ").replace(".", "_")
        for category, name in short.items()
    }


def _without_logical(node: Any) -> Any:
    """Return a schema without logical types, except decimals."""
    if isinstance(node, list):
        return [_without_logical(each) for each in node]
    if not isinstance(node, dict):
        return node
    kept = {
        name: each if name in {"default", "symbols", "doc", "aliases"} else _without_logical(each)
        for name, each in node.items()
    }
    if kept.get("logicalType") != "decimal":
        kept.pop("logicalType", None)
    return kept


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


# -- conversions of fastavro's values that contain a union --


def _optional(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _each(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: [convert(value) for value in values]


def _values(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: {name: convert(value) for name, value in values.items()}


def _fields(converts: Mapping[str, Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def convert(record: Any) -> Any:
        return {**record, **{name: change(record[name]) for name, change in converts.items()}}

    return convert


_CATEGORIES = {bool: "boolean", int: "long", float: "double", str: "string", bytes: "bytes", list: "array"}


def _branch(names: Mapping[str, str], converts: Mapping[str, Convert], records: list[str]) -> Callable[[Any], Any]:
    single = records[0] if len(records) == 1 else "map"

    def convert(value: Any) -> Any:
        if value is None:
            return None
        name, value = value if isinstance(value, tuple) else ("", value)  # of a record, or of a type by its name
        if isinstance(value, dict):
            category = f"record {name}" if name else single
        else:
            category = _CATEGORIES.get(type(value), "decimal")
        change = converts[category]
        return {names[category]: value if change is None else change(value)}

    return convert

"""Arrow types that tables hold: their normal form, the merging of two types, and the conversion of arrays."""

from collections.abc import Sequence
from typing import Any

from warmlog.pipeline.errors import PipelineError

DECIMAL_DIGITS = 38  # maximum precision of Delta's and Iceberg's decimals


class SchemaError(PipelineError):
    """A schema has no columns, or none that fit the table."""


class BadValueError(ValueError):
    """A key or value does not match its schema."""


def normal(kind: Any) -> Any:
    """Return a type as this package writes it: 32-bit offsets, no views, times in us, all fields nullable."""
    import pyarrow as pa

    kinds = pa.types
    if kinds.is_struct(kind):
        return pa.struct([pa.field(field.name, normal(field.type)) for field in kind])
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        return list_of(normal(kind.value_type))
    if kinds.is_map(kind):
        return map_of(normal(kind.key_type), normal(kind.item_type))
    if kinds.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    same = {pa.large_binary(): pa.binary(), pa.binary_view(): pa.binary(), pa.large_string(): pa.string()}
    same |= {pa.string_view(): pa.string(), pa.time32("s"): pa.time64("us"), pa.time32("ms"): pa.time64("us")}
    return same.get(kind, kind)


def list_of(item: Any) -> Any:
    """Return a list type with the item name that Delta and Iceberg use."""
    import pyarrow as pa

    return pa.list_(pa.field("element", item))


def map_of(key: Any, value: Any) -> Any:
    """Return a map type with Arrow's default names of keys and values."""
    import pyarrow as pa

    return pa.map_(key, pa.field("value", value))


def without_times(kind: Any) -> Any:
    """Return a type with times of day as microseconds since midnight, because Delta has no type for them."""
    import pyarrow as pa

    kinds = pa.types
    if kinds.is_struct(kind):
        return pa.struct([pa.field(field.name, without_times(field.type)) for field in kind])
    if kinds.is_list(kind):
        return list_of(without_times(kind.value_type))
    if kinds.is_map(kind):
        return map_of(without_times(kind.key_type), without_times(kind.item_type))
    return pa.int64() if kinds.is_time(kind) else kind


def merged(first: Any, second: Any, path: str) -> Any:
    """Return the least type that holds the values of both types. Fields of the first type come first.

    Widening is from int32 to int64, from float to double, and between decimals of the same scale. Raises SchemaError,
    which names the field and both types, for other differences.
    """
    import pyarrow as pa

    kinds = pa.types
    if first.equals(second):
        return first
    if kinds.is_struct(first) and kinds.is_struct(second):
        return pa.struct(merged_fields(list(first), list(second), f"{path}."))
    if kinds.is_list(first) and kinds.is_list(second):
        return list_of(merged(first.value_type, second.value_type, f"{path}.element"))
    if kinds.is_map(first) and kinds.is_map(second):
        key = merged(first.key_type, second.key_type, f"{path}.key")
        return map_of(key, merged(first.item_type, second.item_type, f"{path}.value"))
    for narrow, wide in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64())):
        if {first, second} == {narrow, wide}:
            return wide
    if kinds.is_decimal(first) and kinds.is_decimal(second) and first.scale == second.scale:
        return first if first.precision >= second.precision else second
    raise SchemaError(f"field {path} is {described(first)} so far, and {described(second)} in the schema")


def merged_fields(first: Sequence[Any], second: Sequence[Any], prefix: str = "") -> list[Any]:
    """Return the fields of both, merged by name; fields that only the second has come last."""
    import pyarrow as pa

    others = {field.name: field.type for field in second}
    fields = [
        pa.field(field.name, merged(field.type, others.pop(field.name, field.type), f"{prefix}{field.name}"))
        for field in first
    ]
    known = {field.name.casefold(): field.name for field in fields}
    for name in others:
        if name.casefold() in known:
            raise SchemaError(
                f"fields {prefix}{known[name.casefold()]} and {prefix}{name} differ in case only, which columns cannot"
            )
        known[name.casefold()] = name
    return fields + [pa.field(name, kind) for name, kind in others.items()]


def check_names(kind: Any, path: str, forbidden: str = "") -> None:
    """Raise SchemaError for fields of a type whose names differ only in case, or contain forbidden characters."""
    import pyarrow as pa

    kinds = pa.types
    if kinds.is_struct(kind):
        prefix = f"{path}." if path else ""
        known: dict[str, str] = {}
        for field in kind:
            inner = f"{prefix}{field.name}"
            other = known.setdefault(field.name.casefold(), field.name)
            if other != field.name:
                raise SchemaError(f"fields {prefix}{other} and {inner} differ in case only, which columns cannot")
            if any(character in field.name for character in forbidden):
                raise SchemaError(
                    f"field {inner!r} has a character that names in Delta tables cannot have: {forbidden!r}"
                )
            check_names(field.type, inner, forbidden)
    elif kinds.is_list(kind):
        check_names(kind.value_type, path, forbidden)
    elif kinds.is_map(kind):
        check_names(kind.item_type, path, forbidden)


def check_only_added(table: str, before: Any, after: Any, path: str) -> None:
    """Raise SchemaError if a type has changed other than by added fields."""
    import pyarrow as pa

    kinds = pa.types
    if before.equals(after):
        return
    if kinds.is_struct(before):
        for field in before:
            check_only_added(table, field.type, after.field(field.name).type, f"{path}.{field.name}")
    elif kinds.is_list(before):
        check_only_added(table, before.value_type, after.value_type, f"{path}.element")
    elif kinds.is_map(before):
        check_only_added(table, before.key_type, after.key_type, f"{path}.key")
        check_only_added(table, before.item_type, after.item_type, f"{path}.value")
    else:
        raise SchemaError(
            f"field {path} is {described(before)} in {table}, and {described(after)} in the schema: columns of Delta"
            " tables are not widened here, so this needs another table"
        )


def described(kind: Any) -> str:
    """Return Arrow's text for a type, without the names of items."""
    return str(kind).replace("element: ", "").replace("decimal128", "decimal")


def conformed(array: Any, kind: Any) -> Any:
    """Convert an array to a type that holds its values: a wider one, or one with further fields, which are null.

    Raises pyarrow's ArrowInvalid for a value that cannot be cast.
    """
    import pyarrow as pa

    kinds = pa.types
    if array.type.equals(kind):
        return array
    if kinds.is_struct(kind):
        names = [field.name for field in array.type]
        parts = dict(zip(names, array.flatten(), strict=True))  # null where the struct is null
        children = [
            conformed(parts[field.name], field.type) if field.name in parts else pa.nulls(len(array), field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if kinds.is_list(kind):
        values = conformed(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=_mask(array))
    if kinds.is_map(kind):
        keys, items = conformed(array.keys, kind.key_type), conformed(array.items, kind.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=_mask(array))
    if kinds.is_time(array.type) and kinds.is_integer(kind):
        array = array.cast(pa.time64("us"))
    return array.cast(kind)


def _mask(array: Any) -> Any:
    return array.is_null() if array.null_count else None

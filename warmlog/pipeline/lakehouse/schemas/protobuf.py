"""Protobuf: converts types of messages to Arrow types, and decodes values with Google's library.

A schema is a set of file descriptors, each after those that it imports; the last one has the message. Unset fields are
null if their presence is tracked (`optional`, messages, members of a `oneof`); otherwise they have their default.

Source: protobuf.dev, "Encoding" and "Well-Known Types"; Confluent's documentation, "Wire format" (message indexes).
"""

from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any

from warmlog.pipeline.lakehouse.schemas.types import BadValueError, SchemaError, list_of, map_of

Read = Callable[[Any], Any]
Typed = tuple[Any, Read | None]  # type, and what turns a value of the library into one that pyarrow takes

WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
JSON_MESSAGES = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))
TIMESTAMP = "google.protobuf.Timestamp"


def split_indexes(data: bytes) -> tuple[str, bytes]:
    """Return the message indexes of a value, such as `0` or `2.0`, and the value's bytes. Raises BadValueError."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            if at >= len(data) or shift > 28:
                raise BadValueError("not in Confluent's wire format: the indexes of its message are cut off")
            value |= (data[at] & 0x7F) << shift
            at += 1
            if data[at - 1] < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7

    count = number()
    indexes = [number() for _ in range(count)] if 0 < count <= len(data) else [0]
    return ".".join(map(str, indexes)), data[at:]


class ProtobufReader:
    """Reads messages. `text`: a FileDescriptorSet in base64; `message`: a full name, or indexes in the last file."""

    def __init__(self, text: str, message: str) -> None:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

        pool = descriptor_pool.DescriptorPool()
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(b64decode(text)).file
            for file in files:
                pool.Add(file)
            descriptor = _message(pool.FindFileByName(files[-1].name), message)
            self._class: Any = message_factory.GetMessageClass(descriptor)
        except Exception as error:  # the library may raise any exception for inconsistent descriptors
            raise SchemaError(f"not a Protobuf schema with message {message}: {error}") from error
        self.type, self._read = _of_message(descriptor, "", ())
        self.raw_type = self.type

    def decode(self, data: bytes) -> Any:
        """Return the message as a dictionary. Raises BadValueError."""
        try:
            message = self._class.FromString(data)
        except Exception as error:  # the library's error, whose name depends on the version
            raise BadValueError(f"not a message of its Protobuf schema: {error}") from error
        try:
            return self._read(message)
        except BadValueError:
            raise
        except Exception as error:  # such as text of proto2, which is checked when it is read
            raise BadValueError(f"a field of the message cannot be read: {error}") from error


def _message(file: Any, name: str) -> Any:
    """Return the descriptor of a message by its full name, or by its indexes. Raises KeyError, IndexError."""
    messages = list(file.message_types_by_name.values())
    if not name.replace(".", "").isdigit():
        return file.pool.FindMessageTypeByName(name)
    first, *rest = map(int, name.split("."))
    descriptor = messages[first]
    for index in rest:
        descriptor = descriptor.nested_types[index]
    return descriptor


def _of_message(descriptor: Any, path: str, outer: tuple[str, ...]) -> tuple[Any, Read]:
    """Return the type of a message, and its converter. `outer`: names of the enclosing messages."""
    import pyarrow as pa

    if descriptor.full_name in JSON_MESSAGES:
        return pa.string(), _json_of(path)
    if descriptor.full_name == TIMESTAMP:
        return pa.timestamp("us", "UTC"), _time_of(path)
    if descriptor.full_name in outer:
        raise SchemaError(f"field {path} contains its own message {descriptor.full_name}: columns cannot be recursive")
    if descriptor.full_name in WRAPPERS:
        kind, convert = _of_scalar(descriptor.fields_by_name["value"])
        return kind, _value_of if convert is None else _with_value(convert)
    if not descriptor.fields:
        raise SchemaError(f"message {descriptor.full_name} has no fields")
    fields = []
    readers: list[tuple[str, bool, Read | None]] = []
    for field in descriptor.fields:
        inner = f"{path}.{field.name}" if path else field.name
        kind, convert = _of_field(field, inner, (*outer, descriptor.full_name))
        fields.append(pa.field(field.name, kind))
        readers.append((field.name, field.has_presence, convert))

    def read(message: Any) -> Any:
        record = {}
        for name, has_presence, convert in readers:
            if has_presence and not message.HasField(name):
                continue
            value = getattr(message, name)
            record[name] = value if convert is None else convert(value)
        return record

    return pa.struct(fields), read


def _of_field(field: Any, path: str, outer: tuple[str, ...]) -> Typed:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        key_kind, key_read = _of_single(key, f"{path}[]", outer)
        kind, read = _of_single(value, f"{path}[]", outer)
        return map_of(key_kind, kind), _entries(key_read, read)
    kind, convert = _of_single(field, path, outer)
    if field.is_repeated:
        return list_of(kind), list if convert is None else (lambda values: [convert(each) for each in values])
    return kind, convert


def _of_single(field: Any, path: str, outer: tuple[str, ...]) -> Typed:
    return _of_scalar(field) if field.message_type is None else _of_message(field.message_type, path, outer)


def _of_scalar(field: Any) -> Typed:
    import pyarrow as pa

    if field.enum_type is not None:
        names: Mapping[int, str] = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        return pa.string(), lambda number: names.get(number, str(number))
    kinds = {
        "int32": pa.int32(),
        "int64": pa.int64(),
        "uint32": pa.int64(),
        "uint64": pa.decimal128(20, 0),
        "float": pa.float32(),
        "double": pa.float64(),
        "bool": pa.bool_(),
        "string": pa.string(),
    }
    if field.type == field.TYPE_BYTES:
        return pa.binary(), None
    name = {number: name for name, number in _cpp_types(field).items()}[field.cpp_type]
    return kinds[name], None


def _cpp_types(field: Any) -> dict[str, int]:
    names = ("int32", "int64", "uint32", "uint64", "float", "double", "bool", "string")
    return {name: getattr(field, f"CPPTYPE_{name.upper()}") for name in names}


def _value_of(message: Any) -> Any:
    return message.value


def _with_value(convert: Read) -> Read:
    return lambda message: convert(message.value)


def _time_of(path: str) -> Read:
    def convert(message: Any) -> int:
        time_us: int = message.seconds * 1_000_000 + message.nanos // 1000
        if not -(1 << 63) <= time_us < 1 << 63:
            raise BadValueError(f"field {path or 'value'}: a time of {message.seconds} s since 1970 is out of range")
        return time_us

    return convert


def _json_of(path: str) -> Read:
    from google.protobuf import json_format

    def convert(message: Any) -> str:
        try:
            return str(json_format.MessageToJson(message, indent=None, sort_keys=True))  # the library's order is random
        except Exception as error:  # the library raises several kinds, for NaN and for values that are not set
            raise BadValueError(f"field {path or 'value'} has no JSON text: {error}") from error

    return convert


def _entries(key_read: Read | None, read: Read | None) -> Read:
    def convert(entries: Any) -> Any:
        return [
            (key if key_read is None else key_read(key), value if read is None else read(value))
            for key, value in sorted(entries.items())
        ]

    return convert

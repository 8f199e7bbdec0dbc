"""Messages as tables of fields, and what reads and writes them.

Owns: how a table becomes a reader and a writer for one version. Must not know: any message.

A message is a struct of fields. A field names a kind, the versions that have it, from which version on it may be null,
and for a tagged field its tag; names are those of Kafka's message definitions in snake case, so that one can be held
against the other. Decoded, a struct is a dict that has every field of every version: one that this version has not has
its default. So what maps it to a request needs to know no versions. Written, fields that the version has not are left
out; a field without a default must be given.

Readers and writers are made at the first use of a version, once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from protocol.kafka.primitives import NO_TOPIC_ID, FlexibleReader, FlexibleWriter, Reader, Writer

T = TypeVar("T")
Read: TypeAlias = Callable[[Any], Any]  # of a Reader
Write: TypeAlias = Callable[[Any, Any], None]  # to a Writer, a value
Values: TypeAlias = Mapping[str, Any]

_LAST_VERSION = (1 << 15) - 1
_REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class Primitive:
    """A kind that one method of Reader and one of Writer know; `nullable_<name>` where it may be null."""

    name: str
    zero: object


BOOLEAN = Primitive("boolean", zero=False)
INT8 = Primitive("int8", 0)
INT16 = Primitive("int16", 0)
INT32 = Primitive("int32", 0)
INT64 = Primitive("int64", 0)
UINT16 = Primitive("uint16", 0)
FLOAT64 = Primitive("float64", 0.0)
UUID = Primitive("uuid", NO_TOPIC_ID)
STRING = Primitive("string", "")
DATA = Primitive("data", b"")


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a struct."""

    name: str
    kind: "Primitive | Array | Struct"
    since: int = 0
    until: int = _LAST_VERSION
    nullable: int = _LAST_VERSION + 1  # the first version in which it may be null
    tag: int | None = None
    default: Any = _REQUIRED

    def is_in(self, version: int) -> bool:
        """Whether a version has the field."""
        return self.since <= version <= self.until

    @property
    def absent(self) -> Any:
        """What it is where a version has it not."""
        return self.kind.zero if self.default is _REQUIRED else self.default


class Struct:
    """Fields in order."""

    __slots__ = ("_readers", "_writers", "fields")
    zero = None

    def __init__(self, *fields: Field) -> None:
        self.fields = fields
        self._readers: _PerVersion[Read] = _PerVersion(self._make_reader)
        self._writers: _PerVersion[Write] = _PerVersion(self._make_writer)

    def read(self, reader: Reader, version: int) -> dict[str, Any]:
        """The struct that begins at the reader's position. Raises what is in primitives.UNREADABLE."""
        values: dict[str, Any] = self.reader(version, flexible=reader.flexible)(reader)
        return values

    def write(self, writer: Writer, version: int, values: Values) -> None:
        """Write the struct, nested ones as mappings within it."""
        self.writer(version, flexible=writer.flexible)(writer, values)

    def reader(self, version: int, *, flexible: bool) -> Read:
        """What reads this version."""
        return self._readers.of(version, flexible=flexible)

    def writer(self, version: int, *, flexible: bool) -> Write:
        """What writes this version."""
        return self._writers.of(version, flexible=flexible)

    def _make_reader(self, version: int, *, flexible: bool) -> Read:
        present, tagged, absent = self._sorted(version)
        reads = [(field.name, _reader(field, version, flexible=flexible)) for field in present]
        known = {field.tag or 0: (field.name, _reader(field, version, flexible=flexible)) for field in tagged}

        def read(reader: Reader) -> dict[str, Any]:
            values = absent.copy()
            for name, read_field in reads:
                values[name] = read_field(reader)
            if flexible:
                reader.tags_into(values, known)
            return values

        return read

    def _make_writer(self, version: int, *, flexible: bool) -> Write:
        present, tagged, absent = self._sorted(version)
        writes = [(field.name, field.default, _writer(field, version, flexible=flexible)) for field in present]
        tags = [
            (field.tag or 0, field.name, absent[field.name], _writer(field, version, flexible=flexible))
            for field in tagged
        ]

        def write(writer: Writer, values: Values) -> None:
            for name, default, write_field in writes:
                write_field(writer, values[name] if default is _REQUIRED else values.get(name, default))
            if tags:
                _write_tagged(writer, values, tags)
            else:
                writer.tags()

        return write

    def _sorted(self, version: int) -> tuple[list[Field], list[Field], dict[str, Any]]:
        """A version's fields in order, its tagged ones by tag, and what these and those it has not are by default."""
        present = [field for field in self.fields if field.is_in(version)]
        plain = [field for field in present if field.tag is None]
        tagged = sorted((field for field in present if field.tag is not None), key=lambda field: field.tag or 0)
        absent = {field.name: field.absent for field in self.fields if field not in plain}
        return plain, tagged, absent


@dataclass(frozen=True, slots=True)
class Array:
    """Elements of one kind; decoded a tuple."""

    of: Primitive | Struct
    zero: object = ()


class _PerVersion(Generic[T]):
    """Readers or writers, made at first use."""

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[..., T]) -> None:
        self._make = make
        self._made: dict[tuple[int, bool], T] = {}

    def of(self, version: int, *, flexible: bool) -> T:
        key = (version, flexible)
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = self._make(version, flexible=flexible)
        return made


def array(*fields: Field) -> Array:
    """An array of structs."""
    return Array(Struct(*fields))


def _reader(field: Field, version: int, *, flexible: bool) -> Read:
    nullable = _nullable(field, version)
    if not isinstance(field.kind, Array):
        return _reader_of(field.kind, version, flexible=flexible, nullable=nullable)
    read_one = _reader_of(field.kind.of, version, flexible=flexible)
    read_count: Read = getattr(FlexibleReader if flexible else Reader, nullable + "count")

    def read_array(reader: Reader) -> tuple[Any, ...] | None:
        count = read_count(reader)
        return None if count < 0 else tuple([read_one(reader) for _ in range(count)])

    return read_array


def _reader_of(kind: Primitive | Struct, version: int, *, flexible: bool, nullable: str = "") -> Read:
    if isinstance(kind, Struct):
        read_struct = kind.reader(version, flexible=flexible)
        return (lambda reader: read_struct(reader) if reader.presence() else None) if nullable else read_struct
    read: Read = getattr(FlexibleReader if flexible else Reader, nullable + kind.name)
    return read


def _writer(field: Field, version: int, *, flexible: bool) -> Write:
    nullable = _nullable(field, version)
    if not isinstance(field.kind, Array):
        return _writer_of(field.kind, version, flexible=flexible, nullable=nullable)
    write_one = _writer_of(field.kind.of, version, flexible=flexible)

    def write_array(writer: Writer, values: Any) -> None:
        if values is None and nullable:
            writer.count(-1)
            return
        writer.count(len(values))
        for value in values:
            write_one(writer, value)

    return write_array


def _writer_of(kind: Primitive | Struct, version: int, *, flexible: bool, nullable: str = "") -> Write:
    if isinstance(kind, Struct):
        write_struct = kind.writer(version, flexible=flexible)
        return _nullable_struct_writer(write_struct) if nullable else write_struct
    write: Write = getattr(FlexibleWriter if flexible else Writer, nullable + kind.name)
    return write


def _nullable_struct_writer(write_struct: Write) -> Write:
    def write(writer: Writer, values: Any) -> None:
        writer.presence(values is not None)
        if values is not None:
            write_struct(writer, values)

    return write


def _nullable(field: Field, version: int) -> str:
    """The prefix of the methods that read and write a field."""
    return "nullable_" if version >= field.nullable else ""


def _write_tagged(writer: Writer, values: Values, tagged: list[tuple[int, str, Any, Write]]) -> None:
    """The tagged fields that are not what they are by default, by tag."""
    given = [
        (tag, values[name], write) for tag, name, absent, write in tagged if name in values and values[name] != absent
    ]
    writer.uvarint(len(given))
    for tag, value, write in given:
        field = FlexibleWriter(b"")
        write(field, value)
        data = field.written()
        writer.uvarint(tag)
        writer.uvarint(len(data))
        writer.raw(data)

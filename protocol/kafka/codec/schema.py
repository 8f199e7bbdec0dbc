"""Tables of fields: the only description of each Kafka message.

A message is a struct of fields. A field names a kind, the versions that have it, the first version in which it may be
null and, for a tagged field, its tag. Names are those of Kafka's message definitions in snake case, so a table can be
compared with its definition line by line.

A table is read and written in two forms:

    mapping     a dict by field names, with every field of every version; fields that the version lacks have their
                default. Clients, tests and tools use it.
    bound       the values that handlers and peers use. `Struct.into` is called with the fields that were read;
                `Field.attr` is a field's argument (reading) or attribute (writing). A broker reads requests and writes
                responses, a peer does the opposite, from the same tables.

Readers and writers are created at the first use of a version (`plan.py`) and cached.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID

Convert: TypeAlias = Callable[[Any], Any]
Get: TypeAlias = Callable[[Any, Any, int], Any]  # (the value to write, the request it answers, version)

LAST_VERSION = (1 << 15) - 1
NEVER = LAST_VERSION + 1
REQUIRED: Any = object()
SAME_NAME = ""


@dataclass(frozen=True, slots=True)
class Primitive:
    """A kind without parts. `wire`: name of the layout, if several kinds share a layout."""

    name: str
    zero: object
    wire: str = ""

    @property
    def layout(self) -> str:
        """Name of the layout on the wire."""
        return self.wire or self.name


BOOLEAN = Primitive("boolean", zero=False)
INT8 = Primitive("int8", 0)
INT16 = Primitive("int16", 0)
UINT16 = Primitive("uint16", 0)
INT32 = Primitive("int32", 0)
INT64 = Primitive("int64", 0)
FLOAT64 = Primitive("float64", 0.0)
UUID = Primitive("uuid", NO_TOPIC_ID)
STRING = Primitive("string", "")
DATA = Primitive("data", b"")  # read as a view of the frame
# Read as a copy: a value that outlives its request must not keep the whole frame in memory.
BYTES = Primitive("bytes", b"", wire="data")
# Bound, written unchanged: the reply is split around it, and only its len() is used.
RECORDS = Primitive("records", b"", wire="data")
# Bound, read as two arguments, `topic_id` and its current name as `topic` (empty if none); written from bytes
# or from text (`values.topic_id_text`), None as NO_TOPIC_ID.
TOPIC_ID = Primitive("topic_id", NO_TOPIC_ID, wire="uuid")
# Bound, written as UNKNOWN_TOPIC_ID within a Flat array if the topic was requested by an id without a name.
ERROR = Primitive("error", 0, wire="int16")
# In bound form: the reply's throttle_time_ms.
THROTTLE = Primitive("throttle", 0, wire="int32")


def error_of(code: int) -> ErrorCode:
    """Read an error code; unknown ones become UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def not_negative(number: int) -> int:
    """Read a limit or a duration; negative values count as 0."""
    return max(number, 0)


@dataclass(frozen=True, slots=True)
class Only:
    """The allowed values of a field. A request with another value is read, then refused with `message`, formatted."""

    values: tuple[Any, ...]
    code: ErrorCode
    message: str


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a struct.

    attr: the field's argument or attribute; None: skip the field when reading, write the default.
    convert: applied to the value that was read.
    get: computes the value to write, instead of reading the attribute.
    per_reply: computes the value to write from (request, version), once for the whole reply.
    null: replaces null in the bound form: a value read as null, and None if the version has no null.
    only: the allowed values in the bound form.
    before: {version: {error: error}}: the codes sent instead to clients older than a version.
    """

    name: str
    kind: "Primitive | Array | Struct"
    since: int = 0
    until: int = LAST_VERSION
    nullable: int = NEVER  # first version in which it may be null
    tag: int | None = None
    default: Any = REQUIRED
    attr: str | None = SAME_NAME
    convert: Convert | None = None
    get: Get | None = None
    per_reply: Callable[[Any, int], Any] | None = None
    null: Any = None
    only: Only | None = None
    before: Mapping[int, Mapping[int, int]] | None = None

    def is_in(self, version: int) -> bool:
        """Return whether a version has the field."""
        return self.since <= version <= self.until

    def is_nullable(self, version: int) -> bool:
        """Return whether the field may be null in a version."""
        return version >= self.nullable

    @property
    def absent(self) -> Any:
        """The value for versions that lack the field."""
        return self.kind.zero if self.default is REQUIRED else self.default

    @property
    def target(self) -> str | None:
        """The argument or attribute in the bound form."""
        return self.name if self.attr == SAME_NAME else self.attr


class Struct:
    """Fields in order.

    into: called with the fields as keyword arguments, in the bound form; None for a dict by `Field.target`.
    given: further arguments that depend only on the version.
    """

    __slots__ = ("fields", "given", "into", "made")
    zero = None

    def __init__(
        self,
        *fields: Field,
        into: Callable[..., Any] | None = None,
        given: Callable[[int], Mapping[str, Any]] | None = None,
    ) -> None:
        self.fields = fields
        self.into = into
        self.given = given
        self.made: dict[Any, Any] = {}  # readers and writers, cached by engine.py


@dataclass(frozen=True, slots=True)
class Array:
    """Elements of one kind; read as a tuple.

    kept: bound, the bytes of a `KeptArray` are written once and reused. So no field of an element may depend on the
    request.
    """

    of: Primitive | Struct
    zero: object = ()
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Flat(Array):
    """An array of groups whose last field is an array, as Kafka nests partitions in topics; bound, a flat tuple.

    Reading: each inner element becomes a value that also has the fields of its group (`into`).
    Writing: consecutive values with the same group fields form one group. In versions that name topics by id, the
    group fields come from `keys(value, request)`, which has an entry for each value: replies name topics by the ids in
    the request.
    """

    of: Struct
    into: Callable[..., Any] | None = None
    keys: Callable[[Any, Any], Sequence[Any]] | None = None


def array(*fields: Field, into: Callable[..., Any] | None = None, kept: bool = False) -> Array:
    """Describe an array of structs."""
    return Array(Struct(*fields, into=into), kept=kept)


def flat(
    *fields: Field, into: Callable[..., Any] | None = None, keys: Callable[[Any, Any], Sequence[Any]] | None = None
) -> Flat:
    """Describe an array of groups; the last field of each is the inner array."""
    return Flat(Struct(*fields), into=into, keys=keys)

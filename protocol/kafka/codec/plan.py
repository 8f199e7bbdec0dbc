"""Plans: a table of fields resolved for one version and form, as steps in wire order.

Both engines interpret a plan, `interpreter.py` in Python and `_compiled.pyx` in C. The plan resolves everything that
depends on the version: whether it has a field, whether the field may be null, and what replaces a missing field.

    reading     steps, then the tagged fields; each step names the argument it fills. `constants` are the arguments
                not filled by a step: fields that the version lacks, and tagged fields until they are read.
    writing     steps, which include the tags as constant bytes unless a tagged field is known
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from struct import Struct as Layout
from typing import Any

import msgspec

from warmlog.protocol.kafka.codec.schema import (
    ERROR,
    REQUIRED,
    THROTTLE,
    TOPIC_ID,
    Array,
    Convert,
    Field,
    Flat,
    Get,
    Only,
    Primitive,
    Struct,
    error_of,
)


class Code(IntEnum):
    """The kind of value that a step reads or writes."""

    BOOLEAN = 1
    INT8 = 2
    INT16 = 3
    UINT16 = 4
    INT32 = 5
    INT64 = 6
    FLOAT64 = 7
    UUID = 8
    STRING = 9
    DATA = 10  # a view of the frame
    BYTES = 11  # a copy
    RECORDS = 12
    TOPIC_ID = 13
    ERROR = 14
    THROTTLE = 15
    STRUCT = 16
    ARRAY = 17
    FLAT = 18
    CONSTANT = 19  # writing only: bytes that are the same in every message


# Fixed-size kinds: format characters of the struct module.
FIXED: Mapping[Code, str] = {
    Code.BOOLEAN: "?",
    Code.INT8: "b",
    Code.INT16: "h",
    Code.UINT16: "H",
    Code.INT32: "i",
    Code.INT64: "q",
    Code.FLOAT64: "d",
    Code.UUID: "16s",
    Code.TOPIC_ID: "16s",
    Code.ERROR: "h",
    Code.THROTTLE: "i",
}
_NEVER_NULL = {code.name.lower() for code in FIXED}
_NEVER_KEPT = {Code.THROTTLE, Code.RECORDS, Code.FLAT}
_ONLY_BOUND = {"topic_id": Code.UUID, "error": Code.INT16, "throttle": Code.INT32, "records": Code.DATA}


@dataclass(frozen=True, slots=True, eq=False)
class ReadStep:
    """Reads one field. `to`: the argument that it fills, or None."""

    name: str
    code: Code
    to: str | None
    nullable: bool = False
    null: Any = None
    convert: Convert | None = None
    only: Only | None = None
    of: "ReadPlan | None" = None  # for STRUCT, FLAT, and the elements of an ARRAY of structs
    element: Code | None = None  # for the elements of an ARRAY of primitives
    tagged: bool = False  # null is a count of 0 in a struct with a tag, the byte -1 in any other


@dataclass(frozen=True, slots=True, eq=False)
class ReadPlan:
    """Reads one struct.

    inherited: arguments that the group of a Flat array passes to each element.
    inner: the array within a group; no value is created for the group itself.
    """

    title: str
    flexible: bool
    has_tags: bool
    steps: tuple[ReadStep, ...]
    tagged: Mapping[int, ReadStep] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    inherited: tuple[str, ...] = ()
    into: Callable[..., Any] | None = None
    inner: ReadStep | None = None


@dataclass(frozen=True, slots=True, eq=False)
class WriteStep:
    """Writes one field.

    attr, get, per_reply: source of the value in the bound form; key, default: in the mapping form.
    """

    name: str
    code: Code
    attr: str | None = None
    get: Get | None = None
    per_reply: Callable[[Any, int], Any] | None = None
    version: int = 0
    key: str | None = None
    default: Any = REQUIRED
    nullable: bool = False
    null: Any = None
    of: "WritePlan | None" = None
    element: Code | None = None
    constant: bytes = b""
    replaced: Mapping[int, int] | None = None
    keys: Callable[[Any, Any], Sequence[Any]] | None = None
    tag: int | None = None
    kept: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class WritePlan:
    """Writes one struct. `group_attrs`: attributes that all values of one group of a Flat array share."""

    title: str
    flexible: bool
    has_tags: bool
    steps: tuple[WriteStep, ...]
    tagged: tuple[WriteStep, ...] = ()
    inner: WriteStep | None = None
    group_attrs: tuple[str, ...] = ()


def read_plan(table: Struct, version: int, *, flexible: bool, bound: bool, title: str = "message") -> ReadPlan:
    """Resolve a table for reading."""
    return _Resolver(version, flexible=flexible, bound=bound, title=title).read_struct(table, table.into)


def write_plan(table: Struct, version: int, *, flexible: bool, bound: bool, title: str = "message") -> WritePlan:
    """Resolve a table for writing."""
    return _Resolver(version, flexible=flexible, bound=bound, title=title).write_struct(table)


def all_steps(plan: WritePlan) -> Iterator[WriteStep]:
    """Iterate over the steps at any depth."""
    for step in (*plan.steps, *plan.tagged, *(() if plan.inner is None else (plan.inner,))):
        yield step
        if step.of is not None:
            yield from all_steps(step.of)


class _Resolver:
    """Resolves a table for one version and form."""

    def __init__(self, version: int, *, flexible: bool, bound: bool, title: str) -> None:
        self._version = version
        self._flexible = flexible
        self._bound = bound
        self._title = title

    # -- reading --

    def read_struct(self, table: Struct, into: Callable[..., Any] | None, inherited: tuple[str, ...] = ()) -> ReadPlan:
        """Resolve a struct."""
        plain, tagged = self._present(table)
        steps = tuple([self._read_step(each) for each in plain])
        by_tag = {each.tag or 0: replace(self._read_step(each), tagged=True) for each in tagged}
        into = into if self._bound else None
        constants = self._constants(table, into, {*_arguments(steps), *inherited})
        for each, step in zip(tagged, by_tag.values(), strict=True):
            if step.to is not None:
                constants[step.to] = self._absent(each)
        return ReadPlan(
            title=self._title,
            flexible=self._flexible,
            has_tags=self._flexible,
            steps=steps,
            tagged=by_tag,
            constants=constants,
            inherited=inherited,
            into=into,
        )

    def _constants(self, table: Struct, into: Callable[..., Any] | None, filled: set[str]) -> dict[str, Any]:
        """Return the arguments of fields that the version lacks, unless the value's class has the same default."""
        absent = {
            self._target(each) or "": self._absent(each) for each in table.fields if not each.is_in(self._version)
        }
        if self._bound and table.given is not None:
            absent |= table.given(self._version)
        known = _defaults(into)
        return {
            name: value
            for name, value in absent.items()
            if name and name not in filled and not (name in known and _is_same(known[name], value))
        }

    def _absent(self, entry: Field) -> Any:
        """Return the value for a field that the version lacks."""
        if not self._bound:
            return entry.absent
        if entry.absent is None:
            return entry.null
        return entry.absent if entry.convert is None else entry.convert(entry.absent)

    def _read_step(self, entry: Field) -> ReadStep:
        step = ReadStep(
            name=entry.name,
            code=self._code(entry.kind, reading=True),
            to=self._target(entry),
            nullable=self._is_nullable(entry),
            null=entry.null if self._bound else None,
            convert=self._conversion(entry),
            only=entry.only if self._bound else None,
        )
        kind = entry.kind
        if isinstance(kind, Struct):
            return replace(step, of=self.read_struct(kind, kind.into))
        if isinstance(kind, Flat) and self._bound:
            return replace(step, code=Code.FLAT, of=self._read_groups(kind))
        if isinstance(kind, Array):
            if isinstance(kind.of, Struct):
                return replace(step, of=self.read_struct(kind.of, kind.of.into))
            return replace(step, element=self._code(kind.of, reading=True))
        return step

    def _conversion(self, entry: Field) -> Convert | None:
        """Return the conversion of a field that was read; error codes become ErrorCode."""
        if not self._bound:
            return None
        return error_of if entry.convert is None and entry.kind is ERROR else entry.convert

    def _read_groups(self, kind: Flat) -> ReadPlan:
        plain, tagged = self._present(kind.of)
        *group, inner = plain
        if tagged or not isinstance(inner.kind, Array):
            raise TypeError(f"{self._title}: a flat array's groups must end in an array and have no tagged fields")
        steps = tuple([self._read_step(each) for each in group])
        of = inner.kind.of
        if isinstance(of, Struct):
            plan = self.read_struct(of, kind.into, _arguments(steps))
        else:
            element = ReadStep(name=inner.name, code=self._code(of, reading=True), to=inner.target)
            plan = ReadPlan(
                title=self._title,
                flexible=self._flexible,
                has_tags=False,
                steps=(element,),
                inherited=_arguments(steps),
                into=kind.into,
            )
        return ReadPlan(
            title=self._title,
            flexible=self._flexible,
            has_tags=self._flexible,
            steps=steps,
            inner=ReadStep(name=inner.name, code=Code.ARRAY, to=None, of=plan),
        )

    # -- writing --

    def write_struct(self, table: Struct) -> WritePlan:
        """Resolve a struct."""
        plain, tagged = self._present(table)
        steps = [self._write_step(each) for each in plain]
        if self._bound:
            tagged = [each for each in tagged if each.get is not None or each.target is not None]
        if self._flexible and not tagged:
            steps.append(_constant("tags", b"\0"))
        return WritePlan(
            title=self._title,
            flexible=self._flexible,
            has_tags=self._flexible,
            steps=_merged(steps),
            tagged=tuple([replace(self._write_step(each), tag=each.tag, default=each.absent) for each in tagged]),
        )

    def _write_step(self, entry: Field) -> WriteStep:
        kind = entry.kind
        step = WriteStep(
            name=entry.name,
            code=self._code(kind, reading=False),
            nullable=self._is_nullable(entry),
            null=entry.null if self._bound and not self._is_nullable(entry) else None,
        )
        if not self._bound:
            step = replace(step, key=entry.name, default=entry.default)
        elif (entry.get, entry.per_reply, entry.target) == (None, None, None) and kind is not THROTTLE:
            return _constant(entry.name, self._default_bytes(entry, step))
        else:
            step = replace(
                step,
                attr=entry.target,
                get=entry.get,
                per_reply=entry.per_reply,
                version=self._version,
                replaced=self._replaced(entry),
            )
        if isinstance(kind, Struct):
            return replace(step, of=self.write_struct(kind))
        if isinstance(kind, Flat) and self._bound:
            plan, by_id = self._write_groups(kind)
            return replace(step, code=Code.FLAT, of=plan, keys=kind.keys if by_id else None)
        if isinstance(kind, Array):
            if isinstance(kind.of, Struct):
                return replace(step, of=self._write_elements(kind, kind.of), kept=kind.kept and self._bound)
            return replace(step, element=self._code(kind.of, reading=False))
        return step

    def _write_elements(self, kind: Array, of: Struct) -> WritePlan:
        """Resolve the elements of an array; their bytes can be kept only if they are the same in every reply."""
        plan = self.write_struct(of)
        if kind.kept and any(step.code in _NEVER_KEPT or step.per_reply is not None for step in all_steps(plan)):
            raise TypeError(f"{self._title}: the elements of a kept array depend on the reply")
        return plan

    def _write_groups(self, kind: Flat) -> tuple[WritePlan, bool]:
        """Resolve the groups; also return whether topic ids name them."""
        plain, tagged = self._present(kind.of)
        *group, inner = plain
        if tagged or not isinstance(inner.kind, Array):
            raise TypeError(f"{self._title}: a flat array's groups must end in an array and have no tagged fields")
        of = inner.kind.of
        if isinstance(of, Struct):
            element = self.write_struct(of)
        else:
            step = WriteStep(name=inner.name, code=self._code(of, reading=False), attr=inner.target)
            element = WritePlan(title=self._title, flexible=self._flexible, has_tags=False, steps=(step,))
        plan = WritePlan(
            title=self._title,
            flexible=self._flexible,
            has_tags=self._flexible,
            steps=tuple([self._write_step(each) for each in group]),
            inner=WriteStep(name=inner.name, code=Code.ARRAY, of=element),
            group_attrs=tuple([each.target for each in group if each.target]),
        )
        return plan, any(each.kind is TOPIC_ID for each in group)

    def _default_bytes(self, entry: Field, step: WriteStep) -> bytes:
        """Return the bytes of a field that always has its default."""
        if entry.absent is None or not isinstance(entry.kind, Primitive):
            if entry.absent is not None and len(entry.absent):
                raise TypeError(f"{self._title}: {entry.name} has a default that cannot be a constant")
            return self._empty_bytes(entry, is_null=entry.absent is None)
        if step.code in FIXED:
            return Layout(">" + FIXED[step.code]).pack(entry.absent)
        return self._empty_bytes(entry, is_null=False)

    def _empty_bytes(self, entry: Field, *, is_null: bool) -> bytes:
        if is_null and not entry.is_nullable(self._version):
            raise TypeError(f"{self._title}: {entry.name} may not be null in version {self._version}")
        if self._flexible:
            return b"\0" if is_null else b"\1"
        size = 2 if self._code(entry.kind, reading=False) is Code.STRING else 4
        return (b"\xff" if is_null else b"\0") * size

    def _replaced(self, entry: Field) -> Mapping[int, int] | None:
        for version, codes in sorted((entry.before or {}).items()):
            if self._version < version:
                return codes
        return None

    # -- reading and writing --

    def _present(self, table: Struct) -> tuple[list[Field], list[Field]]:
        """List the version's fields in order, and its tagged fields by tag."""
        present = [each for each in table.fields if each.is_in(self._version)]
        tagged = sorted((each for each in present if each.tag is not None), key=lambda each: each.tag or 0)
        return [each for each in present if each.tag is None], tagged

    def _is_nullable(self, entry: Field) -> bool:
        nullable = entry.is_nullable(self._version)
        if nullable and isinstance(entry.kind, Primitive) and entry.kind.layout in _NEVER_NULL:
            raise TypeError(f"{self._title}: {entry.name} cannot be null")
        return nullable

    def _target(self, entry: Field) -> str | None:
        return entry.target if self._bound else entry.name

    def _code(self, kind: Primitive | Array | Struct, *, reading: bool) -> Code:
        if isinstance(kind, Struct):
            return Code.STRUCT
        if isinstance(kind, Array):
            return Code.ARRAY
        if kind.name in _ONLY_BOUND and (not self._bound or (reading and kind in {ERROR, THROTTLE})):
            return _ONLY_BOUND[kind.name]
        code = Code[kind.name.upper()]
        return Code.DATA if code is Code.RECORDS and reading else code


def _arguments(steps: Sequence[ReadStep]) -> tuple[str, ...]:
    """Name the arguments that steps fill; a topic id also fills `topic`."""
    names = []
    for step in steps:
        if step.to is not None:
            names += [step.to, "topic"] if step.code is Code.TOPIC_ID else [step.to]
    return tuple(names)


def _defaults(into: Callable[..., Any] | None) -> dict[str, Any]:
    """Return the defaults of a value's class, which need not be passed as arguments."""
    if not (isinstance(into, type) and issubclass(into, msgspec.Struct)):
        return {}
    defaults = into.__struct_defaults__
    names = into.__struct_fields__[len(into.__struct_fields__) - len(defaults) :]
    return dict(zip(names, defaults, strict=True))


def _is_same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)


def _constant(name: str, data: bytes) -> WriteStep:
    return WriteStep(name=name, code=Code.CONSTANT, constant=data)


def _merged(steps: Sequence[WriteStep]) -> tuple[WriteStep, ...]:
    """Join consecutive constants."""
    merged: list[WriteStep] = []
    for step in steps:
        if merged and step.code is Code.CONSTANT and merged[-1].code is Code.CONSTANT:
            before = merged.pop()
            merged.append(_constant(f"{before.name}, {step.name}", before.constant + step.constant))
        else:
            merged.append(step)
    return tuple(merged)

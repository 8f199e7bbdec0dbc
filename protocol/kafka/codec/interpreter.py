"""Run plans in pure Python, step by step, as the compiled engine does (`_compiled.pyx`)."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from struct import Struct
from typing import Any, NamedTuple

from warmlog.protocol.kafka.codec.kept import KeptArray
from warmlog.protocol.kafka.codec.plan import FIXED, Code, ReadPlan, ReadStep, WritePlan, WriteStep
from warmlog.protocol.kafka.codec.reader import Reader
from warmlog.protocol.kafka.codec.schema import REQUIRED
from warmlog.protocol.kafka.codec.writer import FlexibleWriter, Writer, groups, or_null, packed, topic_id_bytes

_LAYOUTS = {code: Struct(">" + layout) for code, layout in FIXED.items()}
_IDS = {Code.UUID, Code.TOPIC_ID}
_PARTS = {Code.STRUCT, Code.ARRAY, Code.FLAT}
_READ_METHODS = {Code.STRING: "string", Code.DATA: "data", Code.BYTES: "copied"}
_WRITE_METHODS = {Code.STRING: "string", Code.DATA: "data", Code.BYTES: "data", Code.RECORDS: "records"}
_UNKNOWN_TOPIC_ID = 100
_NOTHING: Mapping[str, Any] = {}


# -- reading -----------------------------------------------------------------------------------------------------------


def read_struct(plan: ReadPlan, reader: Reader, inherited: Mapping[str, Any] = _NOTHING) -> Any:
    """Read a struct. `inherited`: the arguments from the group that it belongs to."""
    arguments = {**plan.constants, **inherited}
    for step in plan.steps:
        _read_field(step, reader, arguments)
    if plan.tagged:
        for _ in range(reader.tag_count()):
            tag, end = reader.tag()
            known = plan.tagged.get(tag)
            if known is None:
                reader.skip_tag(end)
            else:
                start = reader.position
                _read_field(known, reader, arguments)
                reader.end_tag(tag, start, end)
    elif plan.has_tags:
        reader.tags()
    return arguments if plan.into is None else plan.into(**arguments)


def _read_field(step: ReadStep, reader: Reader, arguments: dict[str, Any]) -> None:
    if step.code in _LAYOUTS:
        (value,) = reader.fixed(_LAYOUTS[step.code])
        if step.to is None:
            return
        if step.code is Code.TOPIC_ID:
            arguments["topic"] = reader.topic_name(value)
    else:
        value = _read_value(step, reader)
    if value is None:
        value = step.null
    else:
        if step.only is not None and value not in step.only.values:
            reader.refuse(step.only, value)
        if step.convert is not None:
            value = step.convert(value)
    if step.to is not None:
        arguments[step.to] = value


def _read_value(step: ReadStep, reader: Reader) -> Any:
    """Read a value of variable size; None for null."""
    if step.code is Code.STRUCT:
        assert step.of is not None
        is_null = step.nullable and reader.fixed(_LAYOUTS[Code.INT8])[0] < step.tagged
        return None if is_null else read_struct(step.of, reader)
    if step.code in _PARTS:
        count = reader.nullable_count() if step.nullable else reader.count()
        return None if count < 0 else _read_elements(step, reader, count)
    return getattr(reader, ("nullable_" if step.nullable else "") + _READ_METHODS[step.code])()


def _read_elements(step: ReadStep, reader: Reader, count: int) -> tuple[Any, ...]:
    code, plan = step.element, step.of
    if code is not None:
        if code in _IDS:
            return tuple([reader.fixed(_LAYOUTS[code])[0] for _ in range(count)])
        if code in _LAYOUTS:
            return reader.numbers(count, FIXED[code], _LAYOUTS[code].size)
        read = getattr(reader, _READ_METHODS[code])
        return tuple([read() for _ in range(count)])
    assert plan is not None
    if step.code is Code.ARRAY:
        return tuple([read_struct(plan, reader) for _ in range(count)])
    return tuple([element for _ in range(count) for element in _read_group(plan, reader)])


def _read_group(plan: ReadPlan, reader: Reader) -> list[Any]:
    """Read the elements of a group, each with the fields of the group."""
    assert plan.inner is not None
    assert plan.inner.of is not None
    group: dict[str, Any] = {}
    for step in plan.steps:
        _read_field(step, reader, group)
    elements = [read_struct(plan.inner.of, reader, group) for _ in range(reader.count())]
    if plan.has_tags:
        reader.tags()
    return elements


# -- writing -----------------------------------------------------------------------------------------------------------


class Reply(NamedTuple):
    """The request that a message answers, and the values that are computed once for the whole reply."""

    request: Any
    values: Mapping[WriteStep, Any]


def write_struct(plan: WritePlan, writer: Writer, owner: Any, reply: Reply, *, unknown: bool = False) -> None:
    """Write a struct. `unknown`: its topic was requested by an id without a name."""
    for step in plan.steps:
        _write_step(step, writer, owner, reply, unknown=unknown)
    if not plan.tagged:
        return
    fields = []
    for step in plan.tagged:
        if _value(step, owner, reply) != step.default:
            part = FlexibleWriter(b"")
            _write_step(step, part, owner, reply)
            fields.append((step.tag or 0, part.written()))
    writer.tagged(fields)


def _value(step: WriteStep, owner: Any, reply: Reply) -> Any:
    if step.key is not None:
        return owner[step.key] if step.default is REQUIRED else owner.get(step.key, step.default)
    if step.per_reply is not None:
        value = reply.values[step]
    elif step.get is not None:
        value = step.get(owner, reply.request, step.version)
    else:
        value = getattr(owner, step.attr or "")
    return or_null(value, step.null) if step.nullable or step.null is not None else value


def _write_step(step: WriteStep, writer: Writer, owner: Any, reply: Reply, *, unknown: bool = False) -> None:
    code = step.code
    if code is Code.CONSTANT:
        writer.raw(step.constant)
        return
    if code is Code.THROTTLE:
        writer.raw(packed(_LAYOUTS[code], writer.throttle_ms))
        return
    value = _value(step, owner, reply)
    if code in _PARTS:
        _write_parts(step, writer, value, owner, reply)
        return
    if step.replaced is not None:
        value = step.replaced.get(value, value)
    if code is Code.ERROR and unknown:
        value = _UNKNOWN_TOPIC_ID
    _write_primitive(code, writer, value, "nullable_" if step.nullable else "")


def _write_primitive(code: Code, writer: Writer, value: Any, kind: str = "") -> None:
    if code in _IDS:
        writer.raw(topic_id_bytes(value))
    elif code in _LAYOUTS:
        writer.raw(packed(_LAYOUTS[code], value))
    else:
        getattr(writer, kind + _WRITE_METHODS[code])(value)


def _write_parts(step: WriteStep, writer: Writer, value: Any, owner: Any, reply: Reply) -> None:
    """Write a struct or an array."""
    if value is None and step.nullable:
        if step.code is not Code.STRUCT:
            writer.length(-1)
        else:
            writer.raw(b"\xff" if step.tag is None else b"\0")
    elif step.code is Code.FLAT:
        _write_groups(step, writer, value, owner, reply)
    elif step.code is Code.STRUCT:
        assert step.of is not None
        if step.nullable:
            writer.raw(b"\1")
        write_struct(step.of, writer, value, reply)
    elif step.kept and isinstance(value, KeptArray):
        data = value.written.get(step)
        if data is not None:
            writer.kept(data)
        else:
            start = writer.size
            _write_array(step, writer, value, reply)
            value.keep(step, writer.written_since(start))
    else:
        _write_array(step, writer, value, reply)


def _write_array(step: WriteStep, writer: Writer, values: Sequence[Any], reply: Reply) -> None:
    writer.count(len(values))
    for element in values:
        if step.of is not None:
            write_struct(step.of, writer, element, reply)
        else:
            assert step.element is not None
            _write_primitive(step.element, writer, element)


def _write_groups(step: WriteStep, writer: Writer, values: Sequence[Any], owner: Any, reply: Reply) -> None:
    """Write values in groups, which `step.keys` names in versions with topic ids."""
    plan = step.of
    assert plan is not None
    assert plan.inner is not None
    assert plan.inner.of is not None
    keys = values if step.keys is None else step.keys(owner, reply.request)
    writer.work(len(values))
    runs = groups(values, keys, attrgetter(*plan.group_attrs))
    writer.count(len(runs))
    for key, run in runs:
        write_struct(plan, writer, key, reply)
        writer.length(len(run))
        unknown = step.keys is not None and key.topic == ""
        for element in run:
            write_struct(plan.inner.of, writer, element, reply, unknown=unknown)
        if plan.has_tags:
            writer.tags()

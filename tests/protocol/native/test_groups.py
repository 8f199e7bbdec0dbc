"""Group operations: round trips of every value, also through another msgpack implementation."""

import enum
from collections.abc import Callable
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import HeartbeatResponse, LeaveGroupResponse, LeftMember
from warmlog.protocol.native.codec import decode_request, decode_response, encode_request, encode_response
from warmlog.protocol.native.groups import GroupPosition
from warmlog.protocol.native.messages import OPERATIONS, Operation
from warmlog.protocol.response import ErrorResponse

FIRST = "join_consumer_group"
OF_GROUPS = OPERATIONS[[operation.name for operation in OPERATIONS].index(FIRST) :]
SIMPLE: dict[type, Callable[[Any], st.SearchStrategy[Any]]] = {
    inspect.IntType: lambda kind: st.integers(
        -(1 << 31) if kind.ge is None else kind.ge, (1 << 31) - 1 if kind.lt is None else kind.lt - 1
    ),
    inspect.StrType: lambda _: st.text(max_size=8),
    inspect.BoolType: lambda _: st.booleans(),
    inspect.BytesType: lambda _: st.binary(max_size=8),
    inspect.CustomType: lambda _: st.binary(max_size=8),  # records
    inspect.NoneType: lambda _: st.none(),
}


def values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Return a strategy for values of a type."""
    match kind:
        case inspect.StructType(cls=cls, fields=fields):
            return st.builds(cls, **{field.name: values(field.type) for field in fields})
        case inspect.VarTupleType(item_type=item):
            return st.lists(values(item), max_size=3).map(tuple)
        case inspect.DictType(key_type=key, value_type=item):
            return st.dictionaries(values(key), values(item), max_size=3)
        case inspect.UnionType(types=types):
            return st.one_of(*map(values, types))
        case inspect.EnumType(cls=cls):
            return st.sampled_from(list(cls))
    return SIMPLE[type(kind)](kind)


def plain(value: Any) -> Any:
    """Return the value as another msgpack implementation decodes it."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    if isinstance(value, memoryview):
        return bytes(value)
    return value.value if isinstance(value, enum.Enum) else value


@pytest.mark.parametrize("operation", OF_GROUPS, ids=lambda operation: operation.name)
@given(data=st.data())
def test_requests_come_back_as_they_were(operation: Operation, data: st.DataObject) -> None:
    request = data.draw(values(inspect.type_info(operation.request)))
    frame = encode_request(7, request)
    assert msgpack.unpackb(frame[4:]) == {"op": operation.name, "id": 7, **plain(request)}
    request_id, decoded = decode_request(frame[4:])
    assert request_id == 7
    assert isinstance(decoded, operation.request)
    assert plain(decoded) == plain(request) | {"id": 7}


@pytest.mark.parametrize("operation", OF_GROUPS, ids=lambda operation: operation.name)
@given(data=st.data())
def test_replies_come_back_as_they_were_or_as_the_error_that_they_are(
    operation: Operation, data: st.DataObject
) -> None:
    response = data.draw(values(inspect.type_info(operation.response)))
    frame = b"".join(map(bytes, encode_response(7, response)))  # type: ignore[arg-type]
    assert msgpack.unpackb(frame[4:]) == {"id": 7, **plain(response)}
    error = getattr(response, "error", ErrorCode.NONE)
    expected = response if error is ErrorCode.NONE else ErrorResponse(error=error, message=response.message)
    request_id, decoded = decode_response(frame[4:], operation.received)
    assert request_id == 7
    assert type(decoded) is (operation.received if error is ErrorCode.NONE else ErrorResponse)
    assert plain(decoded) == plain(expected)


def test_a_reply_with_an_error_of_its_own_is_an_error() -> None:
    heartbeat = HeartbeatResponse(error=ErrorCode.REBALANCE_IN_PROGRESS, message="join again")
    left = LeaveGroupResponse(members=(LeftMember(member_id="m", error=ErrorCode.UNKNOWN_MEMBER_ID),))
    for response, told in ((heartbeat, ErrorResponse(error=heartbeat.error, message="join again")), (left, left)):
        (frame,) = encode_response(1, response)
        assert decode_response(bytes(frame)[4:], type(response)) == (1, told)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("offset", "high_watermark", "lag"), [(5, 8, 3), (8, 8, 0), (9, 8, 0), (-1, 8, None), (5, -1, None)]
)
def test_the_lag(offset: int, high_watermark: int, lag: int | None) -> None:
    assert GroupPosition(topic="t", partition=0, offset=offset, high_watermark=high_watermark).lag == lag

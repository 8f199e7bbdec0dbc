"""The compiled engine and the pure one have the same results and errors, for sound messages and for hostile ones."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.kafka.messages import (
    MESSAGES,
    TABLES,
    VERSIONS,
    body,
    drawn,
    flexible,
    frame,
    parsed,
    reply_body,
    sample,
    with_defaults,
)
from tests.protocol.kafka.replies import response_to
from warmlog.protocol.errors import ErrorCode, ProtocolError
from warmlog.protocol.kafka.api import APIS, Api, Codec, RefusedError
from warmlog.protocol.kafka.codec.bounds import (
    CUT_BYTES,
    MAX_ELEMENTS,
    MAX_STRING_BYTES,
    NO_LIMIT,
    LargeMessageError,
    MalformedError,
    ReplyTooLargeError,
)
from warmlog.protocol.kafka.codec.engine import ENGINE, PURE, Engine
from warmlog.protocol.kafka.codec.schema import Struct
from warmlog.protocol.response import (
    CreateTopicsResponse,
    ErrorResponse,
    ListedOffset,
    ListOffsetsResponse,
    TopicResult,
)

ENGINES = [PURE, ENGINE]
pytestmark = pytest.mark.skipif(ENGINE is PURE, reason="the compiled engine is not built")
BY_NAME = {api.name: api for api in APIS}
# Alone and in runs: lengths that are too large, negative or null, varints without an end, text that is not UTF-8.
HOSTILE = (
    b"\xff", b"\x00", b"\x80", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\x0f",
    b"\x80\x80\x80\x80\x10", b"\x80\x80\x80\x80\x80\x01", b"\xff\xfe", b"\x80\x00\x00\x00", b"\x03\xc3\x28",
    b"\x01\x00\x7f", b"\x02\x63\x00\x64\x01",
)  # fmt: skip


def names(topic_id: bytes) -> str | None:
    return None if topic_id[0] % 2 else topic_id.hex()


CODECS = [Codec(names, engine) for engine in ENGINES]


def outcome(step: Any) -> Any:
    """The result, or the error's class and text."""
    try:
        return step()
    except (ProtocolError, UnicodeDecodeError) as error:
        return type(error), str(error)


def mapping(engine: Engine, table: Struct, api: Api, version: int, data: bytes) -> Any:
    reader = engine.reader(table, version, flexible=flexible(api, version))
    return outcome(lambda: reader.read(memoryview(data)))


def same(results: list[Any]) -> Any:
    assert results[0] == results[1]
    return results[0]


@st.composite
def messages(draw: st.DrawFn) -> tuple[Struct, Api, int, bytes, Any]:
    name, api, version = draw(st.sampled_from(MESSAGES))
    values = drawn(TABLES[name], version, draw(st.data()))
    return TABLES[name], api, version, body(name, api, version, values), values


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Overwritten, cut or with something between."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        bad = draw(st.sampled_from(HOSTILE) | st.binary(min_size=1, max_size=4))
        kind = draw(st.sampled_from(["over", "between", "cut"]))
        data = data[:at] + (b"" if kind == "cut" else bad) + (data[at + len(bad) :] if kind != "between" else data[at:])
        if kind == "cut":
            data = data[:at]
    return data


@given(message=messages())
def test_every_message_is_written_and_read_alike(message: Any) -> None:
    table, api, version, _, values = message
    written = same([engine.writer(table, version, flexible=flexible(api, version)).write(values) for engine in ENGINES])
    value, end = same([mapping(engine, table, api, version, written) for engine in ENGINES])
    assert end == len(written)
    assert set(value) == {field.name for field in table.fields}


@given(message=messages(), data=st.data())
def test_damage_is_found_alike(message: Any, data: st.DataObject) -> None:
    table, api, version, written, _ = message
    bad = data.draw(damaged(written))
    same([mapping(engine, table, api, version, bad) for engine in ENGINES])


@given(api_and_version=st.sampled_from(VERSIONS), data=st.data())
def test_requests_are_decoded_alike(api_and_version: tuple[Api, int], data: st.DataObject) -> None:
    api, version = api_and_version
    name = f"{api.name}Request"
    whole = bytes(frame(api, version, body(name, api, version, drawn(TABLES[name], version, data))))
    for one in (whole, data.draw(damaged(whole))):
        same([outcome(lambda codec=codec, one=one: codec.decode(memoryview(one))) for codec in CODECS])


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_replies_are_encoded_alike(api: Api, version: int) -> None:
    """And by the table as a client reads it, to the last byte."""
    for seed in range(10):
        source = random.Random(f"{api.name} {version} {seed}")
        values = sample(TABLES[f"{api.name}Request"], version, source)
        whole = frame(api, version, body(f"{api.name}Request", api, version, values))
        try:
            call = CODECS[0].decode(whole)
        except RefusedError as refused:
            call = refused.call
        for response in (response_to(api, call.request, source), ErrorResponse(error=ErrorCode.CORRUPT_MESSAGE)):
            pieces = same([codec.encode(call, response, seed) for codec in CODECS])
            parsed(f"{api.name}Response", api, version, reply_body(api, version, pieces))


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_hostile_bytes_anywhere_in_a_request_are_refused_or_read_alike(api: Api, version: int) -> None:
    name = f"{api.name}Request"
    values = {field.name: _one(field.kind) for field in TABLES[name].fields if field.is_in(version)}
    whole = bytes(frame(api, version, body(name, api, version, values)))
    source = random.Random(version)
    for at in range(8, len(whole)):
        bad = source.choice(HOSTILE)
        for one in (whole[:at] + bad, whole[:at] + bad + whole[at + len(bad) :], whole[:at] + bad + whole[at:]):
            same([outcome(lambda codec=codec, one=one: codec.decode(memoryview(one))) for codec in CODECS])


def _one(kind: Any) -> Any:
    """A small value with one element in each array."""
    if isinstance(kind, Struct):
        return {field.name: _one(field.kind) for field in kind.fields}
    if hasattr(kind, "of"):
        return (_one(kind.of),)
    return {"string": "ab", "data": b"cd", "uuid": b"i" * 16, "boolean": True}.get(kind.layout, 1)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_work_over_the_limit_is_refused_before_it_is_done(engine: Engine) -> None:
    api = BY_NAME["Fetch"]
    partition = _one(TABLES["FetchRequest"].fields[9].kind.of.fields[2].kind.of)
    topic = {"topic": "t", "topic_id": b"i" * 16, "partitions": (partition,) * engine.loop_work}
    values = {field.name: _one(field.kind) for field in TABLES["FetchRequest"].fields} | {"topics": (topic,)}
    codec = Codec(names, engine)
    whole = frame(api, 12, body("FetchRequest", api, 12, values))
    with pytest.raises(LargeMessageError):
        codec.decode(whole, limit=engine.loop_work)
    call = codec.decode(whole, limit=engine.loop_work + 1000)
    assert call == codec.decode(whole)
    assert call == codec.decode(whole, limit=NO_LIMIT)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
@pytest.mark.parametrize("version", [5, 7])
@pytest.mark.parametrize("count", [50, 60_000])
def test_a_reply_of_more_bytes_than_allowed_is_refused_and_a_long_one_is_cut(
    engine: Engine, version: int, count: int
) -> None:
    api = BY_NAME["ListOffsets"]
    codec = Codec(names, engine)
    values = with_defaults(TABLES["ListOffsetsRequest"], version, {"topics": ()})
    call = codec.decode(frame(api, version, body("ListOffsetsRequest", api, version, values)))
    response = ListOffsetsResponse(partitions=(ListedOffset(topic="t", partition=0),) * count)
    pieces: Any = codec.encode(call, response)
    whole = b"".join(pieces)
    assert int.from_bytes(whole[:4]) == len(whole) - 4
    assert [len(piece) for piece in pieces[:-1]] == [CUT_BYTES] * (len(whole) // CUT_BYTES)
    fitting: Any = codec.encode(call, response, max_bytes=len(whole))
    assert b"".join(fitting) == whole
    with pytest.raises(ReplyTooLargeError, match=f"more than {len(whole) - 1} bytes"):
        codec.encode(call, response, max_bytes=len(whole) - 1)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
@pytest.mark.parametrize("version", [2, 4])
@pytest.mark.parametrize("text", ["x" * 40_000, "xé" + "é" * 20_000, "é" * 20_000, "xx" + "😀" * 9_000, "x" * 32_767])
def test_messages_of_replies_are_cut_to_what_a_string_may_have(engine: Engine, version: int, text: str) -> None:
    api = BY_NAME["CreateTopics"]
    codec = Codec(names, engine)
    values = with_defaults(TABLES["CreateTopicsRequest"], version, {"topics": ()})
    call = codec.decode(frame(api, version, body("CreateTopicsRequest", api, version, values)))
    result = TopicResult(name="t", error=ErrorCode.INVALID_REQUEST, message=text)
    pieces: Any = codec.encode(call, CreateTopicsResponse(topics=(result,)))
    cut = text.encode()[:MAX_STRING_BYTES].decode(errors="ignore")
    assert len(text) >= len(cut) > 8_000
    whole = b"".join(pieces)
    at = whole.index(cut.encode())
    assert int.from_bytes(whole[at - 2 : at]) == len(cut.encode())
    assert at + len(cut.encode()) == len(whole)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
@pytest.mark.parametrize("version", [1, 5])
def test_elements_of_all_arrays_are_counted_together(engine: Engine, version: int) -> None:
    api = BY_NAME["DescribeLogDirs"]
    many = tuple(range(MAX_ELEMENTS // 2))
    topics = tuple([{"topic": "t", "partitions": many} for _ in range(2)])
    codec = Codec(names, engine)
    with pytest.raises(MalformedError, match="more than 100000 array elements"):
        codec.decode(frame(api, version, body("DescribeLogDirsRequest", api, version, {"topics": topics})))

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
from warmlog.protocol.kafka.codec.kept import MAX_LAYOUTS, KeptArray
from warmlog.protocol.kafka.codec.schema import INT32, INT64, RECORDS, STRING, Field, Struct, array
from warmlog.protocol.kafka.messages.common import THROTTLE_TIME
from warmlog.protocol.response import (
    CreateTopicsResponse,
    ErrorResponse,
    ListedOffset,
    ListOffsetsResponse,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
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


@pytest.mark.parametrize("version", range(14))
def test_the_bytes_of_kept_arrays_are_reused_and_those_of_any_other_tuple(version: int) -> None:
    api = BY_NAME["Metadata"]
    values = with_defaults(TABLES["MetadataRequest"], version, {"topics": ()})
    plain = tuple(
        [PartitionMetadata(partition=n, leader=1, leader_epoch=n, replicas=(1, 2), in_sync=(1,)) for n in range(200)]
    )
    kept, written = KeptArray(plain), []
    for codec in CODECS:
        call = codec.decode(frame(api, version, body("MetadataRequest", api, version, values)))
        for partitions in (plain, kept, kept):
            topic = TopicMetadata(name="t", partitions=partitions)
            response = MetadataResponse(cluster_id="c", controller=1, brokers=(), topics=(topic, topic))
            pieces: Any = codec.encode(call, response)
            written.append(b"".join(pieces))
    assert len(set(written)) == 1
    assert len(kept.written) == len(CODECS)
    (data,) = set(kept.written.values())
    assert data in written[0]


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_kept_bytes_count_as_a_copy_for_the_limit_of_work_and_count_for_the_size(engine: Engine) -> None:
    api, codec = BY_NAME["Metadata"], Codec(names, engine)
    call = codec.decode(
        frame(api, 9, body("MetadataRequest", api, 9, with_defaults(TABLES["MetadataRequest"], 9, {"topics": ()})))
    )
    partition = PartitionMetadata(partition=0, leader=1, leader_epoch=0, replicas=(1,), in_sync=(1,))
    topic = TopicMetadata(name="t", partitions=KeptArray((partition,) * engine.loop_work))
    response = MetadataResponse(cluster_id="c", controller=1, brokers=(), topics=(topic,))
    with pytest.raises(LargeMessageError):
        codec.encode(call, response, limit=engine.loop_work)
    whole = codec.encode(call, response)
    assert codec.encode(call, response, limit=engine.loop_work) == whole
    with pytest.raises(LargeMessageError):
        codec.encode(call, response, limit=10)
    with pytest.raises(ReplyTooLargeError):
        codec.encode(call, response, max_bytes=1000)


def test_only_the_last_layouts_of_a_kept_array_are_in_memory() -> None:
    kept = KeptArray((1, 2))
    for layout in range(10):
        kept.keep(layout, b"x")
    assert 9 in kept.written
    assert len(kept.written) <= MAX_LAYOUTS


def test_the_elements_of_a_kept_array_cannot_depend_on_the_reply() -> None:
    fields = (THROTTLE_TIME, Field("a", INT32, per_reply=lambda *_: 1), Field("a", RECORDS))
    for field in fields:
        table = Struct(Field("all", array(field, kept=True)))
        with pytest.raises(TypeError, match="depend on the reply"):
            ENGINE.writer(table, 0, flexible=False, bound=True)


@pytest.mark.parametrize("version", [0, 1])
def test_several_messages_are_written_as_each_by_itself(version: int) -> None:
    table = Struct(
        Field("group", STRING, per_reply=lambda group, _: group),
        Field("topic", STRING),
        Field("offset", INT64),
        Field("timestamp", INT64, since=1, tag=0, default=-1),
    )
    values = [ListedOffset(topic="t" * n, partition=n, offset=n, timestamp=n % 3 - 1) for n in range(100)]
    written = []
    for engine in ENGINES:
        writer = engine.writer(table, version, flexible=version > 0, bound=True)
        written.append([writer.write(value, b"\0\1", "g") for value in values])
        written.append(writer.write_each(values, b"\0\1", "g"))
    assert written == [written[0]] * 4

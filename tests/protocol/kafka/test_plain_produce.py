"""The short cut says what the long way says, of every request and every reply, sound or not."""

from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ErrorCode, ProtocolError
from protocol.kafka import plain_produce
from protocol.kafka.api import Call, Codec
from protocol.kafka.primitives import FlexibleWriter
from protocol.response import ProducedPartition, ProduceResponse

TOPIC_ID = UUID(int=7).bytes
NAMES = {TOPIC_ID: "orders"}
CODEC = Codec(topic_names=NAMES.get)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=140)
versions = st.integers(plain_produce.FIRST, plain_produce.LAST)
int64s = st.integers(-(1 << 63), (1 << 63) - 1)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    version = draw(versions)
    writer = FlexibleWriter(b"")
    for number in (0, version):
        writer.int16(number)
    writer.int32(draw(st.integers(-(1 << 31), (1 << 31) - 1)))
    client_id = draw(names).encode()
    writer.int16(len(client_id))
    writer.raw(client_id)
    writer.tags()
    writer.nullable_string(draw(st.sampled_from([None, None, None, "t"])))
    writer.int16(draw(st.sampled_from([-1, 0, 1, 1, 2])))
    writer.int32(draw(st.sampled_from([30_000, 0, -1])))
    topics = draw(st.sampled_from([1, 1, 1, 0, 2]))
    writer.count(topics)
    for _ in range(topics):
        if version >= 13:
            writer.uuid(draw(st.sampled_from([TOPIC_ID, bytes(16)])))
        else:
            writer.string(draw(names))
        partitions = draw(st.sampled_from([1, 1, 1, 0, 2]))
        writer.count(partitions)
        for _ in range(partitions):
            writer.int32(draw(st.integers(-1, 1000)))
            size = draw(st.sampled_from([None, 0, 1, 126, 127, 128, 16_382, 16_383, 16_384, 70_000]))
            writer.nullable_data(None if size is None else bytes(size))
            writer.tags()
        writer.tags()
    writer.tags()
    return writer.written()


def outcome(frame: bytes, monkeyed: Any) -> Any:
    """What decoding gives, with the short cut or without."""
    try:
        with monkeyed:
            return CODEC.decode(memoryview(frame))
    except ProtocolError as error:
        return type(error), str(error)


class Whole:
    """Takes the short cut away."""

    def __enter__(self) -> None:
        self._kept = plain_produce.read, plain_produce.reply
        plain_produce.read = plain_produce.reply = lambda *_: None

    def __exit__(self, *_: object) -> None:
        plain_produce.read, plain_produce.reply = self._kept


class AsItIs:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class Pure:
    """Takes the compiled twin away."""

    def __enter__(self) -> None:
        self._kept = plain_produce.read, plain_produce.reply
        plain_produce.read, plain_produce.reply = plain_produce.read_pure, plain_produce.reply_pure

    def __exit__(self, *_: object) -> None:
        plain_produce.read, plain_produce.reply = self._kept


@given(frames())
def test_every_request_is_read_as_the_long_way_reads_it(frame: bytes) -> None:
    assert outcome(frame, AsItIs()) == outcome(frame, Pure()) == outcome(frame, Whole())


@given(frames(), st.data())
def test_a_damaged_one_too(frame: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(4, min(len(frame), 400) - 1))
    damaged = frame[:at] + bytes((data.draw(st.integers(0, 255)),)) + frame[at + 1 :]
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(frame))))
    assert outcome(damaged[:cut], AsItIs()) == outcome(damaged[:cut], Pure()) == outcome(damaged[:cut], Whole())


def test_what_producers_send_is_plain_and_its_records_are_a_view() -> None:
    frame = memoryview(bytes.fromhex("0000000b0000000700026d65000000010000753002046f7264020000000503616200 0000"))
    found = plain_produce.read(frame, NAMES.get)
    assert found is not None
    version, correlation_id, client_id, request = found
    assert (version, correlation_id, client_id) == (11, 7, "me")
    (records,) = request.partitions
    assert (records.topic, records.partition, bytes(records.records)) == ("ord", 5, b"ab")
    assert records.records.obj is frame.obj


class Counted(bytearray):
    """Counts the bytes that are looked at."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        self.looks += 1
        return super().__getitem__(index)


def test_a_length_without_an_end_is_given_up_after_five_bytes() -> None:
    # It was read on to the end of the frame, as a number of as many bits: a megabyte held the loop for minutes.
    frame = Counted(b"\x80" * 5000)
    assert plain_produce._records(frame, 0) is None  # type: ignore[arg-type]
    assert frame.looks == 5


@given(
    versions,
    names,
    st.lists(st.sampled_from([ErrorCode.NONE, ErrorCode.NONE, ErrorCode.CORRUPT_MESSAGE]), max_size=2),
    st.one_of(st.none(), st.just("why")),
    st.tuples(int64s, int64s, int64s),
)
def test_every_reply_is_written_as_the_long_way_writes_it(
    version: int, topic: str, errors: list[ErrorCode], message: str | None, numbers: tuple[int, int, int]
) -> None:
    base_offset, log_append_time, log_start_offset = numbers
    response = ProduceResponse(
        partitions=tuple(
            ProducedPartition(
                topic=topic,
                partition=partition,
                error=error,
                message=message,
                base_offset=base_offset,
                log_append_time=log_append_time,
                log_start_offset=log_start_offset,
            )
            for partition, error in enumerate(errors)
        )
    )
    call = asked(version, topic, len(errors))
    plain = CODEC.encode(call, response)
    for otherwise in (Pure(), Whole()):
        with otherwise:
            assert plain == CODEC.encode(call, response)


def asked(version: int, topic: str, partitions: int) -> Call:
    """A call that such a response answers."""
    writer = FlexibleWriter(b"")
    for number in (0, version):
        writer.int16(number)
    writer.int32(9)
    writer.int16(-1)
    writer.tags()
    writer.nullable_string(None)
    writer.int16(1)
    writer.int32(0)
    writer.count(1)
    writer.uuid(TOPIC_ID) if version >= 13 else writer.string(topic)
    writer.count(partitions)
    for partition in range(partitions):
        writer.int32(partition)
        writer.data(b"records")
        writer.tags()
    writer.tags()
    writer.tags()
    return CODEC.decode(memoryview(writer.written()))

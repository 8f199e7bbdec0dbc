"""Odd compressed blocks against Kafka's verdicts (see interop/generate_frames.py)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.protocol.records.frames import COUNT, Frame, frames
from warmlog.protocol.errors import ProtocolError
from warmlog.protocol.records.batch import read_header
from warmlog.protocol.records.layout import Codec
from warmlog.protocol.records.reader import decode_batch, offsets_and_times
from warmlog.protocol.records.reencode import reencode_batches
from warmlog.protocol.records.validation import BatchRules

# Blocks that Kafka stores, and that are refused here: what is no part of a block, or contradicts it, is a fault of the
# producer that would otherwise be found by its readers.
REFUSED_BESIDES = {
    "gzip": {
        *("a zero after it", "3 zeros after it", "4 zeros after it", "18 zeros after it", "30 zeros after it"),
        *("garbage after it", "two members and zeros"),
        *("reserved flag 5", "reserved flag 6", "reserved flag 7"),
    },
    "snappy": {"a zero after it", "3 zeros after it"},
    "lz4": {
        *("wrong content checksum", "an empty stored block as the end"),
        *("content size of 89", "content size of 91", "content size of 18446744073709551615"),
    },
    "zstd": {"half of it again", "all but a byte of it again", "a skippable frame last, cut off"},
}


class Verdict(NamedTuple):
    """A block, and what Kafka's readers found wrong with it."""

    frame: Frame
    broker: str | None
    consumer: str | None


def verdicts(fixtures: Path) -> Iterator[Verdict]:
    with (fixtures / "frames.jsonl").open(encoding="ascii") as lines:
        for line in map(json.loads, lines):
            frame = Frame(line["name"], Codec[line["codec"].upper()], bytes.fromhex(line["block"]))
            yield Verdict(frame, line["broker"], line["consumer"])


def is_accepted(frame: Frame) -> bool:
    """Whether a producer may send it."""
    try:
        reencode_batches(frame.batch(), BatchRules(), now_ms=0)
    except ProtocolError:
        return False
    return True


def test_every_frame_has_a_verdict(kafka_fixtures: Path) -> None:
    assert [each.frame[:2] for each in verdicts(kafka_fixtures)] == [frame[:2] for frame in frames()]


def test_producers_may_send_what_kafkas_readers_read_and_nothing_else(kafka_fixtures: Path) -> None:
    refused: dict[str, set[str]] = {codec: set() for codec in REFUSED_BESIDES}
    for frame, broker, consumer in verdicts(kafka_fixtures):
        if is_accepted(frame):
            assert (broker, consumer) == (None, None), frame
        elif broker is consumer is None:
            refused[frame.codec.name.lower()].add(frame.name)
    assert refused == REFUSED_BESIDES


def test_what_kafkas_consumers_read_is_read_from_the_log(kafka_fixtures: Path) -> None:
    for frame, _, consumer in verdicts(kafka_fixtures):
        if consumer is None:
            stored = frame.batch()
            header = read_header(stored)
            records = decode_batch(stored, 0, header)
            assert [record.key for record in records] == [b"k%d" % number for number in range(COUNT)], frame
            assert list(offsets_and_times(stored, 0, header)) == [
                (record.offset, record.timestamp) for record in records
            ]


def test_linked_blocks_and_dictionary_ids_of_lz4_are_read_from_the_log(kafka_fixtures: Path) -> None:
    """Earlier versions have stored them."""
    names = {"linked blocks", "linked blocks, one block", "dictionary id"}
    read = [each for each in verdicts(kafka_fixtures) if each.frame.name in names]
    assert len(read) == len(names)
    for frame, broker, _ in read:
        assert broker is not None
        assert len(decode_batch(frame.batch(), 0, read_header(frame.batch()))) == COUNT

"""Records of every shape and codec: what one library wrote, every library reads."""

import random
from collections.abc import Iterator

import pytest

from tests.clients.conftest import NewTopicFactory
from tests.clients.libraries import CODECS, LIBRARIES, Library, Row
from tests.clients.waiting import until

EPOCH_MS = 1_700_000_000_000

SHAPES = (
    Row(EPOCH_MS, b"key", b"value", (("trace", b"7"),)),
    Row(EPOCH_MS + 1, None, b"no key"),
    Row(EPOCH_MS + 2, b"a tombstone", None),
    Row(EPOCH_MS + 4, b"", b""),
    Row(EPOCH_MS + 5, b"twice", b"the same header", (("a", b"1"), ("a", b"2"), ("b", b""))),
    Row(EPOCH_MS + 6, "späť".encode(), "ü".encode(), (("schlüssel", b"wert"),)),
    Row(EPOCH_MS - 5000, b"late", b"before the first"),
    *(Row(EPOCH_MS + 10 + i, b"%d" % (i % 7), b"compressible " * 20) for i in range(200)),
)


#: What librdkafka alone writes: the others ask for a key or a value, and for a value of each header.
BARE = (
    Row(EPOCH_MS, None, None),
    Row(EPOCH_MS, b"null header", b"value", (("none", None), ("some", b"1"))),
)


@pytest.mark.parametrize("codec", CODECS)
def test_what_one_library_wrote_every_library_reads(bootstrap: str, new_topic: NewTopicFactory, codec: str) -> None:
    topic = new_topic(partitions=len(LIBRARIES))
    for partition, writer in enumerate(LIBRARIES):
        offsets = writer.produce(bootstrap, topic, {partition: SHAPES}, codec=codec)
        assert offsets == {partition: list(range(len(SHAPES)))}, writer.name
    for reader in LIBRARIES:
        assert reader.read(bootstrap, topic, partitions=len(LIBRARIES)) == [list(SHAPES)] * len(LIBRARIES), reader.name


def test_records_without_anything_in_them(bootstrap: str, new_topic: NewTopicFactory, library: Library) -> None:
    topic = new_topic()
    LIBRARIES[0].produce(bootstrap, topic, {0: BARE})
    assert library.read(bootstrap, topic) == [list(BARE)]


def of_every_size() -> Iterator[Row]:
    """Values of one byte up to a megabyte, which no codec makes smaller."""
    chance = random.Random(4)
    for i, size in enumerate((1, 2, 100, 4095, 4096, 4097, 65_536, 262_144, 1_000_000)):
        yield Row(EPOCH_MS + i, None, chance.randbytes(size))


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_values_of_one_byte_to_a_megabyte(
    bootstrap: str, new_topic: NewTopicFactory, library: Library, codec: str
) -> None:
    topic, rows = new_topic(), list(of_every_size())
    assert library.produce(bootstrap, topic, {0: rows}, codec=codec) == {0: list(range(len(rows)))}
    assert library.read(bootstrap, topic) == [rows]


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_every_kind_of_acknowledgement(bootstrap: str, new_topic: NewTopicFactory, library: Library, acks: int) -> None:
    topic, rows = new_topic(), list(SHAPES[:8])
    offsets = library.produce(bootstrap, topic, {0: rows}, acks=acks)
    assert offsets == {0: [-1] * len(rows) if acks == 0 else list(range(len(rows)))}
    if acks == 0:  # nobody said that they had arrived: what follows on another connection may overtake them
        seen: list[int] = []
        until(
            lambda: seen[-1:] == [len(rows)],
            lambda: seen.append(len(library.read(bootstrap, topic)[0])),
            "records without acknowledgement",
        )
    assert library.read(bootstrap, topic) == [rows]


def test_a_topic_is_created_by_its_first_use(bootstrap: str, name: str, library: Library) -> None:
    rows = [Row(EPOCH_MS, None, b"first")]
    assert library.produce(bootstrap, name, {0: rows}) == {0: [0]}
    assert library.read(bootstrap, name) == [rows]


def test_records_of_many_partitions(bootstrap: str, new_topic: NewTopicFactory, library: Library) -> None:
    topic = new_topic(partitions=60)
    rows = {i: [Row(EPOCH_MS + i, None, b"%d" % i)] * (i % 4) for i in range(60)}
    library.produce(bootstrap, topic, rows)
    assert library.read(bootstrap, topic, partitions=60) == list(rows.values())

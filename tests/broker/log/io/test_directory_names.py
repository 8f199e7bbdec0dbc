from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.broker.log.io.directory_names import (
    MAX_NAME_SIZE,
    PartitionName,
    base_offset_of,
    decode_topic_id,
    deleted_directory,
    encode_topic_id,
    parse_partition_directory,
    partition_directory,
    segment_path,
)


@pytest.mark.parametrize(
    ("name", "topic", "partition"), [("words-0", "words", 0), ("a-b-c-12", "a-b-c", 12), ("a.b_c-3", "a.b_c", 3)]
)
def test_the_last_dash_parts_topic_and_partition(name: str, topic: str, partition: int) -> None:
    assert parse_partition_directory(name) == PartitionName(topic=topic, partition=partition)
    assert partition_directory(topic, partition) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "words",
        "words-",
        "-1",
        "words-x",
        "words-1.5",
        "words--1x",
        "words-+1",
        "words-1 ",
        "words-99999999999",
        "words-٣",
        "-delete",
        "words-0-delete",
        "x-stray",
        "x-future",
    ],
)
def test_what_is_no_partition_is_none(name: str) -> None:
    assert parse_partition_directory(name) is None


@pytest.mark.parametrize("kind", ["delete", "future", "stray"])
def test_a_directory_on_its_way_tells_what_it_was(kind: str) -> None:
    found = parse_partition_directory(f"a.b-7.{uuid4().hex}-{kind}")
    assert found == PartitionName(topic="a.b", partition=7, moved=kind)


def test_a_deleted_directory_is_named_anew_each_time_and_parses() -> None:
    names = {deleted_directory("words", 3) for _ in range(10)}
    assert len(names) == 10
    assert {parse_partition_directory(name) for name in names} == {
        PartitionName(topic="words", partition=3, moved="delete")
    }


def test_a_long_topic_name_is_cut_to_fit_a_file_name() -> None:
    name = deleted_directory("t" * 249, 100)
    assert len(name) == MAX_NAME_SIZE
    assert parse_partition_directory(name) is not None


def test_segment_files_are_named_by_twenty_digits() -> None:
    assert segment_path("/d", 1234, ".log") == "/d/00000000000000001234.log"
    assert base_offset_of("00000000000000001234.log") == 1234
    assert base_offset_of("00000000000000001234.timeindex.deleted") == 1234


@pytest.mark.parametrize(
    "name",
    ["1234.log", "partition.metadata", "leader-epoch-checkpoint", "0000000000000000000x.log", "00000000000000001234"],
)
def test_other_files_have_no_base_offset(name: str) -> None:
    assert base_offset_of(name) is None


@given(st.uuids())
def test_topic_ids_go_both_ways(topic_id: UUID) -> None:
    text = encode_topic_id(topic_id)
    assert len(text) == 22
    assert decode_topic_id(text) == topic_id


def test_a_topic_id_is_written_as_kafka_writes_it() -> None:
    assert encode_topic_id(UUID("00000000-0000-0000-0000-000000000001")) == "AAAAAAAAAAAAAAAAAAAAAQ"


@pytest.mark.parametrize("text", ["", "AAAA", "!" * 22, "A" * 23, "ü" * 22])
def test_what_is_no_topic_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no topic id"):
        decode_topic_id(text)

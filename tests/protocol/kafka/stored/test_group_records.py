"""Records of `__consumer_offsets`, compared with bytes written by Kafka's classes."""

import contextlib
import json
from base64 import b64decode, urlsafe_b64decode
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.protocol.groups import PartitionEntry
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID, MalformedError
from warmlog.protocol.kafka.group_records import (
    NO_TIME,
    GroupKey,
    OffsetAndMetadata,
    OffsetKey,
    StoredGroup,
    StoredMember,
    decode_group,
    decode_key,
    decode_offset,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
    encode_offsets,
    subscribed_topics,
)
from warmlog.protocol.records.reader import records_in

FIXTURES = Path(__file__).parents[3] / "fixtures" / "kafka" / "4.3.1"
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)


@cache
def golden(name: str) -> list[dict[str, Any]]:
    lines = (FIXTURES / "group_records.jsonl").read_text(encoding="ascii").splitlines()
    found = [line for line in map(json.loads, lines) if line["name"] == name]
    assert found
    return found


def test_keys_are_kafkas() -> None:
    (line,) = golden("OffsetCommitKey")
    fields = line["fields"]
    key = OffsetKey(fields["group"], fields["topic"], fields["partition"])
    assert decode_key(bytes.fromhex(line["bytes"])) == key
    assert encode_offset_key(*key).hex() == line["bytes"]
    (old,) = golden("LegacyOffsetCommitKey")
    assert decode_key(bytes.fromhex(old["bytes"])) == key
    (line,) = golden("GroupMetadataKey")
    assert decode_key(bytes.fromhex(line["bytes"])) == GroupKey(line["fields"]["group"])
    assert encode_group_key(line["fields"]["group"]).hex() == line["bytes"]


def test_offsets_of_every_version_are_read() -> None:
    for line in golden("OffsetCommitValue"):
        fields = line["fields"]
        topic_id = urlsafe_b64decode(fields["topicId"] + "==") if "topicId" in fields else NO_TOPIC_ID
        assert decode_offset(bytes.fromhex(line["bytes"])) == OffsetAndMetadata(
            offset=fields["offset"],
            leader_epoch=fields.get("leaderEpoch", -1),
            metadata=fields["metadata"],
            commit_ms=fields["commitTimestamp"],
            expire_ms=fields.get("expireTimestamp", NO_TIME),
            topic_id=topic_id,
        )


@pytest.mark.parametrize("version", [1, 4])
def test_offsets_are_written_as_kafka_writes_them(version: int) -> None:
    lines = [line for line in golden("OffsetCommitValue") if line["number"] == version]
    assert lines
    for line in lines:
        assert encode_offset(decode_offset(bytes.fromhex(line["bytes"]))).hex() == line["bytes"]


def test_records_stored_by_kafka_are_encoded_byte_for_byte() -> None:
    log = (FIXTURES / "clean" / "__consumer_offsets-0" / f"{0:020}.log").read_bytes()
    records = list(records_in(log))
    assert records
    for record in records:
        assert record.key is not None
        assert record.value is not None
        key = decode_key(record.key)
        assert isinstance(key, OffsetKey)
        assert encode_offset_key(*key) == record.key
        assert encode_offset(decode_offset(record.value)) == record.value


def test_groups_of_every_version_are_read() -> None:
    for line in golden("GroupMetadataValue"):
        fields = line["fields"]
        assert decode_group(bytes.fromhex(line["bytes"])) == StoredGroup(
            protocol_type=fields["protocolType"],
            generation=fields["generation"],
            protocol=fields["protocol"],
            leader=fields["leader"],
            state_since_ms=fields.get("currentStateTimestamp", NO_TIME),
            members=tuple(
                StoredMember(
                    member_id=member["memberId"],
                    instance_id=member.get("groupInstanceId"),
                    client_id=member["clientId"],
                    client_host=member["clientHost"],
                    rebalance_timeout_ms=member.get("rebalanceTimeout", member["sessionTimeout"]),
                    session_timeout_ms=member["sessionTimeout"],
                    subscription=b64decode(member["subscription"]),
                    assignment=b64decode(member["assignment"]),
                )
                for member in fields["members"]
            ),
        )


def test_groups_are_written_as_kafka_writes_them() -> None:
    lines = [line for line in golden("GroupMetadataValue") if line["number"] == 3]
    assert len(lines) == 2
    for line in lines:
        assert encode_group(decode_group(bytes.fromhex(line["bytes"]))).hex() == line["bytes"]


def test_topics_are_read_from_a_subscription() -> None:
    member = golden("GroupMetadataValue")[0]["fields"]["members"][0]
    assert subscribed_topics(b64decode(member["subscription"])) == {"orders"}
    with pytest.raises(MalformedError):
        subscribed_topics(b"\0\0\0\0\0\2")


@given(
    st.builds(
        OffsetAndMetadata,
        offset=int64,
        leader_epoch=int32,
        metadata=st.text(max_size=50),
        commit_ms=int64,
        expire_ms=st.just(NO_TIME),
        topic_id=st.binary(min_size=16, max_size=16),
    )
)
def test_an_offset_survives(committed: OffsetAndMetadata) -> None:
    assert decode_offset(encode_offset(committed)) == committed


@given(
    st.lists(
        st.tuples(
            st.text(max_size=20),
            int32,
            st.builds(
                OffsetAndMetadata,
                offset=int64,
                leader_epoch=int32,
                metadata=st.text(max_size=20),
                commit_ms=int64,
                expire_ms=st.sampled_from([NO_TIME, 7]),
                topic_id=st.binary(min_size=16, max_size=16),
            ),
        ),
        max_size=5,
    )
)
def test_offsets_are_encoded_together_as_each_by_itself(offsets: list[tuple[str, int, OffsetAndMetadata]]) -> None:
    partitions = [PartitionEntry(topic=topic, partition=partition) for topic, partition, _ in offsets]
    for expires in (False, True):
        values = [offset for *_, offset in offsets if (offset.expire_ms != NO_TIME) is expires]
        keys = [encode_offset_key("group", each.topic, each.partition) for each in partitions[: len(values)]]
        rows = list(zip(keys, map(encode_offset, values), strict=True))
        assert encode_offsets("group", partitions[: len(values)], values) == rows


@pytest.mark.parametrize("expire_ms", [NO_TIME, 7])
@pytest.mark.parametrize(("topic", "size"), [("t" * 40_000, 0), ("t", 40_000)])
def test_text_that_is_too_long_for_a_record_is_refused(topic: str, size: int, expire_ms: int) -> None:
    fine = OffsetAndMetadata(offset=1, commit_ms=2, expire_ms=expire_ms)
    long = OffsetAndMetadata(offset=1, commit_ms=2, metadata="m" * size, expire_ms=expire_ms)
    partitions = [PartitionEntry(topic="t", partition=0), PartitionEntry(topic=topic, partition=1)]
    with pytest.raises(MalformedError, match="cannot encode a group record"):
        encode_offsets("group", partitions, [fine, long])


@given(st.binary(max_size=80))
def test_bytes_that_are_no_record_are_refused_by_one_error(data: bytes) -> None:
    for decode in (decode_key, decode_offset, decode_group, subscribed_topics):
        with contextlib.suppress(MalformedError):
            decode(data)


@pytest.mark.parametrize("value", [b"\0\5", b"\xff\xff", b""])
def test_versions_that_are_not_known_are_refused(value: bytes) -> None:
    with pytest.raises(MalformedError):
        decode_offset(value)


def test_a_name_that_no_key_can_hold_is_refused() -> None:
    with pytest.raises(MalformedError):
        encode_group_key("g" * (1 << 15))

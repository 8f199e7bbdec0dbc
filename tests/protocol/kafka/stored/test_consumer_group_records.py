"""Records of consumer groups in `__consumer_offsets`, compared with bytes written by Kafka's classes."""

from base64 import b64decode, urlsafe_b64decode

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.kafka.stored.golden import GROUP, MEMBER, GoldenRecords
from warmlog.protocol.groups import GroupProtocol
from warmlog.protocol.kafka.codec.bounds import MalformedError
from warmlog.protocol.kafka.consumer_group_records import (
    ClassicMember,
    ConsumerGroupKey,
    ConsumerGroupValue,
    CurrentAssignment,
    CurrentKey,
    EpochKey,
    GroupEpoch,
    HeldPartitions,
    MemberKey,
    MemberMetadata,
    PartitionMetadata,
    PartitionMetadataKey,
    RegexKey,
    ResolvedRegex,
    TargetAssignment,
    TargetEpoch,
    TargetEpochKey,
    TargetKey,
    decode_consumer_value,
    encode_key,
    encode_value,
)
from warmlog.protocol.kafka.messages.groups.consumer import TopicPartitions

ORDERS, PAYMENTS = (urlsafe_b64decode(text + "==") for text in ("ZROer-cbReKkMjZ9vBhQSg", "YPvN38jyS7OQpYfmpqHMPA"))
SUBSCRIPTION = b64decode("AAAAAAABAAZvcmRlcnP/////")

KEYS: dict[str, ConsumerGroupKey] = {
    "ConsumerGroupMetadataKey": EpochKey(GROUP),
    "ConsumerGroupPartitionMetadataKey": PartitionMetadataKey(GROUP),
    "ConsumerGroupMemberMetadataKey": MemberKey(GROUP, MEMBER),
    "ConsumerGroupTargetAssignmentMetadataKey": TargetEpochKey(GROUP),
    "ConsumerGroupTargetAssignmentMemberKey": TargetKey(GROUP, MEMBER),
    "ConsumerGroupCurrentMemberAssignmentKey": CurrentKey(GROUP, MEMBER),
    "ConsumerGroupRegularExpressionKey": RegexKey(GROUP, "ordérs-.*"),
}
MOST = MemberMetadata(
    instance_id="instance",
    rack_id="räck",
    client_id="client",
    client_host="/127.0.0.1",
    topics=("orders", "payments"),
    regex="orders-.*",
    rebalance_timeout_ms=300_000,
    assignor="uniform",
)
LEAST = MemberMetadata(client_id="client", client_host="/127.0.0.1")
MISSING = ClassicMember(session_timeout_ms=0)  # what a record without the field says, to Kafka as well
PROTOCOLS = (GroupProtocol(name="range", metadata=SUBSCRIPTION), GroupProtocol(name="sticky", metadata=b""))
VALUES: dict[str, list[ConsumerGroupValue]] = {
    "ConsumerGroupMetadataValue": [GroupEpoch(epoch=7), GroupEpoch(epoch=1 << 30, metadata_hash=-(1 << 62))],
    "ConsumerGroupMemberMetadataValue": [
        msgspec.structs.replace(LEAST, classic=MISSING),
        msgspec.structs.replace(MOST, classic=MISSING),
        msgspec.structs.replace(LEAST, classic=ClassicMember(session_timeout_ms=45_000, protocols=PROTOCOLS)),
        msgspec.structs.replace(MOST, classic=ClassicMember(session_timeout_ms=1)),
        MOST,
    ],
    "ConsumerGroupTargetAssignmentMetadataValue": [
        TargetEpoch(epoch=7),
        TargetEpoch(epoch=8, timestamp_ms=1_790_000_000_123),
    ],
    "ConsumerGroupTargetAssignmentMemberValue": [
        TargetAssignment(),
        TargetAssignment(
            partitions=(
                TopicPartitions(topic_id=ORDERS, partitions=(0, 1, 300)),
                TopicPartitions(topic_id=PAYMENTS, partitions=(70_000,)),
            )
        ),
    ],
    "ConsumerGroupCurrentMemberAssignmentValue": [
        CurrentAssignment(epoch=9, previous_epoch=8, state=1),
        CurrentAssignment(
            epoch=9, previous_epoch=8, state=3, assigned=(HeldPartitions(topic_id=ORDERS, partitions=(0, 1)),)
        ),
        CurrentAssignment(
            epoch=9,
            previous_epoch=8,
            state=2,
            assigned=(
                HeldPartitions(topic_id=ORDERS, partitions=(0, 1), epochs=(3, 9)),
                HeldPartitions(topic_id=PAYMENTS, partitions=(5,), epochs=(0,)),
            ),
            to_revoke=(HeldPartitions(topic_id=PAYMENTS, partitions=(6, 7), epochs=(2, 2)),),
        ),
    ],
    "ConsumerGroupRegularExpressionValue": [
        ResolvedRegex(),
        ResolvedRegex(topics=("orders-1", "orders-2"), version=1 << 40, timestamp_ms=1_790_000_000_456),
    ],
}


RECORDS = GoldenRecords(
    "consumer_group_records.jsonl",
    KEYS,
    encode_key=encode_key,
    encode=lambda _, value: encode_value(value),
    decode=decode_consumer_value,
)


@pytest.mark.parametrize("name", KEYS)
def test_keys_are_kafkas(name: str) -> None:
    RECORDS.check_key(name)


@pytest.mark.parametrize("name", VALUES)
def test_values_are_kafkas_and_refused_if_they_end_early(name: str) -> None:
    RECORDS.check_values(name, VALUES[name])


def test_the_topics_that_kafka_4_0_stored_are_read_past() -> None:
    key = PartitionMetadataKey(GROUP)
    for data in RECORDS.written("ConsumerGroupPartitionMetadataValue"):
        assert decode_consumer_value(key, data) == PartitionMetadata()
        with pytest.raises(MalformedError):
            decode_consumer_value(key, data[:-1])


text = st.text(max_size=12)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
topic_id = st.binary(min_size=16, max_size=16)
texts = st.lists(text, max_size=3).map(tuple)
numbers = st.lists(int32, max_size=4).map(tuple)
protocol = st.builds(GroupProtocol, name=text, metadata=st.binary(max_size=12))
held = st.lists(
    st.builds(HeldPartitions, topic_id=topic_id, partitions=numbers, epochs=st.none() | numbers), max_size=3
).map(tuple)
values: st.SearchStrategy[tuple[ConsumerGroupKey, ConsumerGroupValue]] = st.one_of(
    st.tuples(st.builds(EpochKey, text), st.builds(GroupEpoch, epoch=int32, metadata_hash=int64)),
    st.tuples(
        st.builds(MemberKey, text, text),
        st.builds(
            MemberMetadata,
            instance_id=st.none() | text,
            rack_id=st.none() | text,
            client_id=text,
            client_host=text,
            topics=texts,
            regex=st.none() | text,
            rebalance_timeout_ms=int32,
            assignor=st.none() | text,
            classic=st.none()
            | st.builds(ClassicMember, session_timeout_ms=int32, protocols=st.lists(protocol, max_size=3).map(tuple)),
        ),
    ),
    st.tuples(st.builds(TargetEpochKey, text), st.builds(TargetEpoch, epoch=int32, timestamp_ms=int64)),
    st.tuples(
        st.builds(TargetKey, text, text),
        st.builds(
            TargetAssignment,
            partitions=st.lists(st.builds(TopicPartitions, topic_id=topic_id, partitions=numbers), max_size=3).map(
                tuple
            ),
        ),
    ),
    st.tuples(
        st.builds(CurrentKey, text, text),
        st.builds(
            CurrentAssignment,
            epoch=int32,
            previous_epoch=int32,
            state=st.integers(-128, 127),
            assigned=held,
            to_revoke=held,
        ),
    ),
    st.tuples(
        st.builds(RegexKey, text, text), st.builds(ResolvedRegex, topics=texts, version=int64, timestamp_ms=int64)
    ),
)


@given(values, st.data())
def test_a_record_survives_and_mutated_ones_are_refused_by_one_error(
    record: tuple[ConsumerGroupKey, ConsumerGroupValue], data: st.DataObject
) -> None:
    RECORDS.check_record(*record, data)


def test_a_value_of_another_version_is_refused() -> None:
    with pytest.raises(MalformedError, match="version 1, expected 0"):
        decode_consumer_value(EpochKey("g"), b"\0\1" + encode_value(GroupEpoch(epoch=1))[2:])


def test_text_and_numbers_that_no_record_can_hold_are_refused() -> None:
    with pytest.raises(MalformedError, match="cannot encode a group record"):
        encode_key(RegexKey("g", "r" * (1 << 15)))
    with pytest.raises(MalformedError, match="cannot encode a group record"):
        encode_value(GroupEpoch(epoch=1 << 31))


def test_a_member_with_more_partitions_than_a_request_may_name_can_be_loaded() -> None:
    partitions = tuple(range(60_000))
    held = HeldPartitions(topic_id=bytes(16), partitions=partitions, epochs=(7,) * len(partitions))
    value = CurrentAssignment(epoch=7, previous_epoch=6, state=1, assigned=(held,))
    assert decode_consumer_value(CurrentKey("g", "m"), encode_value(value)) == value
    target = TargetAssignment(partitions=(TopicPartitions(topic_id=bytes(16), partitions=tuple(range(150_000))),))
    assert decode_consumer_value(TargetKey("g", "m"), encode_value(target)) == target

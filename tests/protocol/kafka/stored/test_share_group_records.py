"""Records of share groups in `__consumer_offsets`, compared with bytes written by Kafka's classes."""

from base64 import urlsafe_b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.kafka.stored.golden import GROUP, MEMBER, GoldenRecords
from warmlog.protocol.kafka.consumer_group_records import GroupEpoch, TargetAssignment, TargetEpoch
from warmlog.protocol.kafka.messages.groups.consumer import NamedPartitions, TopicPartitions
from warmlog.protocol.kafka.share_group_records import (
    NamedTopic,
    ShareCurrentAssignment,
    ShareCurrentKey,
    ShareEpochKey,
    ShareGroupKey,
    ShareGroupValue,
    ShareMemberKey,
    ShareMemberMetadata,
    SharePartitions,
    SharePartitionsKey,
    ShareTargetEpochKey,
    ShareTargetKey,
    decode_share_fields,
    decode_share_value,
    encode_share_key,
    encode_share_value,
)

ORDERS, PAYMENTS = (urlsafe_b64decode(text + "==") for text in ("ZROer-cbReKkMjZ9vBhQSg", "YPvN38jyS7OQpYfmpqHMPA"))
PARTITIONS = (
    TopicPartitions(topic_id=ORDERS, partitions=(0, 1, 300)),
    TopicPartitions(topic_id=PAYMENTS, partitions=(70_000,)),
)
MEMBER_OF = ShareMemberMetadata(client_id="client", client_host="/127.0.0.1")

KEYS: dict[str, ShareGroupKey] = {
    "ShareGroupMemberMetadataKey": ShareMemberKey(GROUP, MEMBER),
    "ShareGroupMetadataKey": ShareEpochKey(GROUP),
    "ShareGroupTargetAssignmentMetadataKey": ShareTargetEpochKey(GROUP),
    "ShareGroupTargetAssignmentMemberKey": ShareTargetKey(GROUP, MEMBER),
    "ShareGroupCurrentMemberAssignmentKey": ShareCurrentKey(GROUP, MEMBER),
    "ShareGroupStatePartitionMetadataKey": SharePartitionsKey(GROUP),
}
VALUES: dict[str, list[ShareGroupValue]] = {
    "ShareGroupMemberMetadataValue": [
        MEMBER_OF,
        ShareMemberMetadata(
            rack_id="räck", client_id="client", client_host="/127.0.0.1", topics=("orders", "payments")
        ),
    ],
    "ShareGroupMetadataValue": [GroupEpoch(epoch=7), GroupEpoch(epoch=1 << 30, metadata_hash=-(1 << 62))],
    "ShareGroupTargetAssignmentMetadataValue": [
        TargetEpoch(epoch=7),
        TargetEpoch(epoch=8, timestamp_ms=1_790_000_000_123),
    ],
    "ShareGroupTargetAssignmentMemberValue": [TargetAssignment(), TargetAssignment(partitions=PARTITIONS)],
    "ShareGroupCurrentMemberAssignmentValue": [
        ShareCurrentAssignment(epoch=9, previous_epoch=8, state=1),
        ShareCurrentAssignment(epoch=9, previous_epoch=8, state=1, assigned=PARTITIONS),
    ],
    "ShareGroupStatePartitionMetadataValue": [
        SharePartitions(),
        SharePartitions(
            initializing=(
                NamedPartitions(topic_id=ORDERS, topic="orders", partitions=(2,)),
                NamedPartitions(topic_id=PAYMENTS, topic="payments", partitions=(0,)),
            ),
            initialized=(NamedPartitions(topic_id=ORDERS, topic="orders", partitions=(0, 1)),),
            deleting=(NamedTopic(topic_id=PAYMENTS, topic="payments"),),
        ),
    ],
}


RECORDS = GoldenRecords(
    "share_group_records.jsonl", KEYS, encode_key=encode_share_key, encode=encode_share_value, decode=decode_share_value
)


@pytest.mark.parametrize("name", KEYS)
def test_keys_are_kafkas(name: str) -> None:
    RECORDS.check_key(name)


@pytest.mark.parametrize("name", VALUES)
def test_values_are_kafkas_and_refused_if_they_end_early(name: str) -> None:
    RECORDS.check_values(name, VALUES[name])


def test_fields_have_the_names_of_kafkas_definitions() -> None:
    fields = decode_share_fields(SharePartitionsKey(GROUP), RECORDS.written("ShareGroupStatePartitionMetadataValue")[1])
    assert [*fields] == ["initializing_topics", "initialized_topics", "deleting_topics"]
    assert fields["deleting_topics"] == ({"topic_id": PAYMENTS, "topic_name": "payments"},)


text = st.text(max_size=12)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
topic_id = st.binary(min_size=16, max_size=16)
numbers = st.lists(int32, max_size=4).map(tuple)
partitions = st.lists(st.builds(TopicPartitions, topic_id=topic_id, partitions=numbers), max_size=3).map(tuple)
named = st.lists(st.builds(NamedPartitions, topic_id=topic_id, topic=text, partitions=numbers), max_size=3).map(tuple)
values: st.SearchStrategy[tuple[ShareGroupKey, ShareGroupValue]] = st.one_of(
    st.tuples(
        st.builds(ShareMemberKey, text, text),
        st.builds(
            ShareMemberMetadata,
            rack_id=st.none() | text,
            client_id=text,
            client_host=text,
            topics=st.lists(text, max_size=3).map(tuple),
        ),
    ),
    st.tuples(st.builds(ShareEpochKey, text), st.builds(GroupEpoch, epoch=int32, metadata_hash=int64)),
    st.tuples(st.builds(ShareTargetEpochKey, text), st.builds(TargetEpoch, epoch=int32, timestamp_ms=int64)),
    st.tuples(st.builds(ShareTargetKey, text, text), st.builds(TargetAssignment, partitions=partitions)),
    st.tuples(
        st.builds(ShareCurrentKey, text, text),
        st.builds(
            ShareCurrentAssignment,
            epoch=int32,
            previous_epoch=int32,
            state=st.integers(-128, 127),
            assigned=partitions,
        ),
    ),
    st.tuples(
        st.builds(SharePartitionsKey, text),
        st.builds(
            SharePartitions,
            initializing=named,
            initialized=named,
            deleting=st.lists(st.builds(NamedTopic, topic_id=topic_id, topic=text), max_size=3).map(tuple),
        ),
    ),
)


@given(values, st.data())
def test_a_record_survives_and_mutated_ones_are_refused_by_one_error(
    record: tuple[ShareGroupKey, ShareGroupValue], data: st.DataObject
) -> None:
    RECORDS.check_record(*record, data)

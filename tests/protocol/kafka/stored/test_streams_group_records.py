"""Records of streams groups in `__consumer_offsets`, compared with bytes written by Kafka's classes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.kafka.stored.golden import GROUP, MEMBER, GoldenRecords
from warmlog.protocol.kafka.consumer_group_records import TargetEpoch
from warmlog.protocol.kafka.messages.groups.streams import (
    CopartitionGroup,
    Endpoint,
    InternalTopic,
    KeyValue,
    Subtopology,
    TaskIds,
    Topology,
)
from warmlog.protocol.kafka.streams_group_records import (
    HeldTasks,
    StreamsCurrentAssignment,
    StreamsCurrentKey,
    StreamsEpochKey,
    StreamsGroupEpoch,
    StreamsGroupKey,
    StreamsGroupValue,
    StreamsMemberKey,
    StreamsMemberMetadata,
    StreamsTarget,
    StreamsTargetEpochKey,
    StreamsTargetKey,
    TopologyKey,
    decode_streams_fields,
    decode_streams_value,
    encode_streams_key,
    encode_streams_value,
)

FIRST, SECOND = TaskIds(subtopology_id="0", partitions=(0, 1, 300)), TaskIds(subtopology_id="1", partitions=(70_000,))
HELD_FIRST, HELD_SECOND = (
    HeldTasks(subtopology_id=each.subtopology_id, partitions=each.partitions) for each in (FIRST, SECOND)
)

KEYS: dict[str, StreamsGroupKey] = {
    "StreamsGroupMetadataKey": StreamsEpochKey(GROUP),
    "StreamsGroupMemberMetadataKey": StreamsMemberKey(GROUP, MEMBER),
    "StreamsGroupTargetAssignmentMetadataKey": StreamsTargetEpochKey(GROUP),
    "StreamsGroupTargetAssignmentMemberKey": StreamsTargetKey(GROUP, MEMBER),
    "StreamsGroupCurrentMemberAssignmentKey": StreamsCurrentKey(GROUP, MEMBER),
    "StreamsGroupTopologyKey": TopologyKey(GROUP),
}
VALUES: dict[str, list[StreamsGroupValue]] = {
    "StreamsGroupMetadataValue": [
        StreamsGroupEpoch(epoch=7),
        StreamsGroupEpoch(
            epoch=1 << 30,
            metadata_hash=-(1 << 62),
            validated_topology_epoch=3,
            assignment_configs=(KeyValue(key="num.standby.replicas", value="1"),),
            stored_description_epoch=2,
            failed_description_epoch=1,
        ),
    ],
    "StreamsGroupMemberMetadataValue": [
        StreamsMemberMetadata(client_id="client", client_host="/127.0.0.1", topology_epoch=0, process_id=""),
        StreamsMemberMetadata(
            instance_id="instance",
            rack_id="räck",
            client_id="client",
            client_host="/127.0.0.1",
            rebalance_timeout_ms=300_000,
            topology_epoch=4,
            process_id="process",
            user_endpoint=Endpoint(host="localhost", port=65_535),
            client_tags=(KeyValue(key="zone", value="a"),),
        ),
    ],
    "StreamsGroupTargetAssignmentMetadataValue": [
        TargetEpoch(epoch=7),
        TargetEpoch(epoch=8, timestamp_ms=1_790_000_000_123),
    ],
    "StreamsGroupTargetAssignmentMemberValue": [
        StreamsTarget(),
        StreamsTarget(active=(FIRST, SECOND), standby=(SECOND,), warmup=(FIRST,)),
    ],
    "StreamsGroupCurrentMemberAssignmentValue": [
        StreamsCurrentAssignment(epoch=9, previous_epoch=8, state=1),
        StreamsCurrentAssignment(
            epoch=9,
            previous_epoch=8,
            state=2,
            active=(HeldTasks(subtopology_id="0", partitions=(0, 1, 300), epochs=(3, 9, 9)),),
            standby=(HELD_SECOND,),
            warmup=(HELD_FIRST,),
            active_to_revoke=(HeldTasks(subtopology_id="1", partitions=(70_000,), epochs=(2,)),),
            standby_to_revoke=(HELD_FIRST,),
            warmup_to_revoke=(HELD_SECOND,),
        ),
    ],
    "StreamsGroupTopologyValue": [
        Topology(epoch=0),
        Topology(
            epoch=5,
            subtopologies=(
                Subtopology(
                    subtopology_id="0",
                    sources=("orders", "payments"),
                    source_regexes=("orders-.*",),
                    changelogs=(
                        InternalTopic(
                            topic="app-store-changelog",
                            replication_factor=1,
                            configs=(KeyValue(key="cleanup.policy", value="compact"),),
                        ),
                    ),
                    repartition_sinks=("app-other",),
                    repartition_sources=(InternalTopic(topic="app-repartition", partitions=4),),
                    copartition_groups=(
                        CopartitionGroup(sources=(0, 1), source_regexes=(0,), repartition_sources=(0,)),
                    ),
                ),
            ),
        ),
    ],
}


RECORDS = GoldenRecords(
    "streams_group_records.jsonl",
    KEYS,
    encode_key=encode_streams_key,
    encode=encode_streams_value,
    decode=decode_streams_value,
)


@pytest.mark.parametrize("name", KEYS)
def test_keys_are_kafkas(name: str) -> None:
    RECORDS.check_key(name)


@pytest.mark.parametrize("name", VALUES)
def test_values_are_kafkas_and_refused_if_they_end_early(name: str) -> None:
    RECORDS.check_values(name, VALUES[name])


def test_fields_have_the_names_of_kafkas_definitions() -> None:
    fields = decode_streams_fields(TopologyKey(GROUP), RECORDS.written("StreamsGroupTopologyValue")[1])
    assert [*fields] == ["epoch", "subtopologies"]
    assert fields["subtopologies"][0]["state_changelog_topics"][0]["name"] == "app-store-changelog"


text = st.text(max_size=12)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
numbers = st.lists(int32, max_size=4).map(tuple)
pairs = st.lists(st.builds(KeyValue, key=text, value=text), max_size=2).map(tuple)
tasks = st.lists(st.builds(TaskIds, subtopology_id=text, partitions=numbers), max_size=3).map(tuple)
held = st.lists(
    st.builds(HeldTasks, subtopology_id=text, partitions=numbers, epochs=st.none() | numbers), max_size=3
).map(tuple)
values: st.SearchStrategy[tuple[StreamsGroupKey, StreamsGroupValue]] = st.one_of(
    st.tuples(
        st.builds(StreamsEpochKey, text),
        st.builds(
            StreamsGroupEpoch,
            epoch=int32,
            metadata_hash=int64,
            validated_topology_epoch=int32,
            assignment_configs=st.none() | pairs,
        ),
    ),
    st.tuples(
        st.builds(StreamsMemberKey, text, text),
        st.builds(
            StreamsMemberMetadata,
            instance_id=st.none() | text,
            rack_id=st.none() | text,
            client_id=text,
            client_host=text,
            topology_epoch=int32,
            process_id=text,
            user_endpoint=st.none() | st.builds(Endpoint, host=text, port=st.integers(0, 65_535)),
            client_tags=pairs,
        ),
    ),
    st.tuples(st.builds(StreamsTargetEpochKey, text), st.builds(TargetEpoch, epoch=int32, timestamp_ms=int64)),
    st.tuples(
        st.builds(StreamsTargetKey, text, text), st.builds(StreamsTarget, active=tasks, standby=tasks, warmup=tasks)
    ),
    st.tuples(
        st.builds(StreamsCurrentKey, text, text),
        st.builds(
            StreamsCurrentAssignment,
            epoch=int32,
            previous_epoch=int32,
            state=st.integers(-128, 127),
            active=held,
            warmup=held,
            standby_to_revoke=held,
        ),
    ),
)


@given(values, st.data())
def test_a_record_survives_and_mutated_ones_are_refused_by_one_error(
    record: tuple[StreamsGroupKey, StreamsGroupValue], data: st.DataObject
) -> None:
    RECORDS.check_record(*record, data)

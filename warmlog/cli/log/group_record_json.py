"""Records of `__consumer_offsets` as JSON, for `log dump --offsets-decoder`.

Fields have the names and order of Kafka's message definitions. Only the type is decoded for keys of unknown types;
their values are omitted.
"""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from msgspec.structs import asdict

from warmlog.broker.log.io.directory_names import encode_topic_id
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID, MalformedError
from warmlog.protocol.kafka.consumer_group_records import (
    ConsumerGroupKey,
    CurrentKey,
    EpochKey,
    MemberKey,
    PartitionMetadataKey,
    RegexKey,
    TargetEpochKey,
    TargetKey,
    decode_consumer_fields,
)
from warmlog.protocol.kafka.group_records import (
    ForeignKey,
    GroupKey,
    Key,
    OffsetKey,
    StoredMember,
    decode_group,
    decode_key,
    decode_offset,
)
from warmlog.protocol.kafka.share_group_records import (
    ShareCurrentKey,
    ShareEpochKey,
    ShareGroupKey,
    ShareMemberKey,
    SharePartitionsKey,
    ShareTargetEpochKey,
    ShareTargetKey,
    decode_share_fields,
)
from warmlog.protocol.kafka.streams_group_records import (
    StreamsCurrentKey,
    StreamsEpochKey,
    StreamsGroupKey,
    StreamsMemberKey,
    StreamsTargetEpochKey,
    StreamsTargetKey,
    TopologyKey,
    decode_streams_fields,
)
from warmlog.protocol.records.codec import Record

VERSION_SIZE = 2
#: Names as in Kafka's CoordinatorRecordType, in lower case.
KINDS: Mapping[type[Key], str] = {
    OffsetKey: "offset_commit",
    GroupKey: "group_metadata",
    EpochKey: "consumer_group_metadata",
    PartitionMetadataKey: "consumer_group_partition_metadata",
    MemberKey: "consumer_group_member_metadata",
    TargetEpochKey: "consumer_group_target_assignment_metadata",
    TargetKey: "consumer_group_target_assignment_member",
    CurrentKey: "consumer_group_current_member_assignment",
    RegexKey: "consumer_group_regular_expression",
    ShareMemberKey: "share_group_member_metadata",
    ShareEpochKey: "share_group_metadata",
    ShareTargetEpochKey: "share_group_target_assignment_metadata",
    ShareTargetKey: "share_group_target_assignment_member",
    ShareCurrentKey: "share_group_current_member_assignment",
    SharePartitionsKey: "share_group_state_partition_metadata",
    StreamsEpochKey: "streams_group_metadata",
    StreamsMemberKey: "streams_group_member_metadata",
    StreamsTargetEpochKey: "streams_group_target_assignment_metadata",
    StreamsTargetKey: "streams_group_target_assignment_member",
    StreamsCurrentKey: "streams_group_current_member_assignment",
    TopologyKey: "streams_group_topology",
}


def group_record_fields(record: Record) -> dict[str, Any]:
    """Return `decoded_key` and `decoded_value` of a record, or the `reason` if it cannot be decoded."""
    try:
        key = decode_key(record.key or b"")
        return {"decoded_key": key_json(key), "decoded_value": value_json(key, record.value)}
    except MalformedError as error:
        return {"reason": str(error)}


def key_json(key: Key) -> dict[str, Any]:
    """Return the key as a JSON object with its type."""
    if isinstance(key, ForeignKey):
        return {"type": key.type}
    fields = key._asdict() if isinstance(key, OffsetKey | GroupKey) else asdict(key)
    return {"type": KINDS[type(key)], **fields}


def value_json(key: Key, value: bytes | None) -> dict[str, Any] | None:
    """Return the value as a JSON object; None for a tombstone or an unknown type. Raises MalformedError."""
    if value is None or isinstance(key, ForeignKey):
        return None
    version = int.from_bytes(value[:VERSION_SIZE], "big")
    if isinstance(key, OffsetKey):
        return {"version": version, **offset_json(value)}
    if isinstance(key, ShareGroupKey):
        return {"version": version, **_fields_json(decode_share_fields(key, value))}
    if isinstance(key, StreamsGroupKey):
        return {"version": version, **_fields_json(decode_streams_fields(key, value))}
    return {"version": version, **(group_json(value) if isinstance(key, GroupKey) else consumer_json(key, value))}


def offset_json(value: bytes) -> dict[str, Any]:
    """Decode a committed offset."""
    committed = decode_offset(value)
    return {
        "offset": committed.offset,
        "leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "commit_timestamp": committed.commit_ms,
        "expire_timestamp": committed.expire_ms,
        "topic_id": None if committed.topic_id == NO_TOPIC_ID else encode_topic_id(UUID(bytes=committed.topic_id)),
    }


def group_json(value: bytes) -> dict[str, Any]:
    """Decode the metadata of a group."""
    group = decode_group(value)
    return {
        "protocol_type": group.protocol_type,
        "generation": group.generation,
        "protocol": group.protocol,
        "leader": group.leader,
        "current_state_timestamp": group.state_since_ms,
        "members": [member_json(member) for member in group.members],
    }


def member_json(member: StoredMember) -> dict[str, Any]:
    """Return a member; subscription and assignment, which only assignors can decode, are in base64."""
    return {
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "rebalance_timeout": member.rebalance_timeout_ms,
        "session_timeout": member.session_timeout_ms,
        "subscription_base64": b64encode(member.subscription).decode(),
        "assignment_base64": b64encode(member.assignment).decode(),
    }


def consumer_json(key: ConsumerGroupKey, value: bytes) -> dict[str, Any]:
    """Decode a record of a consumer group; topic ids as text, other bytes in base64.

    The `version` of a regular expression's topic metadata is renamed `metadata_version`.
    """
    fields = decode_consumer_fields(key, value)
    if isinstance(key, RegexKey):
        fields["metadata_version"] = fields.pop("version")
    return _fields_json(fields)


def _fields_json(fields: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in fields.items():
        if name == "topic_id":
            made[name] = encode_topic_id(UUID(bytes=value))
        elif isinstance(value, bytes):
            made[f"{name}_base64"] = b64encode(value).decode()
        else:
            made[name] = _value_json(value)
    return made


def _value_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _fields_json(value)
    return [_value_json(element) for element in value] if isinstance(value, tuple | list) else value

"""Records of `__consumer_offsets` as JSON, for `log dump --offsets-decoder`.

Fields have the names and order of Kafka's message definitions. Of keys of newer group protocols (KIP-848 and later)
only the type is decoded; their values are omitted.
"""

from base64 import b64encode
from typing import Any
from uuid import UUID

from warmlog.broker.log.io.directory_names import encode_topic_id
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID, MalformedError
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
from warmlog.protocol.records.codec import Record

VERSION_SIZE = 2


def group_record_fields(record: Record) -> dict[str, Any]:
    """Return `decoded_key` and `decoded_value` of a record, or the `reason` why it cannot be decoded."""
    try:
        key = decode_key(record.key or b"")
        return {"decoded_key": key_json(key), "decoded_value": value_json(key, record.value)}
    except MalformedError as error:
        return {"reason": str(error)}


def key_json(key: Key) -> dict[str, Any]:
    """Return the key as a JSON object with its type."""
    if isinstance(key, ForeignKey):
        return {"type": key.type}
    kind = "offset_commit" if isinstance(key, OffsetKey) else "group_metadata"
    return {"type": kind, **key._asdict()}


def value_json(key: Key, value: bytes | None) -> dict[str, Any] | None:
    """Return the value as a JSON object; None for a tombstone or an unknown type. Raises MalformedError."""
    if value is None or isinstance(key, ForeignKey):
        return None
    version = int.from_bytes(value[:VERSION_SIZE], "big")
    return {"version": version, **(group_json(value) if isinstance(key, GroupKey) else offset_json(value))}


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

"""What `log dump --offsets-decoder` prints of the records of `__consumer_offsets`.

Owns: the names and order of the fields, which are those of Kafka's message definitions. Must not know: the layouts
(`protocol.kafka.group_records`).

Keys of the newer group protocols (KIP-848 and later) are told by their type alone, their values not at all.
"""

from base64 import b64encode
from typing import Any
from uuid import UUID

from broker.log.io.directory_names import encode_topic_id
from protocol.kafka.codec.bounds import NO_TOPIC_ID, MalformedError
from protocol.kafka.group_records import (
    ForeignKey,
    GroupKey,
    Key,
    OffsetKey,
    StoredMember,
    decode_group,
    decode_key,
    decode_offset,
)
from protocol.records.codec import Record

VERSION_SIZE = 2


def group_forms(record: Record) -> dict[str, Any]:
    """A record's `decoded_key` and `decoded_value`; `reason` instead where it is none of these."""
    try:
        key = decode_key(record.key or b"")
        return {"decoded_key": key_form(key), "decoded_value": value_form(key, record.value)}
    except MalformedError as error:
        return {"reason": str(error)}


def key_form(key: Key) -> dict[str, Any]:
    """What a record is about."""
    if isinstance(key, ForeignKey):
        return {"type": key.type}
    kind = "offset_commit" if isinstance(key, OffsetKey) else "group_metadata"
    return {"type": kind, **key._asdict()}


def value_form(key: Key, value: bytes | None) -> dict[str, Any] | None:
    """What it says; None: that it is gone. Raises MalformedError."""
    if value is None or isinstance(key, ForeignKey):
        return None
    version = int.from_bytes(value[:VERSION_SIZE], "big")
    return {"version": version, **(group_form(value) if isinstance(key, GroupKey) else offset_form(value))}


def offset_form(value: bytes) -> dict[str, Any]:
    """A committed offset."""
    committed = decode_offset(value)
    return {
        "offset": committed.offset,
        "leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "commit_timestamp": committed.commit_ms,
        "expire_timestamp": committed.expire_ms,
        "topic_id": None if committed.topic_id == NO_TOPIC_ID else encode_topic_id(UUID(bytes=committed.topic_id)),
    }


def group_form(value: bytes) -> dict[str, Any]:
    """A generation of a group."""
    group = decode_group(value)
    return {
        "protocol_type": group.protocol_type,
        "generation": group.generation,
        "protocol": group.protocol,
        "leader": group.leader,
        "current_state_timestamp": group.state_since_ms,
        "members": [member_form(member) for member in group.members],
    }


def member_form(member: StoredMember) -> dict[str, Any]:
    """A member; what the client's assignor alone understands is in base64."""
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

"""Records of `__share_group_state` as JSON, for `log dump --share-group-state-decoder`.

Fields have the names and order of Kafka's message definitions.
"""

from typing import Any
from uuid import UUID

from warmlog.broker.log.io.directory_names import encode_topic_id
from warmlog.protocol.kafka.codec.bounds import MalformedError
from warmlog.protocol.kafka.messages.share.state import StateBatch
from warmlog.protocol.kafka.share_state_records import (
    SharePartitionKey,
    ShareRecord,
    ShareSnapshot,
    ShareUpdate,
    decode_record,
)
from warmlog.protocol.records.codec import Record

VERSION_SIZE = 2
VALUE_VERSION = 0


def share_record_fields(record: Record) -> dict[str, Any]:
    """Return `decoded_key` and `decoded_value` of a record, or the `reason` if it cannot be decoded."""
    try:
        decoded = decode_record(record.key or b"", record.value)
    except MalformedError as error:
        return {"reason": str(error)}
    if decoded is None:
        kind = int.from_bytes((record.key or b"")[:VERSION_SIZE], "big")
        return {"decoded_key": {"type": kind}, "decoded_value": None}
    key, value = decoded
    return {"decoded_key": key_json(key, value), "decoded_value": None if value is None else value_json(value)}


def key_json(key: SharePartitionKey, value: ShareRecord | None) -> dict[str, Any]:
    """Return the key as a JSON object with its type, as Kafka's CoordinatorRecordType names it."""
    kind = "share_update" if isinstance(value, ShareUpdate) else "share_snapshot"
    topic_id = encode_topic_id(UUID(bytes=key.topic_id))
    return {"type": kind, "group_id": key.group, "topic_id": topic_id, "partition": key.partition}


def value_json(value: ShareRecord) -> dict[str, Any]:
    """Return the value as a JSON object."""
    form: dict[str, Any] = {"version": VALUE_VERSION, "snapshot_epoch": value.snapshot_epoch}
    if isinstance(value, ShareSnapshot):
        form["state_epoch"] = value.state_epoch
    form |= {
        "leader_epoch": value.leader_epoch,
        "start_offset": value.start_offset,
        "delivery_complete_count": value.delivery_complete_count,
    }
    if isinstance(value, ShareSnapshot):
        form |= {"create_timestamp": value.created_ms, "write_timestamp": value.written_ms}
    return {**form, "state_batches": [batch_json(batch) for batch in value.batches]}


def batch_json(batch: StateBatch) -> dict[str, int]:
    """Return a batch of delivery states as a JSON object."""
    return {
        "first_offset": batch.first_offset,
        "last_offset": batch.last_offset,
        "delivery_state": batch.state,
        "delivery_count": batch.deliveries,
    }

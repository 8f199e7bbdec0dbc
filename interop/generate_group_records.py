"""Regenerate tests/fixtures/kafka/4.3.1/group_records.jsonl: `python interop/generate_group_records.py` (Java, Maven).

Keys and values of `__consumer_offsets` of every version, written by the classes of Kafka's group coordinator. A line is
{"name", "number" (a key's type, a value's version), "fields" in the form of Kafka's JSON converters, "bytes" in
hexadecimal digits}.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from interop.kafka_node import KAFKA_VERSION, java

TARGET = Path(__file__).parent.parent / "tests" / "fixtures" / "kafka" / KAFKA_VERSION / "group_records.jsonl"
TOPIC_ID = "ZROer-cbReKkMjZ9vBhQSg"
VALUE_VERSIONS = range(5)

Line = tuple[str, int, int, dict[str, Any]]


def keys() -> Iterator[Line]:
    """Return keys of every type that this broker reads, and of an unknown one."""
    offset = {"group": "grüppe", "topic": "orders", "partition": 7}
    yield "LegacyOffsetCommitKey", 0, 0, offset
    yield "OffsetCommitKey", 0, 1, offset
    yield "GroupMetadataKey", 0, 2, {"group": "grüppe"}
    yield "ConsumerGroupMetadataKey", 0, 3, {"groupId": "newer"}
    yield "ConsumerGroupMemberMetadataKey", 0, 5, {"groupId": "newer", "memberId": "m"}


def offsets(version: int) -> Iterator[Line]:
    """Return commits with all fields of a version, and with as few as possible."""
    fields: dict[str, Any] = {"offset": 1 << 40, "metadata": "a nöte", "commitTimestamp": 1_700_000_000_123}
    if version == 1:
        fields["expireTimestamp"] = 1_700_000_999_999
    if version >= 3:
        fields["leaderEpoch"] = 9
    if version >= 4:
        yield "OffsetCommitValue", version, version, fields
        fields = {**fields, "topicId": TOPIC_ID}
    yield "OffsetCommitValue", version, version, fields


def groups(version: int) -> Iterator[Line]:
    """Return groups with two members, one of them static if the version has that, and without any."""
    stamp = {"currentStateTimestamp": 1_700_000_000_456} if version >= 2 else {}
    members = [member(version, "one", None), member(version, "two", "instance")]
    head = {"protocolType": "consumer", "generation": 12, "protocol": "range", "leader": "one", **stamp}
    yield "GroupMetadataValue", version, version, {**head, "members": members}
    empty = {"protocolType": "", "generation": 0, "protocol": None, "leader": None, **stamp}
    yield "GroupMetadataValue", version, version, {**empty, "members": []}


def member(version: int, name: str, instance: str | None) -> dict[str, Any]:
    """Return a member; bytes are base64 in Kafka's JSON."""
    return {
        "memberId": name,
        **({"groupInstanceId": instance} if version >= 3 else {}),
        "clientId": "client",
        "clientHost": "/127.0.0.1",
        **({"rebalanceTimeout": 300_000} if version >= 1 else {}),
        "sessionTimeout": 45_000,
        "subscription": "AAAAAAABAAZvcmRlcnP/////",
        "assignment": "AAEC",
    }


def main() -> None:
    """Encode the records with Kafka's classes; write the fields and the bytes."""
    lines = [*keys()]
    for version in VALUE_VERSIONS:
        lines += [*offsets(version), *groups(version)]
    asked = "".join(
        f"group.{name}\t{version}\t{number}\t{json.dumps(fields)}\n" for name, version, number, fields in lines
    )
    written = java("warmlog.interop.GroupRecords", text=asked).splitlines()
    with TARGET.open("w", encoding="ascii") as target:
        for (name, _, number, fields), data in zip(lines, written, strict=True):
            print(json.dumps({"name": name, "number": number, "fields": fields, "bytes": data}), file=target)


if __name__ == "__main__":
    main()

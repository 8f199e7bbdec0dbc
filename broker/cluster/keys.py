"""The keys of the store, and how its values are written; `values` lists both."""

from uuid import UUID

import msgspec

from warmlog.broker.cluster.image import BROKER_DEFAULTS, PartitionKey

CONTROLLER_KEY = "controller"
FEATURES_KEY = "features"
PRODUCER_IDS_KEY = "producer-ids"


def broker_key(broker: int) -> str:
    """Return the key of a registration."""
    return f"brokers/{broker}"


def known_key(broker: int) -> str:
    """Return the key of a broker's latest registration, which outlives its lease."""
    return f"known/{broker}"


def draining_key(broker: int) -> str:
    """Return the key that says that a broker is about to stop."""
    return f"draining/{broker}"


def topic_key(name: str) -> str:
    """Return the key of a topic."""
    return f"topics/{name}"


def partition_key(key: PartitionKey) -> str:
    """Return the key of a partition's state."""
    return f"partitions/{key.topic.hex}/{key.partition}"


def gone_key(topic: UUID, broker: int) -> str:
    """Return the key that says that a broker has data of a deleted topic."""
    return f"gone/{topic.hex}/{broker}"


def configs_key(scope: str = BROKER_DEFAULTS) -> str:
    """Return the key of the settings of a scope: a broker id, all brokers (empty), or `KIND:NAME`."""
    kind, colon, name = scope.partition(":")
    if colon:
        return f"configs/{kind}/{name}"
    return f"configs/broker/{scope}" if scope else "configs/broker"


def encode(value: msgspec.Struct) -> bytes:
    """Encode a value of the store. What its key's revision says, and what is as by default, is left out."""
    if getattr(value, "revision", 0):
        value = msgspec.structs.replace(value, revision=0)
    return msgspec.json.encode(value)

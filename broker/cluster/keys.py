"""The keys of the store, and the encoding of its values; `values` lists both."""

from uuid import UUID, uuid5

import msgspec

from warmlog.broker.cluster.image import BROKER_DEFAULTS
from warmlog.broker.security.acls import Acl
from warmlog.broker.security.quotas.entities import QuotaEntity
from warmlog.protocol.partitions import TopicIdPartition

MIRROR_KEY = "mirror"
CONTROLLER_KEY = "controller"
FEATURES_KEY = "features"
PRODUCER_IDS_KEY = "producer-ids"
_ACLS = UUID("6f9a3c1e-52d4-4b0e-9c47-1f1a0d2b7a55")  # the namespace of the ids of ACLs
LOGIN_SECRET_KEY = "login-secret"  # noqa: S105  # the name of a key


def broker_key(broker: int) -> str:
    """Return the key of a registration."""
    return f"brokers/{broker}"


def known_key(broker: int) -> str:
    """Return the key of a broker's latest registration, which remains when its lease ends."""
    return f"known/{broker}"


def draining_key(broker: int) -> str:
    """Return the key that marks a broker as about to stop."""
    return f"draining/{broker}"


def attempts_key(broker: int) -> str:
    """Return the key whose writing ends a broker's earlier attempts to commit."""
    return f"attempts/{broker}"


def topic_key(name: str) -> str:
    """Return the key of a topic."""
    return f"topics/{name}"


def partition_key(key: TopicIdPartition) -> str:
    """Return the key of a partition's state."""
    return f"partitions/{key.topic_id.hex}/{key.partition}"


def gone_key(topic: UUID, broker: int) -> str:
    """Return the key that marks a broker as having data of a deleted topic."""
    return f"gone/{topic.hex}/{broker}"


def configs_key(scope: str = BROKER_DEFAULTS) -> str:
    """Return the key of the settings of a scope: a broker id, all brokers (empty), or `KIND:NAME`."""
    kind, colon, name = scope.partition(":")
    if colon:
        return f"configs/{kind}/{name}"
    return f"configs/broker/{scope}" if scope else "configs/broker"


def acl_id(acl: Acl) -> UUID:
    """Return the id of an ACL; equal ACLs have equal ids, so brokers that create one concurrently write one key."""
    return uuid5(
        _ACLS, "\0".join(map(str, (*map(int, (acl[0], acl[2], acl[5], acl[6])), acl.name, acl.principal, acl.host)))
    )


def acl_key(acl_id: UUID) -> str:
    """Return the key of an ACL by its id."""
    return f"acls/{acl_id.hex}"


def scram_key(user: str, mechanism: str) -> str:
    """Return the key of a user's credential for a mechanism."""
    return f"scram/{user}/{mechanism}"


def quotas_key(entity: QuotaEntity) -> str:
    """Return the key of an entity's quotas."""
    return f"quotas/{entity.text}"


def token_key(token_id: str) -> str:
    """Return the key of a delegation token."""
    return f"tokens/{token_id}"


def encode(value: msgspec.Struct) -> bytes:
    """Encode a value of the store, without fields that have their default or follow from the key's revision."""
    if getattr(value, "revision", 0):
        value = msgspec.structs.replace(value, revision=0)
    return msgspec.json.encode(value)

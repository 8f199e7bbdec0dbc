"""The contents of a cluster's store: registrations of brokers, topics, and the states of their partitions.

A broker's **registration** has an epoch, the revision of the transaction that wrote it, and `since`, the first epoch of
an unbroken history of the broker's data: preserved by a clean stop and a lost lease, new after an unclean start. An
entry of an ISR or ELR is a `Member`, a broker and an epoch of it; it is good exactly if `since <= entry's epoch <=
epoch` of the broker's current registration. Fencing, the exclusion of brokers that lost data, and quick restarts all
follow from this comparison.

    key                 value
    brokers/N           Registration            with the lease of broker N: it is alive
    known/N             Registration            the latest one of broker N, without a lease, until it is unregistered
    draining/N          empty                   with the lease of broker N: elect others before it stops
    attempts/N          empty                   written when a commit of broker N got no answer (`store_node`)
    controller          ActiveController        with the lease of the broker that elects
    mirror              ActiveController        with the lease of the broker that changes mirrored topics
    topics/NAME         TopicState
    partitions/ID/P     PartitionState          ID is the topic's, as 32 hexadecimal digits; a standalone broker has
                                                no such keys: it has all replicas, and its logs know their epochs
    configs/broker      Configs                 of all brokers; configs/broker/N of one
    configs/KIND/NAME   Configs                 of a resource of another kind, such as a group
    features            Features
    producer-ids        ProducerIds             the first producer id that is not allocated yet
    scram/USER/MECHANISM    ScramCredential (`security.scram`)
    login-secret        LoginSecret             written with the first credential
    tokens/ID           DelegationToken (`security.delegation_tokens`)
    gone/ID/N           empty                   broker N still has data of a deleted topic
    acls/ID             StoredAcl               ID follows from the ACL (`keys.acl_id`), so that no ACL is stored twice
    quotas/ENTITY       StoredQuotas            ENTITY is the text of a `QuotaEntity`

Source: KIP-966 (eligible leader replicas), KIP-903 (broker epochs in the ISR), KIP-841 (fencing).
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from msgspec import Struct, field

from warmlog.broker.metadata.topic import Mirror, Topic
from warmlog.broker.security.acls import Acl, Operation, PatternType, Permission, ResourceType

NO_EPOCH = -1
NO_LEADER = -1


class Member(NamedTuple):
    """A broker, and its epoch when it joined an ISR or became leader."""

    broker: int
    epoch: int


def broker_client_id(broker: int) -> str:
    """Return the client id with which a broker sends requests to others."""
    return f"broker-{broker}"


class Endpoint(Struct, frozen=True, kw_only=True):
    """An address at which clients or brokers reach a broker, and the name of its listener."""

    listener: str
    host: str
    port: int


class Registration(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A broker that is alive, or (`known/N`) was. `epoch`, not part of the value, is the key's `mod_revision`.

    `since` is NO_EPOCH in the value if this epoch begins a new history; `registered` fills in both.
    """

    broker: int
    since: int = NO_EPOCH
    endpoints: tuple[Endpoint, ...] = ()
    rack: str | None = None
    directories: tuple[UUID, ...] = ()  # ids of the data directories, to distinguish a wiped disk from a restart
    version: str = ""
    checks_rights: bool = False  # whether it has an authorizer
    lease: int = 0  # which the broker renews
    epoch: int = NO_EPOCH

    @property
    def where(self) -> str:
        """The broker's addresses, for messages."""
        return ", ".join(f"{each.host}:{each.port}" for each in self.endpoints) or "an unknown address"


class ActiveController(Struct, frozen=True, kw_only=True):
    """The broker that holds elections."""

    broker: int
    epoch: int


class TopicStatus(StrEnum):
    """`creating` until all partitions are in the store; `deleting` until no broker has data of it."""

    CREATING = "creating"
    LIVE = "live"
    DELETING = "deleting"


class TopicState(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A topic. `revision`, not part of the value, is the key's `mod_revision`.

    `creator`: the broker that is creating the topic; if that broker is gone, another one finishes the creation.
    `mirror`: the source of its records, if it follows another cluster, or did so until it was promoted.
    """

    id: UUID
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)
    status: TopicStatus = TopicStatus.LIVE
    creator: Member | None = None
    mirror: Mirror | None = None
    revision: int = 0

    @property
    def is_live(self) -> bool:
        """Whether users see the topic."""
        return self.status is TopicStatus.LIVE

    def named(self, name: str) -> Topic:
        """Return the topic as a value for the rest of the broker."""
        return Topic(name=name, partitions=self.partitions, configs=dict(self.configs), id=self.id, mirror=self.mirror)


class PartitionState(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The replicas of a partition, its leader, ISR and ELR.

    `replicas` in order of preference. `leader` is None while no eligible broker is alive; `leader_epoch` counts
    elections. Every member of the ISR has all acknowledged records; so has every member of the ELR while the ISR is
    smaller than `min.insync.replicas`. `adding` and `removing` are not empty during a reassignment (KIP-455).
    `promoted_at`: for a topic that was a mirror, the log end offset when the leader made the partition writable.
    `revision` is not part of the value: it is the key's `mod_revision`.
    """

    replicas: tuple[int, ...]
    leader: Member | None
    leader_epoch: int
    isr: tuple[Member, ...]
    elr: tuple[Member, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    promoted_at: int | None = None
    revision: int = 0

    @property
    def leader_id(self) -> int:
        """The leading broker, or NO_LEADER."""
        return NO_LEADER if self.leader is None else self.leader.broker


class Configs(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Dynamic broker settings as text by name. `revision` is the key's `mod_revision`."""

    values: Mapping[str, str] = field(default_factory=dict)
    revision: int = 0


class Features(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Levels of the features that were changed, by name. `revision` is the key's `mod_revision`."""

    levels: Mapping[str, int] = field(default_factory=dict)
    revision: int = 0


class ProducerIds(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The first producer id that is not allocated yet. `revision` is the key's `mod_revision`."""

    next_id: int = 0
    revision: int = 0


class StoredAcl(Struct, frozen=True, kw_only=True, gc=False):
    """An ACL, with Kafka's numbers."""

    resource_type: ResourceType
    name: str
    pattern: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    @property
    def acl(self) -> Acl:
        """Return the ACL as the authorizer knows it."""
        return Acl(
            self.resource_type, self.name, self.pattern, self.principal, self.host, self.operation, self.permission
        )


class StoredQuotas(Struct, frozen=True, kw_only=True, gc=False):
    """The quotas of an entity, by name."""

    values: Mapping[str, float]


class LoginSecret(Struct, frozen=True, kw_only=True):
    """The secret from which all brokers compute the same salts for users that do not exist."""

    secret: bytes

    def __repr__(self) -> str:
        return "LoginSecret(...)"


def is_good(member: Member, registration: Registration | None) -> bool:
    """Return whether an ISR or ELR entry names the history that a broker's current registration continues."""
    return registration is not None and registration.since <= member.epoch <= registration.epoch

"""A broker's image of the cluster: the contents of the store as of a revision.

It is built from a `Range` and follows the `Changes` of a watch; applying a change takes time in proportion to it.
Belongs to the event loop. Rules read it and decide; what they write comes back as changes, also to the broker that
wrote it.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar
from uuid import UUID

import msgspec

from warmlog.broker.cluster.store import ABSENT, Changes, Deleted, KeyValue, Range, StoreMismatchError
from warmlog.broker.cluster.values import (
    ActiveController,
    Configs,
    Features,
    LoginSecret,
    Member,
    PartitionState,
    ProducerIds,
    Registration,
    StoredAcl,
    StoredQuotas,
    TopicState,
    is_good,
)
from warmlog.broker.security.acl_index import AclIndex
from warmlog.broker.security.delegation_tokens import DelegationToken
from warmlog.broker.security.quotas.entities import QuotaEntity, QuotaIndex
from warmlog.broker.security.scram import ScramCredential, Shape
from warmlog.protocol.partitions import TopicIdPartition

BROKER_DEFAULTS = ""  # the name of the settings that all brokers share

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(slots=True)
class ImageDelta:
    """The changes of one step: brokers (registered, fenced, draining or unregistered), topics, partitions, settings.

    `topics` maps each name to its previous topic id, or None; `deleted_topics` also has topics that were created in
    this step. `configs` are keys of `ClusterImage.configs`. `is_complete`: whether no step in between was missed.
    """

    brokers: set[int] = field(default_factory=set)
    topics: dict[str, UUID | None] = field(default_factory=dict)
    partitions: set[TopicIdPartition] = field(default_factory=set)
    configs: set[str] = field(default_factory=set)
    gone: set[UUID] = field(default_factory=set)
    deleted_topics: set[UUID] = field(default_factory=set)
    is_complete: bool = True
    has_controller_changed: bool = False
    have_features_changed: bool = False


class ClusterImage:
    """The store's contents. Read its fields, never change them."""

    def __init__(self, contents: Range) -> None:
        self.revision = contents.revision
        self.brokers: dict[int, Registration] = {}  # brokers that are alive
        self.known: dict[int, Registration] = {}  # includes fenced brokers until they are unregistered
        self.draining: set[int] = set()
        self.controller: ActiveController | None = None
        self.mirror_keeper: ActiveController | None = None
        self.topics: dict[str, TopicState] = {}
        self.names: dict[UUID, str] = {}  # of topics, by id
        self.partitions: dict[TopicIdPartition, PartitionState] = {}
        self.counts = Counter[UUID]()  # of the partitions of each topic
        self.held: dict[int, set[TopicIdPartition]] = {}  # by broker, the partitions of which it has a replica
        self.configs: dict[str, Configs] = {}  # by broker id as text, BROKER_DEFAULTS (of all), or KIND:NAME
        self.features = Features()
        self.producer_ids = ProducerIds()
        self.credentials: dict[tuple[str, str], ScramCredential] = {}  # by user and mechanism
        self.credential_shapes: dict[str, Counter[Shape]] = {}  # number of credentials of each shape, by mechanism
        self.login_secret = b""
        self.delegation_tokens: dict[str, DelegationToken] = {}  # by id
        self.token_ids: dict[bytes, str] = {}  # by fingerprint
        self.tokens_of = Counter[str]()  # number of tokens that each principal owns
        self.gone: dict[UUID, set[int]] = {}  # brokers that still have data of a deleted topic
        self.acls = AclIndex()
        self.quotas = QuotaIndex()
        self._revisions: dict[str, int] = {}  # of every key
        self._apply(contents.items, ImageDelta())

    @classmethod
    def of_broker(cls, contents: Range, broker: int) -> Self:
        """Return the image of a standalone broker: it is registered and the controller, permanently."""
        image = cls(contents)
        image.brokers[broker] = image.known[broker] = Registration(broker=broker, since=0, epoch=0)
        image.controller = ActiveController(broker=broker, epoch=0)
        return image

    # -- queries --

    @property
    def is_empty(self) -> bool:
        """Whether the store has no keys."""
        return not self._revisions

    def revision_of(self, key: str) -> int:
        """Return the revision that wrote a key last, or ABSENT."""
        return self._revisions.get(key, ABSENT)

    def is_good(self, member: Member) -> bool:
        """Return whether an ISR or ELR entry names the history that the broker's current registration continues."""
        return is_good(member, self.brokers.get(member.broker))

    def may_join(self, member: Member) -> bool:
        """Return whether a broker may join an ISR with this epoch: it is current, and the broker is not draining."""
        registration = self.brokers.get(member.broker)
        return registration is not None and registration.epoch == member.epoch and member.broker not in self.draining

    def is_active(self, broker: int) -> bool:
        """Return whether a broker is alive and not about to stop."""
        return broker in self.brokers and broker not in self.draining

    def is_known(self, broker: int) -> bool:
        """Return whether a broker is alive or may come back. One of an older version is known only while alive."""
        return broker in self.known or broker in self.brokers

    def current(self, broker: int) -> Member | None:
        """Return a broker with its current epoch; None if it is not registered."""
        registration = self.brokers.get(broker)
        return None if registration is None else Member(broker, registration.epoch)

    def is_latest(self, member: Member) -> bool:
        """Return whether this is the latest epoch of a broker, even if its lease has ended since."""
        registration = self.known.get(member.broker) or self.brokers.get(member.broker)
        return registration is not None and registration.epoch == member.epoch

    def rack_of(self, broker: int) -> str | None:
        """Return the rack of an active broker; None without one."""
        return self.brokers[broker].rack if self.is_active(broker) else None

    def partition(self, topic: str, index: int) -> PartitionState | None:
        """Return the state of a partition by its topic's name."""
        entry = self.topics.get(topic)
        return None if entry is None else self.partitions.get(TopicIdPartition(entry.id, index))

    def keys_of(self, topic: TopicState) -> list[TopicIdPartition]:
        """Return the keys of a topic's partitions that are in the store."""
        keys = [TopicIdPartition(topic.id, index) for index in range(topic.partitions)]
        return [key for key in keys if key in self.partitions]

    # -- following --

    def apply(self, changes: Changes) -> ImageDelta:
        """Advance to a later revision; return what has changed. Raises StoreMismatchError for unreadable values."""
        delta = ImageDelta()
        self._apply(changes.events, delta)
        self.revision = max(self.revision, changes.revision)
        return delta

    def without(self, broker: int) -> ImageDelta:
        """Remove a broker's registration, which has certainly ended; return what has changed."""
        self.brokers.pop(broker, None)
        return ImageDelta(brokers={broker})

    def replace(self, contents: Range) -> ImageDelta:
        """Replace the contents by those of a later revision; the changes in between are unknown.

        Raises StoreMismatchError for a store that has been restored from an older state.
        """
        if contents.revision < self.revision:
            raise StoreMismatchError(
                f"the cluster's store went back from revision {self.revision} to {contents.revision}: was it restored?"
            )
        there_are = {item.key for item in contents.items}
        missing = [Deleted(key) for key in self._revisions if key not in there_are]
        changed = [item for item in contents.items if self._revisions.get(item.key) != item.mod_revision]
        delta = self.apply(Changes(contents.revision, (*missing, *changed)))
        delta.is_complete = False
        return delta

    def _apply(self, events: Iterable[KeyValue | Deleted], delta: ImageDelta) -> None:
        for event in events:
            kind, _, rest = event.key.partition("/")
            take = _TAKES.get(kind)
            if take is None:
                logger.debug("ignored an unknown key in the store: %s", event.key)
                continue
            value, revision = (None, ABSENT) if isinstance(event, Deleted) else (event.value, event.mod_revision)
            try:
                take(self, rest, value, revision, delta)
            except (ValueError, msgspec.DecodeError) as error:
                raise StoreMismatchError(f"cannot read {event.key} of the cluster's store: {error}") from error
            if value is None:
                self._revisions.pop(event.key, None)
            else:
                self._revisions[event.key] = revision

    def _take_broker(self, rest: str, value: bytes | None, revision: int, delta: ImageDelta) -> None:
        _take_registration(self.brokers, int(rest), value, revision, delta)

    def _take_known(self, rest: str, value: bytes | None, revision: int, delta: ImageDelta) -> None:
        _take_registration(self.known, int(rest), value, revision, delta)

    def _take_draining(self, rest: str, value: bytes | None, _: int, delta: ImageDelta) -> None:
        broker = int(rest)
        delta.brokers.add(broker)
        if value is None:
            self.draining.discard(broker)
        else:
            self.draining.add(broker)

    def _take_attempts(self, _: str, __: bytes | None, ___: int, ____: ImageDelta) -> None:
        """Keep only the revision."""

    def _take_controller(self, _: str, value: bytes | None, __: int, delta: ImageDelta) -> None:
        self.controller = None if value is None else _decode(value, ActiveController)
        delta.has_controller_changed = True

    def _take_mirror(self, _: str, value: bytes | None, __: int, ___: ImageDelta) -> None:
        self.mirror_keeper = None if value is None else _decode(value, ActiveController)

    def _take_topic(self, name: str, value: bytes | None, revision: int, delta: ImageDelta) -> None:
        old = self.topics.pop(name, None)
        delta.topics.setdefault(name, None if old is None else old.id)
        if old is not None:
            self.names.pop(old.id, None)
            if value is None:
                delta.deleted_topics.add(old.id)
        if value is not None:
            self.topics[name] = topic = msgspec.structs.replace(_decode_topic(value), revision=revision)
            self.names[topic.id] = name

    def _take_partition(self, rest: str, value: bytes | None, revision: int, delta: ImageDelta) -> None:
        key = TopicIdPartition(*_split(rest))
        delta.partitions.add(key)
        old = self.partitions.pop(key, None)
        self._count(key.topic_id, (value is not None) - (old is not None))
        if old is not None:
            for broker in old.replicas:
                self.held[broker].discard(key)
        if value is not None:
            state = msgspec.structs.replace(_decode_partition(value), revision=revision)
            self.partitions[key] = state
            for broker in state.replicas:
                self.held.setdefault(broker, set()).add(key)

    def _count(self, topic: UUID, added: int) -> None:
        self.counts[topic] += added
        if not self.counts[topic]:
            del self.counts[topic]

    def _take_configs(self, rest: str, value: bytes | None, revision: int, delta: ImageDelta) -> None:
        kind, _, name = rest.partition("/")
        if kind != "broker" and not name:
            return  # written by a later version
        scope = name if kind == "broker" else f"{kind}:{name}"
        delta.configs.add(scope)
        if value is None:
            self.configs.pop(scope, None)
        else:
            self.configs[scope] = msgspec.structs.replace(_decode(value, Configs), revision=revision)

    def _take_features(self, _: str, value: bytes | None, revision: int, delta: ImageDelta) -> None:
        features = Features() if value is None else _decode(value, Features)
        self.features = msgspec.structs.replace(features, revision=revision)
        delta.have_features_changed = True

    def _take_producer_ids(self, _: str, value: bytes | None, revision: int, __: ImageDelta) -> None:
        producer_ids = ProducerIds() if value is None else _decode(value, ProducerIds)
        self.producer_ids = msgspec.structs.replace(producer_ids, revision=revision)

    def _take_acl(self, rest: str, value: bytes | None, _: int, __: ImageDelta) -> None:
        acl_id = UUID(hex=rest)
        if value is None:
            self.acls.remove(acl_id)
        else:
            self.acls.add(acl_id, _decode_acl(value).acl)

    def _take_quotas(self, rest: str, value: bytes | None, _: int, __: ImageDelta) -> None:
        self.quotas.set(QuotaEntity.parse(rest), {} if value is None else _decode(value, StoredQuotas).values)

    def _take_scram(self, rest: str, value: bytes | None, _: int, __: ImageDelta) -> None:
        user, _slash, mechanism = rest.rpartition("/")
        shapes = self.credential_shapes.setdefault(mechanism, Counter())
        old = self.credentials.pop((user, mechanism), None)
        if old is not None:
            shapes[old.shape] -= 1
            shapes += Counter()  # counters that are zero are removed
        if value is not None:
            new = self.credentials[user, mechanism] = _decode(value, ScramCredential)
            shapes[new.shape] += 1

    def _take_login_secret(self, _: str, value: bytes | None, __: int, ___: ImageDelta) -> None:
        self.login_secret = b"" if value is None else _decode(value, LoginSecret).secret

    def _take_token(self, rest: str, value: bytes | None, _: int, __: ImageDelta) -> None:
        old = self.delegation_tokens.pop(rest, None)
        if old is not None:
            self.token_ids.pop(old.fingerprint, None)
            self.tokens_of[old.owner] -= 1
            if not self.tokens_of[old.owner]:
                del self.tokens_of[old.owner]
        if value is not None:
            new = self.delegation_tokens[rest] = _decode(value, DelegationToken)
            self.token_ids[new.fingerprint] = rest
            self.tokens_of[new.owner] += 1

    def _take_gone(self, rest: str, value: bytes | None, _: int, delta: ImageDelta) -> None:
        topic, broker = _split(rest)
        delta.gone.add(topic)
        if value is not None:
            self.gone.setdefault(topic, set()).add(broker)
            return
        holders = self.gone.get(topic, set())
        holders.discard(broker)
        if not holders:
            self.gone.pop(topic, None)


_decode_topic = msgspec.json.Decoder(TopicState).decode  # there are thousands of partitions
_decode_partition = msgspec.json.Decoder(PartitionState).decode
_decode_acl = msgspec.json.Decoder(StoredAcl).decode
_TAKES: Mapping[str, Any] = {
    "brokers": ClusterImage._take_broker,  # noqa: SLF001  # the methods of this module, by kind of key
    "known": ClusterImage._take_known,  # noqa: SLF001
    "draining": ClusterImage._take_draining,  # noqa: SLF001
    "attempts": ClusterImage._take_attempts,  # noqa: SLF001
    "controller": ClusterImage._take_controller,  # noqa: SLF001
    "mirror": ClusterImage._take_mirror,  # noqa: SLF001
    "topics": ClusterImage._take_topic,  # noqa: SLF001
    "partitions": ClusterImage._take_partition,  # noqa: SLF001
    "configs": ClusterImage._take_configs,  # noqa: SLF001
    "features": ClusterImage._take_features,  # noqa: SLF001
    "producer-ids": ClusterImage._take_producer_ids,  # noqa: SLF001
    "gone": ClusterImage._take_gone,  # noqa: SLF001
    "acls": ClusterImage._take_acl,  # noqa: SLF001
    "quotas": ClusterImage._take_quotas,  # noqa: SLF001
    "scram": ClusterImage._take_scram,  # noqa: SLF001
    "tokens": ClusterImage._take_token,  # noqa: SLF001
    "login-secret": ClusterImage._take_login_secret,  # noqa: SLF001
}


def _take_registration(
    into: dict[int, Registration], broker: int, value: bytes | None, revision: int, delta: ImageDelta
) -> None:
    delta.brokers.add(broker)
    if value is None:
        into.pop(broker, None)
        return
    registration = _decode(value, Registration)
    since = registration.since if registration.since >= 0 else revision
    into[broker] = msgspec.structs.replace(registration, epoch=revision, since=since)


def _split(rest: str) -> tuple[UUID, int]:
    """Read "ID/N"."""
    topic, _, number = rest.partition("/")
    return UUID(hex=topic), int(number)


def _decode(value: bytes, kind: type[T]) -> T:
    return msgspec.json.decode(value, type=kind)


EMPTY = Range(0, ())

"""Let a standalone broker grow into a cluster: the contents of its own store become part of the cluster's.

    own store                     cluster's store
    topics/NAME                   the same, after its partitions' states; this broker is the leader and only replica
    topics/NAME, being deleted    gone/ID/N
    configs, features, gone       the same, unless the cluster has other values
    acls/ID                       the same
    quotas/ENTITY                 the same, unless the cluster has quotas of that entity
    producer-ids                  the higher one
    scram, login-secret, tokens   the same, unless the cluster has them: of a member as well

Nothing is taken over from a broker that did not stop cleanly: only a clean stop records the leader epoch of each log,
after which the partition begins the next one. After a crash, the next attempt continues after what was committed.
"""

from collections.abc import Iterator, Mapping, Sequence

from warmlog.broker.cluster.decisions import Refusal
from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.keys import (
    FEATURES_KEY,
    LOGIN_SECRET_KEY,
    PRODUCER_IDS_KEY,
    acl_key,
    configs_key,
    encode,
    gone_key,
    partition_key,
    quotas_key,
    scram_key,
    token_key,
    topic_key,
)
from warmlog.broker.cluster.store import MAX_OPERATIONS, Compare, Put, StoreTransaction
from warmlog.broker.cluster.values import (
    Configs,
    Features,
    LoginSecret,
    Member,
    PartitionState,
    ProducerIds,
    StoredAcl,
    StoredQuotas,
    TopicState,
)
from warmlog.protocol.partitions import TopicIdPartition, TopicPartition

Epochs = Mapping[TopicPartition, int]  # the latest leader epochs, by topic and partition; -1 for none


def adopt(own: ClusterImage, cluster: ClusterImage, me: Member, epochs: Epochs) -> Sequence[StoreTransaction] | Refusal:
    """Return the transactions, in order, that add the contents of a broker's own store that the cluster lacks.

    `me` has the epoch of the entries in ISRs. The broker must be registered with a history that begins there.
    """
    if me.broker in cluster.known:
        return Refusal(f"broker {me.broker} has topics of its own, and was part of this cluster before: unregister it")
    for name, topic in own.topics.items():
        existing = cluster.topics.get(name)
        if topic.is_live and existing is not None and existing.id != topic.id:
            return Refusal(f"topic {name!r} exists in the cluster with another id: delete one of the two")
    return list(_in_steps(cluster, _missing(own, cluster, me, epochs)))


def adopt_credentials(own: ClusterImage, cluster: ClusterImage) -> Sequence[StoreTransaction]:
    """Return transactions that add the users that a cluster lacks."""
    return list(_in_steps(cluster, _credentials(own, cluster)))


def history_of_adopted(own: ClusterImage, cluster: ClusterImage, broker: int) -> int:
    """Return the first epoch of the history of adopted replicas: the lowest in their ISR entries.

    Entries of other topics belong to an earlier broker with this id, whose data is not here.
    """
    states = [cluster.partitions[key] for key in cluster.held.get(broker, ()) if key.topic_id in own.names]
    entries = [member.epoch for state in states for member in state.isr if member.broker == broker]
    return min(entries, default=cluster.revision)


def _missing(own: ClusterImage, cluster: ClusterImage, me: Member, epochs: Epochs) -> Iterator[Put]:
    """Iterate over the keys that the cluster lacks; a topic follows its partitions."""
    for name, topic in own.topics.items():
        if not topic.is_live:
            yield Put(gone_key(topic.id, me.broker), b"")
        else:
            yield from _topic(name, topic, cluster, me, epochs)
    for topic_id in own.gone:
        yield Put(gone_key(topic_id, me.broker), b"")
    yield from _credentials(own, cluster)
    for scope, configs in own.configs.items():
        there = cluster.configs[scope].values if scope in cluster.configs else {}
        if configs.values.keys() - there.keys():
            yield Put(configs_key(scope), encode(Configs(values={**configs.values, **there})))
    levels = own.features.levels
    if levels.keys() - cluster.features.levels.keys():
        yield Put(FEATURES_KEY, encode(Features(levels={**levels, **cluster.features.levels})))
    yield from _rules(own, cluster)
    if own.producer_ids.next_id > cluster.producer_ids.next_id:
        yield Put(PRODUCER_IDS_KEY, encode(ProducerIds(next_id=own.producer_ids.next_id)))


def _credentials(own: ClusterImage, cluster: ClusterImage) -> Iterator[Put]:
    for key, credential in own.credentials.items():
        if key not in cluster.credentials:
            yield Put(scram_key(*key), encode(credential))
    for token_id, token in own.delegation_tokens.items():
        if token_id not in cluster.delegation_tokens:
            yield Put(token_key(token_id), encode(token))
    if own.login_secret and not cluster.login_secret:
        yield Put(LOGIN_SECRET_KEY, encode(LoginSecret(secret=own.login_secret)))


def _rules(own: ClusterImage, cluster: ClusterImage) -> Iterator[Put]:
    for each_id, acl in own.acls.items():
        if acl not in cluster.acls:
            yield Put(acl_key(each_id), encode(StoredAcl(**acl._asdict())))
    for entity, quotas in own.quotas.items():
        if not cluster.quotas.of(entity):
            yield Put(quotas_key(entity), encode(StoredQuotas(values=quotas)))


def _topic(name: str, topic: TopicState, cluster: ClusterImage, me: Member, epochs: Epochs) -> Iterator[Put]:
    for index in range(topic.partitions):
        key, epoch = TopicIdPartition(topic.id, index), epochs[name, index]
        stored = cluster.partitions.get(key)
        if stored is None or stored.leader_epoch <= epoch:  # led by this broker itself since an interrupted attempt
            state = PartitionState(replicas=(me.broker,), leader=me, leader_epoch=epoch + 1, isr=(me,))
            yield Put(partition_key(key), encode(state))
    if name not in cluster.topics:
        yield Put(topic_key(name), encode(topic))


def _in_steps(cluster: ClusterImage, puts: Iterator[Put]) -> Iterator[StoreTransaction]:
    """Divide writes into transactions; each compares the keys that it replaces."""
    step: list[Put] = []
    for put in puts:
        if cluster.revision_of(put.key) and put.key.startswith("gone/"):
            continue
        step.append(put)
        if len(step) == MAX_OPERATIONS:
            yield _transaction(cluster, step)
            step = []
    if step:
        yield _transaction(cluster, step)


def _transaction(cluster: ClusterImage, puts: Sequence[Put]) -> StoreTransaction:
    return StoreTransaction(tuple(Compare(put.key, cluster.revision_of(put.key)) for put in puts), tuple(puts))

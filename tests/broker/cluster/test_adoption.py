"""What a cluster takes over of the store of a broker that was by itself, whatever interrupts that."""

from collections.abc import Sequence
from uuid import UUID, uuid5

import pytest

from tests.broker.cluster.memory import MemoryCluster
from warmlog.broker.cluster.decisions import Refusal
from warmlog.broker.cluster.image import EMPTY, ClusterImage
from warmlog.broker.cluster.keys import (
    FEATURES_KEY,
    LOGIN_SECRET_KEY,
    PRODUCER_IDS_KEY,
    acl_id,
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
from warmlog.broker.cluster.local.adoption import adopt, adopt_credentials, history_of_adopted
from warmlog.broker.cluster.store import MAX_OPERATIONS, Delete, Put, StoreTransaction
from warmlog.broker.cluster.values import (
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
    TopicStatus,
)
from warmlog.broker.metadata.topic import Mirror
from warmlog.broker.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from warmlog.broker.security.delegation_tokens import DelegationToken
from warmlog.broker.security.quotas.entities import QuotaEntity
from warmlog.broker.security.scram import ScramCredential
from warmlog.protocol.partitions import TopicIdPartition

ACL = Acl(ResourceType.TOPIC, "t", PatternType.LITERAL, "User:a", "*", Operation.READ, Permission.ALLOW)
ALICE, BOB = QuotaEntity("alice"), QuotaEntity("bob", "")
ME = Member(7, 5)
SPACE = UUID("11111111-2222-3333-4444-555555555555")


def image_of(cluster: MemoryCluster) -> ClusterImage:
    return ClusterImage(cluster.range(""))


def own(topics: dict[str, TopicState], *puts: Put) -> ClusterImage:
    cluster = MemoryCluster()
    for name, topic in topics.items():
        cluster.commit(StoreTransaction((), (Put(topic_key(name), encode(topic)),)))
    for put in puts:
        cluster.commit(StoreTransaction((), (put,)))
    return image_of(cluster)


def topic(name: str, partitions: int = 1, **fields: object) -> TopicState:
    return TopicState(id=uuid5(SPACE, name), partitions=partitions, **fields)  # type: ignore[arg-type]


def epochs_of(image: ClusterImage, epoch: int = 3) -> dict[tuple[str, int], int]:
    return {(name, index): epoch for name, found in image.topics.items() for index in range(found.partitions)}


def steps(mine: ClusterImage, cluster: MemoryCluster, me: Member = ME, epoch: int = 3) -> Sequence[StoreTransaction]:
    found = adopt(mine, image_of(cluster), me, epochs_of(mine, epoch))
    assert not isinstance(found, Refusal), found
    return found


async def test_everything_goes_along() -> None:
    mine = own(
        {"t": topic("t", 2, configs={"retention.ms": "5"}), "gone": topic("gone", status=TopicStatus.DELETING)},
        Put(configs_key(""), encode(Configs(values={"a": "1", "b": "2"}))),
        Put(configs_key("7"), encode(Configs(values={"c": "3"}))),
        Put(FEATURES_KEY, encode(Features(levels={"f": 1}))),
        Put(PRODUCER_IDS_KEY, encode(ProducerIds(next_id=3000))),
        Put(gone_key(uuid5(SPACE, "old"), 7), b""),
        Put(acl_key(acl_id(ACL)), encode(StoredAcl(**ACL._asdict()))),
        *[Put(quotas_key(each), encode(StoredQuotas(values={"producer_byte_rate": 1.0}))) for each in (ALICE, BOB)],
    )
    cluster = MemoryCluster()
    theirs = StoredQuotas(values={"producer_byte_rate": 2.0})
    cluster.commit(StoreTransaction((), (Put(quotas_key(BOB), encode(theirs)),)))
    cluster.commit(StoreTransaction((), (Put(configs_key(""), encode(Configs(values={"b": "theirs"}))),)))
    for step in steps(mine, cluster):
        assert cluster.commit(step).succeeded
    image = image_of(cluster)
    assert image.topics.keys() == {"t"}
    assert (image.topics["t"].id, image.topics["t"].configs) == (uuid5(SPACE, "t"), {"retention.ms": "5"})
    for index in range(2):
        state = image.partitions[TopicIdPartition(uuid5(SPACE, "t"), index)]
        assert (state.replicas, state.leader, state.isr, state.leader_epoch) == ((7,), ME, (ME,), 4)
    assert {scope: found.values for scope, found in image.configs.items()} == {
        "": {"a": "1", "b": "theirs"},
        "7": {"c": "3"},
    }
    assert image.features.levels == {"f": 1}
    assert image.producer_ids.next_id == 3000
    assert ACL in image.acls
    assert dict(image.quotas.items()) == {ALICE: {"producer_byte_rate": 1.0}, BOB: {"producer_byte_rate": 2.0}}
    assert image.gone == {uuid5(SPACE, "gone"): {7}, uuid5(SPACE, "old"): {7}}
    assert steps(mine, cluster) == []


@pytest.mark.parametrize("interrupted_after", range(4))
async def test_an_interrupted_adoption_goes_on(interrupted_after: int) -> None:
    mine = own({"a": topic("a", 200), **{f"t{number}": topic(f"t{number}") for number in range(60)}})
    cluster = MemoryCluster()
    for step in steps(mine, cluster)[:interrupted_after]:
        assert len(step.operations) <= MAX_OPERATIONS
        assert cluster.commit(step).succeeded
    later = Member(7, 9)
    for step in steps(mine, cluster, later):
        assert cluster.commit(step).succeeded
    image = image_of(cluster)
    assert image.topics.keys() == mine.topics.keys()
    assert all(image.counts[found.id] == found.partitions for found in image.topics.values())
    assert steps(mine, cluster, later) == []
    assert history_of_adopted(mine, image, 7) == (5 if interrupted_after else 9)


async def test_epochs_of_a_broker_that_went_on_by_itself_after_an_interrupted_attempt_are_not_used_again() -> None:
    mine = own({"t": topic("t", 2)})
    cluster = MemoryCluster()
    for epoch in (3, 6):
        for step in steps(mine, cluster, epoch=epoch):
            assert cluster.commit(step).succeeded
        assert {state.leader_epoch for state in image_of(cluster).partitions.values()} == {epoch + 1}
        assert steps(mine, cluster, epoch=epoch) == []


async def test_replicas_of_an_earlier_broker_of_the_same_id_are_not_part_of_the_history() -> None:
    mine = own({"t": topic("t")})
    cluster = MemoryCluster()
    earlier = PartitionState(replicas=(7, 8), leader=None, leader_epoch=2, isr=(Member(7, 2),))
    key = TopicIdPartition(uuid5(SPACE, "theirs"), 0)
    cluster.commit(StoreTransaction((), (Put(partition_key(key), encode(earlier)),)))
    for step in steps(mine, cluster):
        assert cluster.commit(step).succeeded
    assert history_of_adopted(mine, image_of(cluster), 7) == ME.epoch


async def test_what_another_broker_has_written_meanwhile_is_not_replaced() -> None:
    mine = own({"t": topic("t")})
    cluster = MemoryCluster()
    (step,) = steps(mine, cluster)
    cluster.commit(StoreTransaction((), (Put(topic_key("t"), encode(topic("other"))),)))
    assert not cluster.commit(step).succeeded


async def test_a_mirror_goes_along_in_an_epoch_above_those_of_its_source() -> None:
    mirrored = topic("m", mirror=Mirror(cluster_id="source"))
    cluster = MemoryCluster()
    adopted = adopt(own({"m": mirrored}), image_of(cluster), ME, {("m", 0): 57})
    assert not isinstance(adopted, Refusal)
    for step in adopted:
        assert cluster.commit(step).succeeded
    found = image_of(cluster)
    assert found.topics["m"].mirror == Mirror(cluster_id="source")
    assert found.partitions[TopicIdPartition(mirrored.id, 0)].leader_epoch == 58


async def test_what_cannot_go_along_is_refused() -> None:
    cluster = MemoryCluster()
    cluster.commit(StoreTransaction((), (Put(topic_key("t"), encode(topic("other"))),)))
    taken = adopt(own({"t": topic("t")}), image_of(cluster), ME, {("t", 0): 0})
    assert taken == Refusal("topic 't' exists in the cluster with another id: delete one of the two")
    known = ClusterImage(EMPTY)
    known.known[7] = Registration(broker=7)
    refused = adopt(own({"t": topic("t")}), known, ME, {("t", 0): 0})
    assert isinstance(refused, Refusal)
    assert "was part of this cluster before" in refused.reason


async def test_users_go_along_and_do_not_replace_those_of_the_cluster() -> None:
    def put(user: str, salt: bytes) -> Put:
        credential = ScramCredential(salt=salt, stored_key=b"s", server_key=b"k", iterations=4096)
        return Put(scram_key(user, "SCRAM-SHA-256"), encode(credential))

    secret = Put(LOGIN_SECRET_KEY, encode(LoginSecret(secret=b"mine")))
    mine = own({}, put("alice", b"mine"), put("bob", b"mine"), secret)
    cluster = MemoryCluster()
    cluster.commit(StoreTransaction((), (put("bob", b"theirs"),)))
    for step in adopt_credentials(mine, image_of(cluster)):
        assert cluster.commit(step).succeeded
    image = image_of(cluster)
    assert {user: each.salt for (user, _), each in image.credentials.items()} == {"alice": b"mine", "bob": b"theirs"}
    assert image.login_secret == b"mine"
    assert not adopt_credentials(mine, image)


async def test_delegation_tokens_go_along_and_do_not_replace_those_of_the_cluster() -> None:
    def put(token_id: str, owner: str) -> Put:
        token = DelegationToken(
            owner=owner, requester=owner, renewers=(), issued_at=0, expires_at=1, max_at=1,
            fingerprint=f"{token_id} {owner}".encode(), credentials={},
        )  # fmt: skip
        return Put(token_key(token_id), encode(token))

    mine = own({}, put("1", "User:mine"), put("2", "User:mine"))
    cluster = MemoryCluster()
    cluster.commit(StoreTransaction((), (put("2", "User:theirs"),)))
    for step in adopt_credentials(mine, image_of(cluster)):
        assert cluster.commit(step).succeeded
    image = image_of(cluster)
    assert {name: each.owner for name, each in image.delegation_tokens.items()} == {
        "1": "User:mine",
        "2": "User:theirs",
    }
    assert image.token_ids == {b"1 User:mine": "1", b"2 User:theirs": "2"}
    assert image.tokens_of == {"User:mine": 1, "User:theirs": 1}
    cluster.commit(StoreTransaction((), (put("1", "User:another"), Delete(token_key("2")))))
    image = image_of(cluster)
    assert (image.token_ids, dict(image.tokens_of)) == ({b"1 User:another": "1"}, {"User:another": 1})

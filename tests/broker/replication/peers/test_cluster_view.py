import pytest

from warmlog.broker.replication.peers.cluster_view import ClusterView, Leader, Reaction, reaction_to
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.common import topic_id_text
from warmlog.protocol.response import BrokerMetadata, MetadataResponse, PartitionMetadata, TopicMetadata

OLD, NEW = b"o" * 16, b"n" * 16
LEADERLESS = ErrorCode.LEADER_NOT_AVAILABLE


def metadata(*topics: TopicMetadata, brokers: tuple[int, ...] = (1, 2)) -> MetadataResponse:
    return MetadataResponse(
        cluster_id="source",
        controller=1,
        brokers=tuple(BrokerMetadata(node_id=one, host=f"b{one}", port=9092) for one in brokers),
        topics=topics,
    )


def orders(leader: int, epoch: int, topic_id: bytes | None = OLD, error: ErrorCode = ErrorCode.NONE) -> TopicMetadata:
    partition = PartitionMetadata(
        partition=0, leader=leader, leader_epoch=epoch, replicas=(1, 2), in_sync=(1,), error=error
    )
    return TopicMetadata(
        name="orders", topic_id=None if topic_id is None else topic_id_text(topic_id), partitions=(partition,)
    )


def view_of(*topics: TopicMetadata) -> ClusterView:
    view = ClusterView()
    assert view.update(metadata(*topics))
    return view


def test_the_same_metadata_changes_nothing() -> None:
    view = view_of(orders(1, 5))
    assert not view.update(metadata(orders(1, 5)))
    assert view.leader_of("orders", 0) == Leader(1, 5)
    assert view.leader_of("orders", 1) is view.leader_of("others", 0) is None


@pytest.mark.parametrize(("leader", "epoch", "expected"), [(2, 6, (2, 6)), (2, 4, (1, 5)), (2, -1, (2, -1))])
def test_an_older_leader_does_not_replace_a_newer_one(leader: int, epoch: int, expected: tuple[int, int]) -> None:
    view = view_of(orders(1, 5))
    assert view.update(metadata(orders(leader, epoch))) == (expected != (1, 5))
    assert view.leader_of("orders", 0) == Leader(*expected)


def test_a_recreated_topic_begins_with_its_own_epochs() -> None:
    view = view_of(orders(1, 5))
    assert view.update(metadata(orders(2, 0, NEW)))
    assert view.leader_of("orders", 0) == Leader(2, 0)
    assert view.topics["orders"].topic_id == NEW


def test_an_upgraded_cluster_gives_its_topics_ids() -> None:
    view = view_of(orders(1, 5, None))
    assert view.update(metadata(orders(1, 4)))
    assert view.topics["orders"].topic_id == OLD
    assert view.leader_of("orders", 0) == Leader(1, 5)


def test_a_leader_is_kept_while_an_election_runs() -> None:
    view = view_of(orders(1, 5))
    assert not view.update(metadata(orders(-1, 5, error=LEADERLESS)))
    assert view.leader_of("orders", 0) == Leader(1, 5)


def test_a_partition_that_never_had_a_leader_is_known() -> None:
    assert view_of(orders(-1, 0, error=LEADERLESS)).leader_of("orders", 0) == Leader(-1, 0)


def test_topics_that_are_gone_are_removed() -> None:
    view = view_of(orders(1, 5))
    assert view.update(metadata())
    assert not view.topics
    view = view_of(orders(1, 5))
    gone = TopicMetadata(name="orders", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert view.update(metadata(gone), requested=("orders",))
    assert not view.topics
    assert view.errors == {"orders": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_topics_that_were_not_asked_for_stay() -> None:
    view = view_of(orders(1, 5))
    assert not view.update(metadata(), requested=("others",))
    assert "orders" in view.topics


def test_a_topic_that_may_not_be_read_keeps_its_leaders_and_has_an_error() -> None:
    view = view_of(orders(1, 5))
    assert view.update(metadata(TopicMetadata(name="orders", error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)))
    assert view.leader_of("orders", 0) == Leader(1, 5)
    assert view.update(metadata(orders(1, 5)))
    assert not view.errors


@pytest.mark.parametrize(
    ("error", "reaction"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, Reaction.REFRESH),
        (ErrorCode.FENCED_LEADER_EPOCH, Reaction.REFRESH),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, Reaction.REFRESH),
        (ErrorCode.UNKNOWN_TOPIC_ID, Reaction.REFRESH),
        (ErrorCode.OFFSET_NOT_AVAILABLE, Reaction.RETRY),
        (ErrorCode.OFFSET_OUT_OF_RANGE, Reaction.REPORT),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, Reaction.REPORT),
    ],
)
def test_errors_that_metadata_can_cure_make_a_topic_stale(error: ErrorCode, reaction: Reaction) -> None:
    view = view_of(orders(1, 5))
    assert view.report("orders", error) is reaction_to(error) is reaction
    assert view.stale == ({"orders"} if reaction is Reaction.REFRESH else set())
    view.update(metadata(orders(1, 5)))
    assert not view.stale


def test_a_topic_stays_stale_until_every_partition_has_a_leader() -> None:
    view = view_of(orders(1, 5))
    view.report("orders", ErrorCode.NOT_LEADER_OR_FOLLOWER)
    view.update(metadata(orders(-1, 6, error=LEADERLESS)))
    assert view.stale == {"orders"}
    view.update(metadata(orders(2, 7)))
    assert not view.stale


@pytest.mark.parametrize(
    ("error", "is_stale"),
    [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True), (LEADERLESS, True), (ErrorCode.TOPIC_AUTHORIZATION_FAILED, False)],
)
def test_a_topic_stays_stale_while_other_metadata_can_cure_its_error(error: ErrorCode, is_stale: bool) -> None:
    view = view_of(orders(1, 5))
    view.report("orders", ErrorCode.UNKNOWN_TOPIC_ID)
    for _ in range(2):  # the second one changes nothing, so that nobody reports an error again
        view.update(metadata(TopicMetadata(name="orders", error=error, partitions=())), ["orders"])
        assert view.stale == ({"orders"} if is_stale else set())
    view.update(metadata())
    assert not view.stale


def test_topics_of_a_lost_broker_are_stale() -> None:
    view = view_of(orders(1, 5))
    view.lost_broker(2)
    assert not view.stale
    view.lost_broker(1)
    assert view.stale == {"orders"}


def test_no_brokers_in_a_response_are_no_news() -> None:
    view = view_of(orders(1, 5))
    view.update(metadata(orders(1, 5), brokers=()))
    assert set(view.brokers) == {1, 2}

"""How a group's target assignment is computed and stored (source: Kafka's TargetAssignmentBuilderTest, 4.4)."""

from collections.abc import Iterable

from tests.broker.groups.consumer.driver import Driver, partitions
from tests.broker.groups.modern.driver import Cluster, topic_id
from warmlog.broker.groups.modern.assignment import Assignment, Subscriber
from warmlog.broker.groups.modern.progress import ROWS_PER_STORE
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.consumer_group_records import TargetEpochKey, TargetKey

ORDERS = topic_id("orders")


def computing(*, members: int = 3, **limits: int) -> Driver:
    """Return a group whose target is to be computed after its topic has grown."""
    driver = Driver(max_size=1000, **limits)
    for number in range(members):
        driver.joined(f"m{number:03}")
    driver.grow("orders", 2 * members)
    driver.auto = False
    driver.heartbeat("m000", 0, topics=("orders",), rebalance_timeout_ms=1000, owned=())
    while driver.stores:
        driver.store()
    driver.log.clear()
    return driver


def other_partitions(members: Iterable[str]) -> dict[str, Assignment]:
    """Assign each member a partition that it has not had."""
    return {member_id: {ORDERS: frozenset({1000 + number})} for number, member_id in enumerate(members)}


def test_an_assignor_gets_members_with_existing_topics_and_their_part_of_the_target() -> None:
    driver = Driver(Cluster(orders=2))
    driver.joined("a", topics=("missing", "orders"), rack_id="r1", instance_id="i")
    driver.auto = False
    driver.join("b", topics=())
    assert not driver.assigns, "a member without topics does not raise the epoch"
    driver.join("c", topics=("missing",))
    (assign,) = driver.assigns
    assert assign.members == {
        "a": Subscriber(frozenset({ORDERS}), {ORDERS: frozenset({0, 1})}, "r1", "i"),
        "b": Subscriber(frozenset(), {}),
        "c": Subscriber(frozenset(), {}),
    }
    assert list(assign.topics) == [ORDERS]


def test_only_changed_parts_are_stored_and_the_epoch_last() -> None:
    driver = computing()
    driver.assign = lambda members, _: {key: {} if key == "m001" else each.owned for key, each in members.items()}
    driver.finish_assign()
    rows = [row for store in driver.stores for row in store.rows]
    assert [key for key, _ in rows if isinstance(key, TargetKey)] == [TargetKey("g", "m001")]
    assert TargetEpochKey("g") in dict(rows)


def test_topics_without_partitions_are_not_in_a_target() -> None:
    driver = computing()
    driver.assign = lambda members, _: {member_id: {ORDERS: frozenset()} for member_id in members}
    driver.finish_assign()
    assert {target.value.partitions for target in driver.group._group.targets.values()} == {()}


def test_a_member_that_left_during_the_computation_has_no_target() -> None:
    driver = computing()
    driver.heartbeat("m001", -1)
    driver.finish_assign()
    assert sorted(driver.group._group.targets) == ["m000", "m002"]


def test_a_member_that_joined_during_the_computation_has_nothing_until_the_next() -> None:
    driver = computing()
    driver.join("new")
    driver.finish_assign()
    assert driver.group.assignment_epoch == driver.group.epoch - 1
    assert driver.group._group.target("new").partitions == {}


def test_a_large_target_is_stored_in_pieces() -> None:
    driver = computing(members=ROWS_PER_STORE + 1)
    effect = driver.assigns.pop()
    pieces = 0
    for _ in driver.group.assigned(effect.epoch, other_partitions(effect.members), driver.now):
        driver.take()
        pieces += 1
        assert driver.group.assignment_epoch < effect.epoch
    driver.take()
    assert pieces == 1
    assert len(driver.stores[0].rows) == ROWS_PER_STORE
    assert driver.group.assignment_epoch == effect.epoch


def test_a_target_is_abandoned_if_a_piece_cannot_be_stored() -> None:
    driver = computing(members=ROWS_PER_STORE + 1)
    before = dict(driver.group.rows())
    effect = driver.assigns.pop()
    for _ in driver.group.assigned(effect.epoch, other_partitions(effect.members), driver.now):
        driver.take()
        driver.store(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    driver.take()
    assert dict(driver.group.rows()) == before
    driver.store()  # the correction
    driver.heartbeat("m001", driver.group._group.current("m001").epoch)
    assert driver.assigns, "it is computed again"


def test_a_member_reports_only_topics_that_exist() -> None:
    driver = Driver(Cluster(orders=1, logs=1))
    driver.joined("a", topics=("logs", "orders"))
    driver.cluster.delete("logs")
    driver.group.topics_changed(["logs"])
    answer = driver.beat("a", 2, owned=partitions(orders=[0]))
    assert answer.assignment is not None
    assert [each.topic_id for each in answer.assignment.partitions] == [ORDERS]
    assert answer.member_epoch == 3

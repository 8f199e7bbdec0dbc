"""What becomes of a consumer group's changes that could not be stored."""

from tests.broker.groups.consumer.driver import Driver, flat, partitions
from tests.broker.groups.modern.driver import SESSION_MS
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import ConsumerGroupState
from warmlog.protocol.kafka.consumer_group_records import CurrentKey, MemberKey


def stable(*members: str, **limits: int) -> Driver:
    """Return a group whose members have what they are to have."""
    driver = Driver(**limits)
    epochs = dict.fromkeys(members, 0)
    owned = dict.fromkeys(members, partitions())
    for member in members:
        epochs[member] = driver.joined(member).member_epoch
    for _ in range(4):
        for member in members:
            answer = driver.beat(member, epochs[member], owned=owned[member])
            epochs[member] = answer.member_epoch
            owned[member] = owned[member] if answer.assignment is None else answer.assignment.partitions
    assert driver.group.state is ConsumerGroupState.STABLE
    return driver


def test_a_heartbeat_is_answered_when_its_changes_are_stored() -> None:
    driver = Driver(auto=False)
    waiter = driver.join("a")
    driver.finish_assign()
    assert [store.ticket for store in driver.stores] == [1, 2]
    driver.store()
    assert waiter not in driver.answers
    driver.store()
    assert driver.answers[waiter].member_epoch == 2


def test_a_heartbeat_without_changes_waits_for_those_it_is_based_on() -> None:
    driver = stable("a")
    driver.auto = False
    driver.join("b")
    waiter = driver.heartbeat("a", 2)
    assert waiter not in driver.answers
    driver.store()
    assert driver.answers[waiter].error is ErrorCode.NONE


def test_a_heartbeat_without_changes_is_answered_immediately_if_all_is_stored() -> None:
    driver = stable("a")
    driver.auto = False
    assert driver.beat("a", 2).error is ErrorCode.NONE
    assert not driver.stores


def test_changes_that_were_not_stored_are_undone_with_all_later_ones() -> None:
    driver = stable("a")
    before = driver.group.rows()
    driver.auto = False
    first, second = driver.join("b"), driver.join("c")
    driver.store(ErrorCode.NOT_COORDINATOR)
    assert driver.answers[first].error is driver.answers[second].error is ErrorCode.NOT_COORDINATOR
    assert driver.group.rows() == before


def test_a_member_that_changed_twice_in_a_decision_gets_back_what_it_was() -> None:
    driver = Driver()
    driver.joined("a", instance_id="i")
    driver.leave("a", -2, instance_id="i")
    before = dict(driver.group.rows())
    driver.auto = False
    driver.join("b", instance_id="i", topics=("orders", "logs"))
    driver.store(ErrorCode.NOT_COORDINATOR)
    assert dict(driver.group.rows()) == before
    assert list(driver.group.members) == ["a"]


def test_what_was_stored_after_a_failed_write_is_corrected() -> None:
    driver = stable("a")
    driver.auto = False
    driver.join("b")
    driver.join("c")
    driver.store(ErrorCode.UNKNOWN_SERVER_ERROR)
    driver.store()
    while driver.stores:
        driver.store()
    assert (MemberKey("g", "c"), None) in driver.log
    assert dict(driver.restarted().rows()) == dict(driver.group.rows())


def test_corrections_cover_the_later_writes_whose_outcome_is_not_known() -> None:
    driver = stable("a", "b")
    driver.auto = False
    driver.heartbeat("b", 3, rack_id="r")
    driver.heartbeat("a", -1)
    log = [*driver.log, *[row for store in driver.stores for row in store.rows]]
    driver.store(ErrorCode.REQUEST_TIMED_OUT)
    correction = driver.stores[-1]
    assert dict(driver.loaded_from([*log, *correction.rows]).rows()) == dict(driver.group.rows())


def test_what_is_left_of_a_removed_member_does_not_keep_partitions() -> None:
    driver = stable("a", "b")
    current = next(row for row in driver.group.rows() if row[0] == CurrentKey("g", "b"))
    driver.leave("b")
    driver.log.append(current)
    driver.group = driver.restarted()
    assert driver.group.epoch == 5
    driver.settle()
    assert flat(driver.beat("a", 3).assignment) == {("orders", number) for number in range(4)}
    assert dict(driver.restarted().rows()) == dict(driver.group.rows())
    assert CurrentKey("g", "b") not in dict(driver.group.rows())


def test_a_write_that_failed_may_be_in_the_log_and_is_corrected() -> None:
    driver = stable("a")
    driver.auto = False
    driver.join("b")
    driver.store(ErrorCode.COORDINATOR_NOT_AVAILABLE, written=True)
    assert dict(driver.restarted().rows()) != dict(driver.group.rows())
    driver.store()
    assert dict(driver.restarted().rows()) == dict(driver.group.rows())


def test_a_correction_that_failed_is_written_with_the_next_change() -> None:
    driver = stable("a")
    driver.auto = False
    driver.join("b")
    driver.store(ErrorCode.COORDINATOR_NOT_AVAILABLE, written=True)
    driver.store(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert not driver.stores
    driver.heartbeat("a", 2, rack_id="r")
    driver.store()
    assert dict(driver.restarted().rows()) == dict(driver.group.rows())
    assert list(driver.group.members) == ["a"]


def test_a_correction_covers_what_was_undone_before_its_outcome_is_known() -> None:
    driver = stable("a")
    driver.auto = False
    driver.join("b")
    driver.heartbeat("a", -1)
    driver.store(ErrorCode.COORDINATOR_NOT_AVAILABLE, written=True)
    driver.store(ErrorCode.COORDINATOR_NOT_AVAILABLE, written=True)
    driver.store()
    assert not driver.stores
    assert dict(driver.restarted().rows()) == dict(driver.group.rows())
    assert list(driver.group.members) == ["a"]


def test_what_a_member_had_that_is_gone_belongs_to_nobody() -> None:
    driver = stable("a", "b")
    driver.log.append((MemberKey("g", "a"), None))  # as if the log had ended before its correction
    keys = [key for key, _ in driver.restarted().rows()]
    assert CurrentKey("g", "b") in keys
    assert CurrentKey("g", "a") not in keys


def test_corrections_delete_a_member_in_an_order_that_kafka_can_read() -> None:
    driver = Driver(auto=False)
    driver.join("a")
    driver.store()
    driver.finish_assign()
    driver.store()
    driver.auto = True
    driver.settle()
    driver.auto = False
    driver.join("b", topics=())
    driver.store(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    (correction,) = driver.stores
    assert [key for key, value in correction.rows if value is None] == [CurrentKey("g", "b"), MemberKey("g", "b")]


def test_a_target_that_was_computed_from_undone_changes_is_discarded() -> None:
    driver = stable("a")
    driver.auto = False
    waiter = driver.join("b")
    driver.store(ErrorCode.NOT_COORDINATOR)
    assert driver.answers[waiter].error is ErrorCode.NOT_COORDINATOR
    driver.join("c")
    assert [assign.members.keys() for assign in driver.assigns] == [{"a", "b"}], "one computation at a time"
    driver.finish_assign()
    assert driver.group.assignment_epoch == 2
    driver.store()
    driver.heartbeat("a", 2)
    assert [assign.members.keys() for assign in driver.assigns] == [{"a", "c"}]


def test_expressions_whose_topics_were_not_stored_are_resolved_again() -> None:
    driver = Driver()
    driver.joined("a", regex="o.*")
    driver.resolve({"o.*": ["orders"]})
    epoch = driver.beat("a", 1).member_epoch
    driver.grow("others", 1)
    driver.pass_ms(10_001)
    driver.auto = False
    driver.heartbeat("a", epoch)
    driver.resolve({"o.*": ["orders", "others"]})
    driver.store(ErrorCode.NOT_COORDINATOR)
    driver.auto = True
    driver.settle()
    driver.beat("a", epoch)
    assert driver.resolves


def test_undoing_a_removal_restores_the_session() -> None:
    driver = stable("a", "b")
    driver.auto = False
    driver.heartbeat("a", -1)
    driver.store(ErrorCode.NOT_COORDINATOR)
    driver.auto = True
    driver.pass_ms(SESSION_MS)
    assert driver.group.state is ConsumerGroupState.EMPTY


def test_what_a_parked_heartbeat_reports_does_not_count_after_a_later_one() -> None:
    driver = stable("a", "b")
    driver.grow("orders", 5)
    driver.auto = False
    driver.join("a")  # after a restart: it owns nothing
    driver.store()
    (waiter,) = driver.group._progress.parked
    again = driver.join("a")  # its client has given up waiting
    assert flat(driver.answers[again].assignment) == {("orders", 0), ("orders", 1)}
    assert waiter.waiter not in driver.answers
    driver.assign = lambda members, topics: {"a": {}, "b": {topic: frozenset(range(5)) for topic in topics}}
    driver.finish_assign()
    driver.auto = True
    driver.settle()
    assert flat(driver.beat("b", 3).assignment) == {("orders", 2), ("orders", 3), ("orders", 4)}


def test_closing_answers_all_that_waits() -> None:
    driver = Driver(auto=False)
    parked = driver.join("a")
    waiting = driver.join("b")
    driver.group.close(ErrorCode.NOT_COORDINATOR, driver.now)
    driver.take()
    assert driver.answers[parked].error is driver.answers[waiting].error is ErrorCode.NOT_COORDINATOR
    assert driver.group.state is ConsumerGroupState.DEAD
    assert driver.beat("a", 0).error is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_disconnected_client_is_not_answered() -> None:
    driver = Driver(auto=False)
    parked, waiting = driver.join("a"), driver.join("b")
    for waiter in (parked, waiting):
        driver.group.forget_waiter(waiter, driver.now)
    driver.finish_assign()
    while driver.stores:
        driver.store()
    assert not driver.answers
    assert list(driver.group.members) == ["a", "b"]

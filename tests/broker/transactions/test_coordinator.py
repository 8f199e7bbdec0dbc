"""All transactional ids together: loading, unloading, lists, steps."""

from tests.broker.transactions.driver import ABORT, ID_EXPIRATION_MS, ORDERS, TIMEOUT_MS, Driver
from warmlog.broker.transactions.coordinator import EFFECTS_A_STEP, IDS_A_STEP
from warmlog.broker.transactions.effects import Answer, Producer
from warmlog.broker.transactions.metadata import State
from warmlog.broker.transactions.shard import FREED_PER_STEP
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.transaction_records import StoredTransaction


def stored(producer_id: int, state: State = State.EMPTY, **fields: object) -> StoredTransaction:
    given = {"producer_epoch": 0, "timeout_ms": TIMEOUT_MS, "updated_ms": 0, **fields}
    return StoredTransaction(producer_id=producer_id, state=state, **given)  # type: ignore[arg-type]


def test_while_records_are_read_every_request_is_to_be_tried_again() -> None:
    driver = Driver()
    producer = driver.producer()
    driver.begin_loading()
    for waiter in (driver.init(), driver.add(producer), driver.end(producer)):
        assert driver.error(waiter) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert driver.verify(producer, ORDERS) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    assert driver.coordinator.describe("id") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert driver.coordinator.is_loading


def test_an_id_of_another_coordinator_is_refused() -> None:
    driver = Driver()
    producer = driver.producer()
    driver.unload()
    assert driver.error(driver.init()) is ErrorCode.NOT_COORDINATOR
    assert driver.error(driver.add(producer)) is ErrorCode.NOT_COORDINATOR
    assert driver.verify(producer, ORDERS) == [ErrorCode.NOT_COORDINATOR]


def test_whoever_waits_is_told_when_the_partition_goes() -> None:
    driver = Driver()
    driver.appends_at_once = False
    waiter = driver.init()
    (append,) = driver.appends
    driver.unload()
    driver.pump()
    assert driver.error(waiter) is ErrorCode.NOT_COORDINATOR
    driver.coordinator.appended(append, ErrorCode.NONE, driver.now_ms)
    driver.pump()
    assert driver.coordinator.describe("id") is ErrorCode.NOT_COORDINATOR


def test_reports_about_a_former_load_are_ignored() -> None:
    driver = Driver()
    producer = driver.producer()
    driver.add(producer)
    driver.marks_at_once = False
    driver.end(producer)
    (old,) = driver.markers
    driver.markers = []
    driver.start()  # read again by the same coordinator, at the same leader epoch
    (new,) = driver.markers
    driver.coordinator.markers_written(old, {ORDERS: ErrorCode.NONE})
    driver.pump()
    assert driver.metadata().state is State.PREPARE_COMMIT
    driver.coordinator.markers_written(new, {ORDERS: ErrorCode.NONE})
    driver.pump()
    assert driver.metadata().state is State.COMPLETE_COMMIT


def test_thousands_of_ids_are_taken_in_steps() -> None:
    driver = Driver()
    count = 5 * IDS_A_STEP
    rows = [(f"id-{number}", stored(number)) for number in range(count)]
    assert len(list(driver.load(driver.begin_loading(), rows))) == 5
    assert sum(each is None for each in driver.coordinator.select(0)) == 5
    caused = [driver.coordinator.take_effects() for _ in driver.coordinator.expire(ID_EXPIRATION_MS)]
    assert [len(each) for each in caused] == [EFFECTS_A_STEP] * (count // EFFECTS_A_STEP)


def test_new_ids_are_refused_at_the_limit_until_some_expire() -> None:
    driver = Driver(max_ids=2)
    first = driver.producer(name="a")
    driver.producer(name="b")
    assert driver.error(driver.init(name="c")) is ErrorCode.POLICY_VIOLATION
    assert driver.producer(name="a") == Producer(first.id, first.epoch + 1)  # known ids go on
    driver.now_ms += ID_EXPIRATION_MS
    for _ in driver.coordinator.expire(driver.now_ms):
        driver.pump()
    driver.pump()
    assert driver.coordinator.id_count == 0
    driver.producer(name="c")


def test_a_transaction_gets_no_more_partitions_than_the_limit_and_stays_as_it_is() -> None:
    driver = Driver(max_partitions=3)
    producer = driver.producer()
    places = [("orders", index) for index in range(4)]
    assert driver.error(driver.add(producer, *places)) is ErrorCode.POLICY_VIOLATION
    assert driver.metadata().state is State.EMPTY
    assert driver.error(driver.add(producer, *places[:2])) is ErrorCode.NONE
    assert driver.error(driver.add(producer, *places[1:])) is ErrorCode.POLICY_VIOLATION
    assert driver.metadata().partitions == {*places[:2]}
    assert driver.error(driver.add(producer, places[2])) is ErrorCode.NONE


def test_all_transactions_together_have_a_limit_of_partitions() -> None:
    driver = Driver(max_partitions=3, max_partitions_in_all=4)
    first, second = driver.producer(name="a"), driver.producer(name="b")
    places = [("orders", index) for index in range(3)]
    assert driver.error(driver.add(first, *places, name="a")) is ErrorCode.NONE
    assert driver.error(driver.add(second, *places[:2], name="b")) is ErrorCode.POLICY_VIOLATION
    assert driver.error(driver.add(second, *places[:1], name="b")) is ErrorCode.NONE
    driver.end(first, ABORT, name="a")
    assert driver.error(driver.add(second, *places, name="b")) is ErrorCode.NONE
    driver.unload()
    driver.start({})
    third = driver.producer(name="c")
    assert driver.error(driver.add(third, *places, name="c")) is ErrorCode.NONE


def test_transactions_are_listed_by_producer_state_and_duration() -> None:
    driver = Driver()
    rows = {
        "empty": stored(1),
        "old": stored(2, State.ONGOING, started_ms=driver.now_ms - 1000),
        "young": stored(3, State.ONGOING, started_ms=driver.now_ms - 10),
    }
    driver.start(rows)

    def names(**filters: object) -> list[str]:
        found = driver.coordinator.select(driver.now_ms, **filters)  # type: ignore[arg-type]
        return [each[0] for each in found if each is not None]

    assert names() == ["empty", "old", "young"]
    assert names(producer_ids={1, 3}) == ["empty", "young"]
    assert names(states={State.ONGOING}) == ["old", "young"]
    assert names(states={State.ONGOING}, min_duration_ms=10) == ["old"]


def open_ids(driver: Driver) -> list[str]:
    return [name for shard in driver.shards.shards() for name in shard.open]


def test_whoever_waits_is_answered_when_a_log_partition_is_given_up_and_its_ids_are_freed_later() -> None:
    driver = Driver()
    producer = driver.producer(name="a")
    for number in range(FREED_PER_STEP):
        driver.producer(name=f"b{number}")
    driver.appends_at_once = False
    waiter = driver.add(producer, name="a")
    (shard,) = driver.shards.shards()
    driver.unload()
    assert driver.coordinator.take_effects() == [Answer(waiter, ErrorCode.NOT_COORDINATOR)]
    assert not shard.transactions
    assert len(list(shard.free())) == 2


def test_only_open_transactions_are_looked_at_for_timeouts() -> None:
    driver = Driver()
    first, second = driver.producer(name="a"), driver.producer(name="b")
    driver.add(first, name="a")
    driver.add(second, name="b")
    driver.end(second, ABORT, name="b")
    assert open_ids(driver) == ["a"]
    driver.pass_ms(TIMEOUT_MS + 1)
    assert open_ids(driver) == []
    driver.unload()
    assert open_ids(driver) == []


def test_ids_do_not_disturb_one_another() -> None:
    driver = Driver()
    driver.appends_at_once = False
    first, second = driver.init(name="a"), driver.init(name="b")
    driver.settle_appends()
    assert driver.given(first) != driver.given(second)


def test_an_id_that_no_record_can_hold_is_refused() -> None:
    driver = Driver()
    assert driver.error(driver.init(name="é" * 16_384)) is ErrorCode.INVALID_REQUEST
    assert driver.error(driver.init(name="")) is ErrorCode.INVALID_REQUEST
    assert driver.coordinator.id_count == 0
    driver.producer(name="é" * 16_383)

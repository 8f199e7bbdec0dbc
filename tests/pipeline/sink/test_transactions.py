"""Tasks and drivers of transactional writes without Spark: what is visible, and what is written again."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from tests.pipeline.sink.attempt import new_topic, options, values, wait_for_markers
from warmlog.client.blocking import Client
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.sink import transactions
from warmlog.pipeline.sink.options import WriteOptions, write_options
from warmlog.pipeline.sink.rows import Rows
from warmlog.pipeline.sink.task import open_broker, write_in_transaction
from warmlog.pipeline.sink.transactions import OpenTransaction, Write
from warmlog.protocol.transactions import TransactionState
from warmlog.testing import Broker

FIRST, SECOND = (b"a", b"b"), (b"c",)


class Query:
    """Micro-batches of two tasks, with the rows FIRST and SECOND."""

    def __init__(self, broker: Broker, client: Client, **given: object) -> None:
        self.topic = new_topic(client)
        self.options: WriteOptions = options(broker, self.topic, transactional=True, **given)
        self._client = client

    def task(self, number: int, task: int, rows: Sequence[bytes]) -> OpenTransaction | None:
        """Run an attempt at a task."""
        self.report, left = write_in_transaction(self.options, self.write(number), task, [values(*rows)])
        return left

    def write(self, number: int) -> Write:
        return Write(name=self.topic, number=number)

    def tasks(self, number: int) -> list[OpenTransaction]:
        """Run an attempt at both tasks."""
        left = [self.task(number, 0, FIRST), self.task(number, 1, SECOND)]
        return [transaction for transaction in left if transaction is not None]

    def commit(self, left: Sequence[OpenTransaction]) -> None:
        with open_broker(self.options) as broker:
            transactions.commit(broker, left)

    def abort(self, number: int) -> None:
        with open_broker(self.options) as broker:
            transactions.abort(broker, self.write(number))

    def visible(self) -> list[bytes | None]:
        """Return what readers of committed records see, up to the end of the log."""
        wait_for_markers(self._client)
        records = self._client.consume(self.topic, until_end=True, isolation="read_committed")
        return sorted(record.value or b"" for record in records)


@pytest.fixture
def query(broker: Broker, client: Client) -> Query:
    return Query(broker, client)


def test_rows_are_visible_once_the_driver_has_committed(query: Query) -> None:
    left = query.tasks(0)
    assert query.visible() == []
    query.commit(left)
    assert query.visible() == [b"a", b"b", b"c"]
    query.commit(left)  # again, since its reply was lost
    assert query.visible() == [b"a", b"b", b"c"]


def test_an_attempt_that_died_leaves_nothing(query: Query) -> None:
    def rows() -> Iterator[Rows]:
        yield values(b"a")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_in_transaction(query.options, query.write(0), 0, rows())
    query.commit(query.tasks(0))
    assert query.visible() == [b"a", b"b", b"c"]


def test_a_write_that_was_not_decided_is_written_again(query: Query) -> None:
    query.tasks(0)
    query.commit(query.tasks(0))
    assert query.visible() == [b"a", b"b", b"c"]
    left = query.tasks(1)
    query.abort(1)
    assert query.visible() == [b"a", b"b", b"c"]
    with pytest.raises(PipelineError, match="another attempt"):
        query.commit(left)


def test_tasks_that_outlive_their_job_write_nothing(query: Query, client: Client) -> None:
    """Spark tells a task to stop and does not wait: one has begun by then, one begins later."""
    run = Write(name=query.topic, number=0, run="first")

    def rows(task: int) -> Iterator[Rows]:
        if task == 0:
            with open_broker(query.options) as broker:
                transactions.abort(broker, run)
        yield values(b"a")

    for task in (0, 1):
        with pytest.raises(PipelineError, match=("another attempt", "the job has failed already")[task]):
            write_in_transaction(query.options, run, task, rows(task))
    assert not client.list_transactions(states=[TransactionState.ONGOING.label])
    left = [write_in_transaction(query.options, replace(run, run="again"), 0, [values(b"a")])[1]]
    query.commit([transaction for transaction in left if transaction is not None])
    assert query.visible() == [b"a"]


def test_a_decided_write_is_committed_and_not_written_again(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver dies after one of two commits."""
    ended, end = [], transactions.end

    def end_one(*arguments: object, **keywords: object) -> None:
        if ended:
            raise KeyboardInterrupt
        ended.append(end(*arguments, **keywords))  # type: ignore[arg-type,func-returns-value]

    left = query.tasks(0)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(transactions, "end", end_one)
        query.commit(left)
    query.abort(0)  # what a driver does whose commit has failed
    again = query.tasks(0)
    assert query.report.stored_before == 1
    assert [transaction.transactional_id for transaction in again] == [query.write(0).transactional_id(1)]
    query.commit(again)
    assert query.visible() == [b"a", b"b", b"c"]
    assert query.tasks(0) == []
    query.commit(query.tasks(1))
    assert query.visible() == [b"a", b"a", b"b", b"b", b"c", b"c"]


def test_of_a_decided_write_what_was_aborted_or_not_complete_is_written_again(query: Query, client: Client) -> None:
    left = query.tasks(0)
    client.abort_transaction(left[1].transactional_id)  # as by a timeout
    with pytest.raises(PipelineError, match="open for longer than transactionTimeoutMs, or another attempt"):
        query.commit(left)
    with open_broker(query.options) as broker:  # an attempt that dies before it is complete
        transactions.TaskTransaction(broker, query.write(0), 1, 60_000).begin()
    again = query.tasks(0)
    assert len(again) == 1
    query.commit(again)
    assert query.visible() == [b"a", b"b", b"c"]


def test_an_attempt_fences_the_one_before(query: Query) -> None:
    first = query.task(0, 0, FIRST)
    assert first is not None
    second = query.task(0, 0, FIRST)
    assert second is not None
    with pytest.raises(PipelineError, match="another attempt at the task has begun"):
        query.commit([first])
    query.commit([second])
    assert query.visible() == [b"a", b"b"]


def test_an_earlier_write_is_refused_after_a_later_one(query: Query) -> None:
    query.commit(query.tasks(3))
    with pytest.raises(PipelineError, match="write 3 has been committed already, after 2"):
        query.tasks(2)


def test_a_write_without_rows_has_no_transaction(query: Query) -> None:
    assert query.task(0, 0, ()) is None


def test_a_write_that_is_not_repeated_leaves_no_groups(query: Query, client: Client) -> None:
    write = Write(name=f"once {query.topic}", number=0, is_repeatable=False)
    _, left = write_in_transaction(query.options, write, 0, [values(b"a")])
    assert left is not None
    query.commit([left])
    assert query.visible() == [b"a"]
    assert not [group for group in client.list_groups() if query.topic in group.group]


def test_tasks_may_write_more_than_a_request_holds(broker: Broker, client: Client) -> None:
    query = Query(broker, client, batch_bytes=500, buffer_bytes=4000)
    rows = [b"%05d" % number for number in range(2000)]
    left = query.task(0, 0, rows)
    assert left is not None
    query.commit([left])
    assert query.visible() == rows


def test_a_timeout_that_the_broker_does_not_accept_is_named(broker: Broker, client: Client) -> None:
    query = Query(broker, client, transaction_timeout_ms=900_001)
    with pytest.raises(PipelineError, match=r"option transactionTimeoutMs: the broker accepts less than 900001 ms"):
        query.task(0, 0, FIRST)


def test_options_that_contradict_each_other() -> None:
    with pytest.raises(PipelineError, match="option transactionTimeoutMs needs transactional=true"):
        write_options({"bootstrap": "localhost:9091", "transactionTimeoutMs": "1000"})


def test_the_broker_may_restart_in_between() -> None:
    with Broker() as other, Client(other.native) as connected:
        query = Query(other, connected)
        left = query.tasks(0)
        other.restart()
        query.commit(left)
        assert query.visible() == [b"a", b"b", b"c"]
        assert {listed.state for listed in connected.list_transactions()} == {TransactionState.COMPLETE_COMMIT.label}

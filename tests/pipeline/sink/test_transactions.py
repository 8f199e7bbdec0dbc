"""Tasks and drivers of transactional writes without Spark: what is visible, and what is written again."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.pipeline.sink.attempt import PARTITIONS, new_topic, options, values, wait_for_markers
from warmlog.client.blocking import Client
from warmlog.pipeline.cluster import ClusterConnection
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.sink import decisions, transactions
from warmlog.pipeline.sink.attempts import Identity
from warmlog.pipeline.sink.notes import Note, write_note
from warmlog.pipeline.sink.options import WriteOptions, write_options
from warmlog.pipeline.sink.rows import Rows
from warmlog.pipeline.sink.task import open_cluster, write_in_transaction
from warmlog.pipeline.sink.transactions import CompleteTask, Write
from warmlog.protocol.transactions import TransactionState
from warmlog.testing import Broker

FIRST, SECOND = (b"a", b"b"), (b"c",)


class Query:
    """Micro-batches of two tasks, with the rows FIRST and SECOND."""

    def __init__(self, broker: Broker, client: Client, **given: object) -> None:
        self.topic = new_topic(client)
        self.options: WriteOptions = options(broker, self.topic, transactional=True, **given)
        self._client = client

    def task(self, number: int, task: int, rows: Sequence[bytes]) -> CompleteTask:
        """Run an attempt at a task."""
        self.report, complete = write_in_transaction(self.options, self.write(number), task, [values(*rows)])
        return complete

    def write(self, number: int) -> Write:
        return Write(name=self.topic, number=number)

    def tasks(self, number: int, *shares: Sequence[bytes]) -> list[CompleteTask]:
        """Run an attempt at each task; `shares`: their rows, by default those of two tasks."""
        return [self.task(number, task, rows) for task, rows in enumerate(shares or (FIRST, SECOND))]

    def commit(self, tasks: Sequence[CompleteTask]) -> None:
        with open_cluster(self.options) as cluster:
            transactions.commit(cluster, tasks, self.options.transaction_timeout_ms)

    def commit_and_die(self, tasks: Sequence[CompleteTask], after: int) -> bool:
        """Commit as a driver that is killed after some of the transactions; False if there are no more than these."""
        end, left = transactions.end, iter(range(after))

        def end_some(*arguments: object, **keywords: object) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt
            end(*arguments, **keywords)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(transactions, "end", end_some)
            try:
                self.commit(tasks)
            except KeyboardInterrupt:
                return True
        return False

    def abort(self, number: int) -> None:
        with open_cluster(self.options) as cluster:
            transactions.abort(cluster, self.write(number))

    def open_transactions(self) -> list[str]:
        pattern = f"warmlog-sink-{self.topic}-.*"
        listed = self._client.list_transactions(states=[TransactionState.ONGOING.label], pattern=pattern)
        return [each.transactional_id for each in listed]

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
    query.commit(left)  # again, whatever for
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
            with open_cluster(query.options) as cluster:
                transactions.abort(cluster, run)
        yield values(b"a")

    for task in (0, 1):
        with pytest.raises(PipelineError, match=("another attempt", "the job has failed already")[task]):
            write_in_transaction(query.options, run, task, rows(task))
    assert not query.open_transactions()
    query.commit([write_in_transaction(query.options, replace(run, run="again"), 0, [values(b"a")])[1]])
    assert query.visible() == [b"a"]


def test_a_decided_write_is_committed_and_not_written_again(query: Query) -> None:
    """The driver dies after one of two commits."""
    assert query.commit_and_die(query.tasks(0), after=1)
    query.abort(0)  # what a driver does whose commit has failed
    again = query.tasks(0)
    assert query.report.stored_before == 1
    assert [task.transaction for task in again] == [None, None]
    query.commit(again)
    assert query.visible() == [b"a", b"b", b"c"]
    query.commit(query.tasks(0))
    assert query.visible() == [b"a", b"b", b"c"]


ROWS = [b"%02d" % number for number in range(24)]


def divided(tasks: int) -> list[list[bytes]]:
    return [ROWS[task::tasks] for task in range(tasks)]


@pytest.mark.parametrize("ended", [0, 1, 2])
@pytest.mark.parametrize(("before", "after"), [(6, 2), (2, 6), (6, 1), (1, 6)])
def test_a_decided_write_may_be_repeated_with_another_number_of_tasks(
    query: Query, client: Client, before: int, after: int, ended: int
) -> None:
    if ended >= before:
        return
    assert query.commit_and_die(query.tasks(0, *divided(before)), after=ended)
    query.commit(query.tasks(0, *divided(after)))
    assert query.visible() == ROWS
    query.commit(query.tasks(1, *divided(before)))
    assert query.visible() == sorted(ROWS * 2)
    assert not query.open_transactions()


def test_a_decision_may_name_more_transactions_than_one_offset_holds(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "METADATA_BYTES", 10)
    assert query.commit_and_die(query.tasks(0, *divided(8)), after=3)
    query.commit(query.tasks(0, *divided(3)))
    assert query.visible() == ROWS


def test_a_write_that_was_not_decided_may_be_repeated_with_fewer_tasks(query: Query, client: Client) -> None:
    """Transactions that earlier tasks have left open would keep readers of committed records waiting."""
    query.tasks(0, *divided(6))
    query.commit(query.tasks(0, *divided(2)))
    assert query.visible() == ROWS
    assert not query.open_transactions()


def test_tasks_without_rows_are_part_of_a_decision(query: Query) -> None:
    assert query.commit_and_die(query.tasks(0, (), FIRST, (), SECOND), after=1)
    query.commit(query.tasks(0, FIRST, SECOND))
    assert query.visible() == [b"a", b"b", b"c"]


def test_a_write_with_an_aborted_transaction_is_not_decided(query: Query, client: Client) -> None:
    complete = query.tasks(0)
    client.abort_transaction(query.write(0).transactional_id(1))  # as by a timeout
    with pytest.raises(PipelineError, match="open for longer than transactionTimeoutMs, or another attempt"):
        query.commit(complete)
    assert query.visible() == []
    query.commit(query.tasks(0))
    assert query.visible() == [b"a", b"b", b"c"]


def test_rows_of_a_decided_write_that_were_aborted_are_taken_from_the_log(query: Query, client: Client) -> None:
    """They were open for too long while the query was away; readers had seen those of task 0."""
    assert query.commit_and_die(query.tasks(0), after=1)
    client.produce(query.topic, value=b"of others")
    client.abort_transaction(query.write(0).transactional_id(1))
    query.commit(query.tasks(0, [*FIRST, *SECOND]))
    assert query.visible() == [b"a", b"b", b"c", b"of others"]
    query.commit(query.tasks(0, FIRST))
    query.commit(query.tasks(1, SECOND))
    assert query.visible() == [b"a", b"b", b"c", b"c", b"of others"]


@pytest.mark.parametrize("at", ["before", "after"])
def test_a_driver_that_dies_while_it_takes_rows_from_the_log_takes_them_once(
    query: Query, client: Client, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    rows = [b"%03d" % number for number in range(300)]
    assert query.commit_and_die(query.tasks(0, *[rows[task::3] for task in range(3)]), after=1)
    for task in (1, 2):
        client.abort_transaction(query.write(0).transactional_id(task))
    end = transactions.end

    def die(cluster: ClusterConnection, identity: Identity, *, commits: bool) -> None:
        if at == "after" and commits:
            end(cluster, identity, commits=commits)
        raise KeyboardInterrupt

    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr(transactions, "end", die)
            with suppress(KeyboardInterrupt):
                query.commit(query.tasks(0, rows))
    query.commit(query.tasks(0, rows))
    assert query.visible() == rows


def test_rows_that_are_gone_from_the_log_are_an_error(query: Query, client: Client, broker: Broker) -> None:
    assert query.commit_and_die(query.tasks(0), after=1)
    client.abort_transaction(query.write(0).transactional_id(1))
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    for done in admin.delete_records([TopicPartition(query.topic, at, -1) for at in range(PARTITIONS)]).values():
        done.result()
    for _ in range(2):
        with pytest.raises(PipelineError, match=r"of their 1 rows the log has only 0. Delete the group warmlog-sink-"):
            query.commit(query.tasks(0))
    client.delete_group(query.write(0).group)
    query.commit(query.tasks(0))
    assert query.visible() == [b"a", b"b", b"c"]


def test_what_an_earlier_version_has_decided_is_finished_if_nothing_is_open(query: Query) -> None:
    """Version 0.2 did not say how many tasks a decision names."""

    def decide(number: int) -> None:
        with open_cluster(query.options) as cluster:
            write_note(cluster, query.write(number).group, Note(number=number, topic_partition=(query.topic, 0)))

    query.commit(query.tasks(0, FIRST))
    decide(0)
    query.commit(query.tasks(0, FIRST))
    assert query.visible() == [b"a", b"b"]
    query.tasks(1, FIRST)
    decide(1)
    with pytest.raises(PipelineError, match="decided by an earlier version"):
        query.commit(query.tasks(1, FIRST))


def test_an_attempt_fences_the_one_before(query: Query) -> None:
    first = query.task(0, 0, FIRST)
    second = query.task(0, 0, FIRST)
    with pytest.raises(PipelineError, match="another attempt at the task has begun"):
        query.commit([first])
    query.commit([second])
    assert query.visible() == [b"a", b"b"]


def test_an_earlier_write_is_refused_after_a_later_one(query: Query) -> None:
    query.commit(query.tasks(3))
    with pytest.raises(PipelineError, match="write 3 has been committed already, after 2"):
        query.tasks(2)


def test_a_write_without_rows_has_no_transaction(query: Query) -> None:
    task = query.task(0, 0, ())
    assert task.transaction is None
    query.commit([task])


def test_a_write_that_is_not_repeated_leaves_no_groups(query: Query, client: Client) -> None:
    write = Write(name=f"once {query.topic}", number=0, is_repeatable=False)
    query.commit([write_in_transaction(query.options, write, 0, [values(b"a")])[1]])
    assert query.visible() == [b"a"]
    assert not [group for group in client.list_groups() if query.topic in group.group]


def test_tasks_may_write_more_than_a_request_holds(broker: Broker, client: Client) -> None:
    query = Query(broker, client, batch_bytes=500, buffer_bytes=4000)
    rows = [b"%05d" % number for number in range(2000)]
    query.commit([query.task(0, 0, rows)])
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

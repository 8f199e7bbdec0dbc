"""The pipeline in a cluster of real processes: leaders and coordinators are killed while it reads and writes."""

import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.pipeline.lakehouse.tables import copied
from tests.pipeline.sink.attempt import Task, some_identity, values, wait_for_markers
from tests.pipeline.source.test_wire import Collector
from tests.warmlog.cli.nodes.running import Running, nodes
from warmlog.client.blocking import Client
from warmlog.client.errors import ConnectError
from warmlog.pipeline.brokers import Brokers
from warmlog.pipeline.lakehouse.target import open_table
from warmlog.pipeline.sink import transactions
from warmlog.pipeline.sink.options import WriteOptions
from warmlog.pipeline.sink.task import open_cluster, write_in_transaction
from warmlog.pipeline.sink.transactions import Write
from warmlog.pipeline.source.input import plan_batch, read_batches, size_of
from warmlog.pipeline.source.options import read_options
from warmlog.pipeline.source.ranges import Bounds
from warmlog.pipeline.source.reading import ReadRules
from warmlog.pipeline.source.remote import commit_offsets

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
PARTITIONS = 6
NODES = 3
RECORDS = 1200
VALUES = [b"%05d" % at for at in range(RECORDS)]
SETTINGS = ("default.replication.factor=3", "offsets.topic.num.partitions=6", "transaction.state.log.num.partitions=6")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    given = [word for setting in SETTINGS for word in ("--set", setting)]
    with nodes(tmp_path_factory.mktemp("cluster") / "data", NODES, *given) as running:
        yield running
        assert running.stop() == 0


@pytest.fixture
def client(cluster: Running) -> Iterator[Client]:
    while True:
        with suppress(ConnectError):  # nodes that the last test has killed may be starting
            with Client(cluster.native) as connected:
                wait_for_nodes(connected)
                yield connected
            return


def wait_for_nodes(client: Client) -> None:
    while len(client.metadata([]).brokers) < NODES:
        pass


def new_topic(client: Client, name: str, content: Sequence[bytes] = ()) -> str:
    client.create_topic(name, partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        client.produce_many(name, [(None, value) for value in content[partition::PARTITIONS]], partition=partition)
    return name


def kill_leader(cluster: Running, client: Client, topic: str, partition: int) -> None:
    """Kill the process of a partition's leader; `serve --nodes` starts it again."""
    (described,) = client.metadata([topic]).topics
    leader = next(each.leader for each in described.partitions if each.partition == partition)
    with suppress(StopIteration):  # it is down already, or there is none
        os.kill(cluster.node(leader), signal.SIGKILL)


def consumed(client: Client, topic: str) -> Counter[bytes | None]:
    wait_for_markers(client)
    return Counter(record.value for record in client.consume(topic, until_end=True, isolation="read_committed"))


def test_leaders_are_killed_while_their_partitions_are_read(cluster: Running, client: Client) -> None:
    topic = new_topic(client, "read", [value * 2000 for value in VALUES])
    options = read_options({"bootstrap": cluster.native[0], "topic": topic})
    assert size_of(options) > RECORDS * 10_000
    splits = plan_batch(options, Bounds()).splits
    assert len(splits) == PARTITIONS
    for split in splits:
        collector = Collector()
        steps, _ = read_batches(split, ReadRules(), collector.take)
        next(steps)
        if split.partition % 2:
            kill_leader(cluster, client, topic, split.partition)
        for _ in steps:
            pass
        assert collector.offsets == list(range(RECORDS // PARTITIONS))


def test_leaders_are_killed_while_their_partitions_are_written(cluster: Running, client: Client) -> None:
    topic = new_topic(client, "written")
    options = WriteOptions(brokers=Brokers(addresses=cluster.native[1]), topic=topic, batch_bytes=2000)
    identity = some_identity()
    for attempt in range(2):  # the second one finds all of the first one's records, wherever they are
        task = Task(options, identity)
        for at in range(0, RECORDS, 200):
            task.add(values(*VALUES[at : at + 200]))
            if at % 400 == 0:
                kill_leader(cluster, client, topic, at // 400)
        report = task.finish()
        assert (report.rows, report.stored_before) == ((RECORDS, 0) if attempt == 0 else (0, RECORDS))
    assert consumed(client, topic) == Counter(VALUES)


@pytest.mark.parametrize("after", [2, 7])
def test_coordinators_are_killed_while_a_transactional_write_is_committed(
    cluster: Running, client: Client, after: int
) -> None:
    """It has five tasks, and `after` when it is repeated."""
    topic = new_topic(client, f"transactional{after}")
    options = WriteOptions(brokers=Brokers(addresses=",".join(cluster.native)), topic=topic, transactional=True)
    write = Write(name=topic, number=3)

    def tasks(count: int) -> list[transactions.CompleteTask]:
        return [write_in_transaction(options, write, task, [values(*VALUES[task::count])])[1] for task in range(count)]

    complete, end, left = tasks(5), transactions.end, iter(range(3))

    def end_some(*arguments: object, **keywords: object) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        end(*arguments, **keywords)  # type: ignore[arg-type]
        kill_leader(cluster, client, "__transaction_state", 0)

    with pytest.MonkeyPatch.context() as patched, open_cluster(options) as connection:
        patched.setattr(transactions, "end", end_some)
        with pytest.raises(KeyboardInterrupt):
            transactions.commit(connection, complete, options.transaction_timeout_ms)
    repeated = tasks(after)
    with open_cluster(options) as connection:
        transactions.commit(connection, repeated, options.transaction_timeout_ms)
    assert consumed(client, topic) == Counter(VALUES)


def test_groups_are_committed_wherever_their_coordinators_are(cluster: Running, client: Client) -> None:
    topic = new_topic(client, "groups", VALUES)
    for name in "abcdef":
        commit_offsets(Brokers(addresses=cluster.native[2]), f"progress-{name}", {(topic, 3): 7})
        (described,) = client.describe_groups(f"progress-{name}")
        assert [(one.partition, one.offset) for one in described.positions] == [(3, 7)]


def test_a_table_over_the_wire_has_each_record_once(cluster: Running, client: Client, tmp_path: Path) -> None:
    topic = new_topic(client, "copied", VALUES)
    options = read_options({"bootstrap": cluster.native[0], "topic": topic, "group": "lake"})
    table = open_table(str(tmp_path / "lake"), options.columns)
    table.create()
    assert sum(receipt.rows for receipt in copied(table, options)) == RECORDS
    (described,) = client.describe_groups("lake")
    assert {one.offset for one in described.positions} == {RECORDS // PARTITIONS}

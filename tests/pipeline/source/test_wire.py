"""Over the wire, with a real broker: batches, streams, the group's offsets, a broker that goes and comes back."""

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.pipeline.conftest import SPARK_TIMEOUT_S, plain
from warmlog.client.blocking import Client
from warmlog.client.connection.cluster import Cluster
from warmlog.pipeline.brokers import Brokers
from warmlog.pipeline.cluster import ClusterConnection
from warmlog.pipeline.errors import DataLossError, PipelineError
from warmlog.pipeline.offsets import Offsets
from warmlog.pipeline.retry import Retry
from warmlog.pipeline.source.input import plan_batch, read_batches
from warmlog.pipeline.source.options import ReadOptions, read_options
from warmlog.pipeline.source.plan import RemoteSplit
from warmlog.pipeline.source.ranges import Bounds, limited
from warmlog.pipeline.source.reading import ReadRules
from warmlog.pipeline.source.remote_reader import RemoteReader, connect
from warmlog.pipeline.source.stream import StreamReader
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.records.arrow.columns import Wanted
from warmlog.protocol.records.batch import BatchHeader
from warmlog.protocol.records.reader import decode_batch
from warmlog.protocol.request import LATEST_TIMESTAMP
from warmlog.protocol.response import ListOffsetsResponse
from warmlog.testing import Broker


def produced(client: Client, topic: str, count: int, partitions: int = 2) -> None:
    """Records 0 to `count` in turn over the partitions."""
    client.create_topic(topic, partitions=partitions, if_not_exists=True)
    for partition in range(partitions):
        values = [(None, b"%d" % at) for at in range(partition, count, partitions)]
        client.produce_many(topic, values, partition=partition)


def asked(broker: Broker, topic: str, **options: Any) -> ReadOptions:
    given = {"bootstrap": broker.native, "topic": topic, **options}
    return read_options({name: str(value) for name, value in given.items()})


def plan(options: ReadOptions, bounds: Bounds) -> list[Any]:
    return plan_batch(options, bounds).splits


def delete_records(broker: Broker, topic: str, before: int) -> None:
    """Delete the records of partition 0 before an offset."""
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    for done in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        done.result()


def ranges(partitions: list[Any]) -> list[tuple[int, int, int]]:
    """Partition, first offset and end of the splits that Spark is to read."""
    splits = [split for partition in partitions for split in partition.splits]
    return [(split.partition, split.first_offset, split.end_offset) for split in splits]


class Collector:
    """Keeps the offsets of what a reader hands over."""

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def take(self, buffer: memoryview, position: int, header: BatchHeader, wanted: Wanted) -> None:
        offsets = [record.offset for record in decode_batch(buffer, position, header)]
        self.offsets += [offset for offset in offsets if wanted.first_offset <= offset <= wanted.last_offset]


def offsets_of(split: RemoteSplit, **rules: Any) -> list[int]:
    collector = Collector()
    for _ in read_batches(split, ReadRules(**rules), collector.take)[0]:
        pass
    return collector.offsets


def test_splits_by_offsets_are_disjoint_and_together_everything(broker: Broker, client: Client) -> None:
    produced(client, "split", 2000)
    splits = plan(asked(broker, "split", minPartitions=7), Bounds())
    assert 6 <= len(splits) <= 8
    for partition in range(2):
        found = [offset for split in splits if split.partition == partition for offset in offsets_of(split)]
        assert found == list(range(1000))


def test_offsets_and_times_are_asked_of_the_broker(broker: Broker, client: Client) -> None:
    client.create_topic("times", partitions=1)
    for at in range(10):
        client.produce("times", value=b"%d" % at, timestamp=1000 + at)

    def found(**options: Any) -> list[int]:
        return [offset for split in plan(asked(broker, "times", **options), Bounds()) for offset in offsets_of(split)]

    assert found(startingTimestamp=1004, endingTimestamp=1007) == [4, 5, 6]
    assert found(startingOffsets=json.dumps({"times": {"0": 8}})) == [8, 9]
    with pytest.raises(PipelineError, match="times-0 has no record at or past 2000 ms"):
        found(startingTimestamp=2000)
    with pytest.raises(DataLossError, match="offset 11 does not exist: the log ends at 10"):
        found(startingOffsets=json.dumps({"times": {"0": 11}}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "nowhere"}, "topic nowhere"),
        ({"readUpTo": "flushed"}, "option readUpTo needs path"),
        ({"bootstrap": "localhost:none"}, "option bootstrap"),
        ({"bootstrap": "127.0.0.1:1"}, "cannot connect to 127.0.0.1:1"),
    ],
)
def test_what_is_wrong_is_said_clearly(broker: Broker, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        plan(asked(broker, **{"topic": "split", **options}), Bounds())


def test_another_listener_is_no_native_one(broker: Broker) -> None:
    with pytest.raises(PipelineError, match=f"no warmlog broker at {broker.http}: .*; is it the native listener"):
        plan(asked(broker, "split", bootstrap=broker.http), Bounds())


def test_a_broker_that_comes_back_is_read_on_from(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        with Client(broker.native) as client:
            client.create_topic("orders", partitions=1)
            for _ in range(20):  # so many replies
                client.produce_many("orders", [bytes(100_000)] * 10)
        split = RemoteSplit(
            brokers=Brokers(addresses=broker.native), topic="orders", partition=0, first_offset=0, end_offset=200
        )
        collector = Collector()
        steps, _ = read_batches(split, ReadRules(), collector.take)
        next(steps)
        broker.restart()
        for _ in steps:
            pass
    assert collector.offsets == list(range(200))


def test_a_broker_that_stays_away_is_given_up(broker: Broker) -> None:
    times = iter(range(0, 10_000, 20))
    split = RemoteSplit(brokers=Brokers(addresses="127.0.0.1:1"), topic="t", partition=0, first_offset=0, end_offset=1)
    with (
        connect(split, Retry(clock=lambda: next(times), sleep=lambda _: None)) as cluster,
        pytest.raises(PipelineError, match="cannot connect"),
    ):
        list(RemoteReader(split, ReadRules(), Collector().take, cluster=cluster).run())


def test_records_that_went_before_they_were_read() -> None:
    settings = {"log.retention.check.interval.ms": 50, "log.initial.task.delay.ms": 0, "log.segment.delete.delay.ms": 0}
    with Broker(settings=settings) as broker, Client(broker.native) as client:
        client.create_topic("gone", partitions=1, configs={"segment.bytes": "16384", "retention.bytes": "1"})
        for _ in range(10):
            client.produce_many("gone", [bytes(1000)] * 10)
        while len(list((broker.data_dir / "gone-0").glob("*.log"))) > 1:
            pass  # retention leaves the active segment, and then no offset goes any more
        first = client.offsets("gone", "beginning")[0]
        split = RemoteSplit(
            brokers=Brokers(addresses=broker.native), topic="gone", partition=0, first_offset=0, end_offset=100
        )
        with pytest.raises(DataLossError, match=r"gone-0: offsets 0 to \d+ were deleted before they were read"):
            offsets_of(split)
        found = offsets_of(split, fail_on_data_loss=False)
        assert found == list(range(found[0], 100))
        assert found[0] >= first
        assert found[0] == first  # although the batch with that record may begin before it
        nobody = RemoteSplit(
            brokers=Brokers(addresses=broker.native), topic="gone", partition=7, first_offset=0, end_offset=3
        )
        with pytest.raises(PipelineError, match="no partition gone-7"):
            offsets_of(nobody)


def test_records_of_a_batch_that_were_deleted_are_not_delivered(broker: Broker, client: Client) -> None:
    """They are counted as lost."""
    produced(client, "trimmed", 100, partitions=1)
    (split,) = plan(asked(broker, "trimmed"), Bounds())
    delete_records(broker, "trimmed", before=30)
    collector = Collector()
    steps, tally = read_batches(split, ReadRules(fail_on_data_loss=False), collector.take)
    for _ in steps:
        pass
    assert (collector.offsets, tally.lost_offsets) == (list(range(30, 100)), 30)


@given(
    data=st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=5),
    most=st.none() | st.integers(1, 100),
)
def test_a_micro_batch_takes_no_more_than_it_may_and_something_if_there_is_any(
    data: dict[int, tuple[int, int]], most: int | None
) -> None:
    start = {("t", partition): first for partition, (first, _) in data.items()}
    ends = {("t", partition): first + more for partition, (first, more) in data.items()}
    until = limited(start, ends, most)
    taken = {place: until[place] - start[place] for place in start}
    assert all(0 <= taken[place] <= ends[place] - start[place] for place in start)
    total = sum(more for _, more in data.values())
    assert sum(taken.values()) == (total if most is None else min(total, most))
    if most is not None and most >= len(data):  # none waits for the others
        assert all(taken[place] for place in start if ends[place] > start[place])


@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=6), most=st.integers(1, 6), hot=st.integers(0, 20))
def test_no_partition_waits_for_ever_beside_one_that_grows(counts: list[int], most: int, hot: int) -> None:
    start = {("t", partition): 0 for partition in range(len(counts) + 1)}
    ends = {("t", partition): count for partition, count in enumerate((*counts, 1000))}
    small = list(ends)[:-1]
    for _ in range(10 * (sum(counts) + len(counts))):
        start = limited(start, ends, most)
        ends["t", len(counts)] += hot
    assert [start[place] for place in small] == [ends[place] for place in small]


@pytest.mark.parametrize("says_start", [True, False])
def test_a_querys_first_micro_batch_has_the_same_records_in_every_run(
    broker: Broker, client: Client, says_start: bool
) -> None:
    """Spark asks for the start again after a restart. Before 4.2 it asks for the end first, and passes no start."""
    topic = f"first-{says_start}"
    produced(client, topic, 40)

    def run(**given: Any) -> tuple[StreamReader, Any, Any]:
        reader = StreamReader(asked(broker, topic, maxOffsetsPerTrigger=20, **given))
        end = None if says_start else json.loads(json.dumps(reader.latestOffset()))
        begin = json.loads(json.dumps(reader.initialOffset()))
        return reader, begin, end or json.loads(json.dumps(reader.latestOffset(begin)))

    reader, begin, end = run(startingOffsets="earliest")
    planned = ranges(reader.partitions(begin, end))
    assert planned == [(0, 0, 10 if says_start else 20), (1, 0, 10 if says_start else 20)]
    delete_records(broker, topic, before=5)
    again, begin, _ = run(startingOffsets="earliest")
    with pytest.raises(DataLossError, match=f"{topic}-0: offsets 0 to 4 were deleted before they were read"):
        again.partitions(begin, end)
    reader, begin, end = run()  # from the latest offsets
    produced(client, topic, 20)
    again, begin, _ = run()
    if says_start:
        assert ranges(again.partitions(begin, end)) == []
    following = again.latestOffset(end)
    assert ranges(again.partitions(end, following)) == [(0, 20, 30), (1, 20, 30)]
    assert again.latestOffset(following) == following


def test_a_start_is_taken_from_the_first_micro_batch_alone(broker: Broker, client: Client) -> None:
    """Before Spark 4.2 the source cannot see whether a query is new."""
    produced(client, "later", 40)
    reader = StreamReader(asked(broker, "later", startingOffsets="earliest"))
    end = reader.latestOffset()
    assert ranges(reader.partitions({"later": {"0": 8, "1": 9}}, end)) == [(0, 8, 20), (1, 9, 20)]


def test_before_spark_4_2_the_first_micro_batch_of_each_run_takes_everything(broker: Broker, client: Client) -> None:
    """With Trigger.AvailableNow it is the only one of a run. Spark 4.1 reports where a query continues."""
    produced(client, "once", 40)
    given = asked(broker, "once", startingOffsets="earliest", maxOffsetsPerTrigger=10)
    reader = StreamReader(given)
    done = reader.latestOffset()
    assert plain(done) == {"once": {"0": 20, "1": 20}}
    produced(client, "once", 60)
    reader = StreamReader(given)
    reader.partitions(done, done)
    end = reader.latestOffset()
    assert plain(end) == {"once": {"0": 50, "1": 50}}
    assert ranges(reader.partitions(done, end)) == [(0, 20, 50), (1, 20, 50)]
    produced(client, "once", 60)
    assert plain(reader.latestOffset()) == {"once": {"0": 55, "1": 55}}


def test_a_streams_offsets_and_what_is_new(broker: Broker, client: Client) -> None:
    limits = pytest.importorskip("pyspark.sql.streaming.datasource", reason="Spark tells no limit before 4.2")
    produced(client, "flow", 100)
    reader = StreamReader(asked(broker, "flow"))
    begin = reader.initialOffset()
    assert plain(begin) == {"flow": {"0": 50, "1": 50}}
    from_start = StreamReader(asked(broker, "flow", startingOffsets="earliest", maxOffsetsPerTrigger=10))
    begin = from_start.initialOffset()
    end = from_start.latestOffset(begin, from_start.getDefaultReadLimit())
    assert (plain(begin), plain(end)) == ({"flow": {"0": 0, "1": 0}}, {"flow": {"0": 5, "1": 5}})
    splits = [split for partition in from_start.partitions(begin, end) for split in partition.splits]
    assert [(split.partition, split.first_offset, split.end_offset) for split in splits] == [(0, 0, 5), (1, 0, 5)]
    client.alter_topic("flow", partitions=3)
    client.produce("flow", value=b"new", partition=2)
    end = from_start.latestOffset(end, limits.ReadAllAvailable())
    assert plain(end)["flow"]["2"] == 1


def test_over_the_wire_no_split_has_more_records_than_it_may(broker: Broker, client: Client) -> None:
    produced(client, "most", 1000)
    splits = plan(asked(broker, "most", maxRecordsPerPartition=150), Bounds())
    assert [(split.partition, split.first_offset, split.end_offset) for split in splits] == [
        (partition, 125 * at, 125 * at + 125) for partition in range(2) for at in range(4)
    ]


def test_a_micro_batch_waits_for_enough_records_but_not_for_ever(broker: Broker, client: Client) -> None:
    produced(client, "slow", 10)
    now = 1000.0
    options = asked(broker, "slow", startingOffsets="earliest", minOffsetsPerTrigger=20, maxTriggerDelay="30s")
    reader = StreamReader(options, clock=lambda: now)
    begin = reader.initialOffset()
    first = reader.latestOffset(begin)
    assert plain(first) == {"slow": {"0": 5, "1": 5}}  # the first one of a query is not held back
    produced(client, "slow", 10)
    now += 29
    assert reader.latestOffset(first) == first
    now += 1
    second = reader.latestOffset(first)
    assert plain(second) == {"slow": {"0": 10, "1": 10}}
    produced(client, "slow", 20)
    third = reader.latestOffset(second)
    assert plain(third) == {"slow": {"0": 20, "1": 20}}  # enough
    produced(client, "slow", 2)
    assert reader.latestOffset(third) == third
    reader.prepareForTriggerAvailableNow()  # what is there now is to be read, and no more will come
    assert plain(reader.latestOffset(third)) == {"slow": {"0": 21, "1": 21}}


def test_the_progress_says_how_far_behind_a_stream_is(broker: Broker, client: Client) -> None:
    produced(client, "behind", 20)
    reader = StreamReader(asked(broker, "behind", startingOffsets="earliest"))
    begin = reader.initialOffset()
    reader.partitions(begin, {"behind": {"0": 4, "1": 10}})
    told = reader.reportLatestOffset()
    assert told["metrics"] == {
        "minOffsetsBehindLatest": 0,
        "maxOffsetsBehindLatest": 6,
        "avgOffsetsBehindLatest": 3.0,
        "offsetsBehindLatest": 6,
    }
    assert plain(told["offsets"]) == {"behind": {"0": 10, "1": 10}}


def test_kafkas_port_in_place_of_the_native_one_is_recognized(broker: Broker) -> None:
    for name in ("bootstrap", "kafka.bootstrap.servers"):
        options = read_options({name: broker.kafka, "topic": "split"})
        with pytest.raises(
            PipelineError,
            match=f"{broker.kafka} speaks Kafka's protocol, .* native listener .* option path, .* connector",
        ):
            plan(options, Bounds())
    with pytest.raises(PipelineError, match=f"option bootstrap is given twice, as '{broker.native}' and 'other:1'"):
        read_options({"bootstrap": broker.native, "kafka.bootstrap.servers": "other:1", "topic": "split"})
    with pytest.raises(PipelineError, match="settings of a Kafka client do not apply here"):
        read_options({"bootstrap": broker.native, "kafka.security.protocol": "SSL", "topic": "split"})


def test_a_streams_progress_is_the_groups(broker: Broker, client: Client) -> None:
    produced(client, "lag", 10)
    reader = StreamReader(asked(broker, "lag", group="nightly"))
    reader.commit({"lag": {"0": 3, "1": 4}})
    (group,) = client.describe_groups("nightly")
    assert {(one.partition, one.offset, one.lag) for one in group.positions} == {(0, 3, 2), (1, 4, 1)}


def test_a_stream_goes_on_where_its_group_is_in_use(
    broker: Broker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    produced(client, "used", 10)
    reader = StreamReader(asked(broker, "used", group="theirs"))
    with client.consume("used", group="theirs") as records:
        next(iter(records))
        for _ in range(3):
            reader.commit({"used": {"0": 3, "1": 4}})
    assert caplog.messages == [
        "offsets of group theirs not committed: group 'theirs', used-0: the group has members",
    ]


def test_a_stream_whose_records_went(broker: Broker, client: Client) -> None:
    produced(client, "short", 10, partitions=1)
    reader = StreamReader(asked(broker, "short"))
    with pytest.raises(DataLossError, match="offset 99 does not exist: the log ends at 10"):
        reader.partitions({"short": {"0": 0}}, {"short": {"0": 99}})
    with pytest.raises(DataLossError, match="short-1 no longer exists"):
        reader.partitions({"short": {"1": 0}}, {"short": {"1": 9}})
    with pytest.raises(PipelineError, match="a stream has no end"):
        StreamReader(asked(broker, "short", endingOffsets='{"short":{"0":3}}'))


def test_a_stream_whose_topic_was_made_anew(broker: Broker, client: Client) -> None:
    """Its log ends before the stream's offset: without a word all up to there would be passed by."""
    produced(client, "anew", 10, partitions=1)
    client.delete_topic("anew")
    produced(client, "anew", 4, partitions=1)
    before = {"anew": {"0": 10}}
    with pytest.raises(DataLossError, match="anew-0: offset 10 no longer exists: the log ends at 4"):
        StreamReader(asked(broker, "anew")).latestOffset(before)
    reader = StreamReader(asked(broker, "anew", failOnDataLoss="false"))
    end = reader.latestOffset(before)
    assert (plain(end), list(reader.partitions(before, end)), reader.lost_offsets) == ({"anew": {"0": 4}}, [], 6)
    produced(client, "anew", 2, partitions=1)
    assert plain(reader.latestOffset(end)) == {"anew": {"0": 6}}


def test_a_stream_whose_partition_is_gone(broker: Broker, client: Client) -> None:
    produced(client, "stays", 2, partitions=1)
    before = {"stays": {"0": 1}, "went": {"0": 7}}
    options = {"bootstrap": broker.native, "subscribePattern": "stays|went"}
    with pytest.raises(DataLossError, match="went-0 was deleted"):
        StreamReader(read_options(options)).latestOffset(before)
    allowing = StreamReader(read_options({**options, "failOnDataLoss": "false"}))
    assert plain(allowing.latestOffset(before)) == {"stays": {"0": 2}, "went": {"0": 7}}


@pytest.mark.parametrize("code", [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.LEADER_NOT_AVAILABLE])
def test_what_may_pass_is_waited_for(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch, code: ErrorCode
) -> None:
    topic = f"passes-{code}"
    produced(client, topic, 10)
    ask, failed = Cluster.ask_broker, []

    async def refuse_once(self: Cluster, node_id: int, request: Any, response_type: Any) -> Any:
        reply = await ask(self, node_id, request, response_type)
        if response_type is not ListOffsetsResponse or failed:
            return reply
        failed.append(reply)
        first, *others = reply.partitions
        return replace(reply, partitions=(replace(first, error=code), *others))

    monkeypatch.setattr(Cluster, "ask_broker", refuse_once)
    with ClusterConnection(Brokers(addresses=broker.native), Retry(sleep=lambda _: None)) as cluster:
        found = Offsets(cluster, [(topic, 0), (topic, 1)])
        assert [found.bound((topic, partition), LATEST_TIMESTAMP) for partition in range(2)] == [5, 5]
    assert failed


def test_what_does_not_pass_is_an_error(broker: Broker, client: Client) -> None:
    produced(client, "fails", 10)
    with (
        ClusterConnection(Brokers(addresses=broker.native), Retry()) as cluster,
        pytest.raises(PipelineError, match="no partition fails-7"),
    ):
        Offsets(cluster, [("fails", 7)]).bound(("fails", 7), LATEST_TIMESTAMP)


@pytest.mark.interop  # starts a Spark of its own
def test_spark_reads_over_the_wire(spark: Any, broker: Broker, client: Client) -> None:
    produced(client, "spark", 100)
    frame = spark.read.format("warmlog").options(bootstrap=broker.native, topic="spark", minPartitions="4").load()
    assert sorted(int(row.value) for row in frame.select("value").collect()) == list(range(100))


@pytest.mark.interop
@pytest.mark.parametrize("source", ["bootstrap", "path"])
def test_a_stream_goes_on_where_its_checkpoint_says(
    spark: Any, broker: Broker, client: Client, tmp_path: Path, source: str
) -> None:
    """Each record once, over two runs of the same query, and the group follows."""
    topic = f"stream-{source}"
    produced(client, topic, 60)
    options = {"bootstrap": broker.native, "topic": topic, "group": topic, "startingOffsets": "earliest"}
    options["maxOffsetsPerTrigger"] = "25"
    if source == "path":
        options["path"] = str(broker.data_dir)

    def run() -> None:
        frame = spark.readStream.format("warmlog").options(**options).load()
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "table"))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(SPARK_TIMEOUT_S)

    run()
    produced(client, topic, 20)
    run()
    rows = spark.read.parquet(str(tmp_path / "table")).select("partition", "offset").collect()
    assert sorted(map(tuple, rows)) == [(partition, offset) for partition in range(2) for offset in range(40)]
    (group,) = client.describe_groups(topic)
    # Spark says that a micro-batch is done when it begins the next: the last one of a query that ended is not told.
    assert {(one.partition, one.offset) for one in group.positions} == {(0, 30), (1, 30)}

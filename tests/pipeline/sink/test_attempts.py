"""Several attempts at a task against a real broker: each row is stored once, whatever fails."""

from collections import Counter
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.sink.attempt import (
    Row,
    Task,
    arrow,
    content,
    contents,
    new_topic,
    numbered,
    options,
    patience,
    rows_strategy,
    some_identity,
    stored,
    stored_values,
    values,
)
from warmlog.client.blocking import Client
from warmlog.pipeline.brokers import Brokers
from warmlog.pipeline.cluster import ClusterConnection
from warmlog.pipeline.errors import PipelineError, UnavailableError
from warmlog.pipeline.retry import Retry
from warmlog.pipeline.sink.attempts import FETCH_BYTES, stream_identity
from warmlog.pipeline.sink.options import WriteOptions
from warmlog.protocol.response import ProduceResponse
from warmlog.testing import Broker


@settings(max_examples=25)
@given(rows=rows_strategy, data=st.data(), batch_bytes=st.integers(50, 400))
def test_attempts_that_died_and_one_that_did_not_store_each_row_once_in_any_order(
    broker: Broker, client: Client, rows: list[Row], data: st.DataObject, batch_bytes: int
) -> None:
    topic, identity = new_topic(client), some_identity()
    asked = options(broker, topic, batch_bytes=batch_bytes)
    if data.draw(st.booleans()):  # which of two equal rows has a time and which has none, nobody can tell
        rows = [{**row, "timestamp": row["timestamp"] or 0} for row in rows]
    else:
        rows = [{**row, "timestamp": None} for row in rows]
    for _ in range(2):
        cut = data.draw(st.integers(0, len(rows)))
        Task(asked, identity).add(arrow(data.draw(st.permutations(rows))[:cut])).flush()
    done = Task(asked, identity).add(arrow(data.draw(st.permutations(rows)))).finish()
    assert contents(stored(broker, topic)) == Counter(map(content, rows))
    assert done.rows + done.stored_before == len(rows)


def test_records_of_others_in_between_are_none_of_ours(broker: Broker, client: Client) -> None:
    topic, identity = new_topic(client), some_identity()
    for at in range(3):
        Task(options(broker, topic), identity).add(arrow(numbered(0, 40 * (at + 1)))).flush()
        Task(options(broker, topic), some_identity()).add(arrow(numbered(0, 300))).finish()
    done = Task(options(broker, topic), identity).add(arrow(numbered(0, 150))).finish()
    assert (done.rows, done.stored_before) == (30, 120)


def test_a_micro_batch_is_not_the_one_before(broker: Broker, client: Client) -> None:
    topic = new_topic(client)
    for batch_id in (0, 0, 1, 5, 5):
        Task(options(broker, topic), stream_identity("q", batch_id, 0)).add(values(b"a", b"b")).finish()
    assert stored_values(broker, topic) == [b"a"] * 3 + [b"b"] * 3
    late = Task(options(broker, topic), stream_identity("q", 1, 0))
    with pytest.raises(PipelineError, match="a later micro-batch has been written already"):
        late.add(values(b"a"))
    late.die()


def test_rows_that_changed_are_told_or_let_be(broker: Broker, client: Client) -> None:
    topic, identity = new_topic(client), some_identity()
    Task(options(broker, topic), identity).add(values(b"a", b"b", b"c")).flush()
    changed = Task(options(broker, topic), identity).add(values(b"a", b"d"))
    with pytest.raises(PipelineError, match="has stored 2 records that match none of its rows now"):
        changed.finish()
    changed.die()
    assert Task(options(broker, topic, on_changed_rows="send"), identity).add(values(b"a", b"d")).finish().rows == 0
    assert stored_values(broker, topic) == [b"a", b"b", b"c", b"d"]


def test_an_attempt_that_is_overtaken_ends_and_what_it_sent_counts(broker: Broker, client: Client) -> None:
    """A worker that its driver gave up goes on beside the one in its place, whose rows come in another order."""
    topic, identity, one = new_topic(client), some_identity(), {"batch_bytes": 1}
    slow = Task(options(broker, topic, **one), identity).add(values(b"a", b"b"))
    slow._writer._close_all()
    slow._writer._sender.flush()
    other = Task(options(broker, topic, **one), identity).add(values(b"b", b"c"))  # has looked: a and b are there
    slow.add(values(b"d", b"e", b"f", b"g"))
    slow._writer._close_all()
    slow._writer._sender.flush()
    with pytest.raises(PipelineError, match="another attempt at this task"):
        other.add(values(b"e", b"d", b"a", b"f", b"g", b"h")).finish()
    other.die()
    slow.die()
    last = Task(options(broker, topic, **one), identity).add(values(*[b"%c" % at for at in b"hgfedcba"]))
    last.finish()
    assert stored_values(broker, topic) == [b"%c" % at for at in b"abcdefgh"]


@settings(max_examples=20)
@given(data=st.data())
def test_two_attempts_at_a_time_and_one_after_them_store_each_row_once(
    broker: Broker, client: Client, data: st.DataObject
) -> None:
    """Both go through the same rows, each with a key, in orders of their own, until one finds it is not alone."""
    topic, identity = new_topic(client), some_identity()
    asked = options(broker, topic, batch_bytes=data.draw(st.integers(1, 300)))
    rows = [{"key": b"k%d" % (at % 5), "value": b"v%d" % at} for at in range(30)]
    attempts = [(Task(asked, identity), data.draw(st.permutations(rows))) for _ in range(2)]
    for turn in data.draw(st.lists(st.integers(0, 1), max_size=12)):
        task, order = attempts[turn]
        try:
            task.add(arrow(order[:5]))
        except PipelineError:
            break
        del order[:5]
    for task, _ in attempts:
        task.die()
    last = arrow(data.draw(st.permutations(rows)))
    for _ in range(
        5
    ):  # what the others had on its way may come in between: then this one ends, too, and is tried again
        task = Task(asked, identity)
        with suppress(PipelineError):
            task.add(last).finish()
            break
        task.die()
    assert stored_values(broker, topic) == sorted(row["value"] for row in rows)


class Unlucky(ClusterConnection):
    """Loses the connection in place of some replies to produce requests, which the broker has carried out by then."""

    def __init__(self, brokers: Brokers, lost: set[int]) -> None:
        super().__init__(brokers, Retry(60, sleep=lambda _: None), max_reply_bytes=FETCH_BYTES)
        self._lost = lost
        self._replies = 0

    def wait(self, reply: Any) -> Any:
        response = super().wait(reply)
        if isinstance(response, ProduceResponse):
            self._replies += 1
            if self._replies in self._lost:
                raise UnavailableError("the connection is lost")
        return response


@settings(max_examples=15)
@given(lost=st.sets(st.integers(1, 12)))
def test_lost_replies_store_nothing_twice(broker: Broker, client: Client, lost: set[int]) -> None:
    topic = new_topic(client)
    patient = Unlucky(Brokers(addresses=broker.native), lost)
    given_values = [b"%03d" % at * 10 for at in range(100)]
    done = Task(options(broker, topic, batch_bytes=300), some_identity(), patient).add(values(*given_values)).finish()
    assert stored_values(broker, topic) == given_values
    assert done.rows == 100


def test_a_broker_that_goes_and_comes_back_in_mid_job(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        task = Task(options(broker, "t", batch_bytes=500), some_identity())
        for at in range(4):
            task.add(arrow(numbered(at * 100, at * 100 + 100)))
            broker.restart()
        done = task.finish()
        assert Counter(stored_values(broker, "t")) == Counter(b"v%d" % at for at in range(400))
    assert (done.rows, done.retries > 0) == (400, True)


def test_a_broker_that_does_not_come_is_given_up() -> None:
    clock = count(0, 10)
    patient = ClusterConnection(Brokers(addresses="127.0.0.1:1"), patience(lambda: next(clock)))
    task = Task(WriteOptions(brokers=Brokers(addresses="127.0.0.1:1"), topic="t"), some_identity(), patient)
    with pytest.raises(
        PipelineError, match=r"cannot connect to 127.0.0.1:1: .*; gave up after 30 s \(deliveryTimeoutMs\)"
    ):
        task.add(values(b"x"))

"""A write outside transactions that is repeated with another number of tasks stores each row once, or says that not."""

from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.pipeline.sink.attempt import Task, new_topic, options, stored_values, values
from warmlog.client.blocking import Client
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.sink import repeats
from warmlog.pipeline.sink.attempts import stream_identity
from warmlog.pipeline.sink.repeats import Attempt, check_tasks
from warmlog.pipeline.sink.task import open_cluster
from warmlog.testing import Broker

ROWS = [b"%02d" % number for number in range(24)]


class Query:
    """A query, and the runs of its micro-batch 7."""

    def __init__(self, broker: Broker, client: Client) -> None:
        self.topic = new_topic(client)
        self.options = options(broker, self.topic)
        self._identity = partial(stream_identity, self.topic, 7)

    def die(self, tasks: int, stored: list[int]) -> None:
        """Store so many rows in each of the first tasks, and die."""
        for task, rows in enumerate(stored[:tasks]):
            Task(self.options, self._identity(task)).add(values(*ROWS[task::tasks][:rows])).flush()

    def run(self, tasks: int, run: str = "b") -> None:
        """Run all tasks, and commit as the driver does. Raises PipelineError."""
        for task in range(tasks):
            Task(self.options, self._identity(task)).add(values(*ROWS[task::tasks])).finish()
        attempts = [Attempt(name=self.topic, number=7, run=run, topics=(self.topic,))] * tasks
        with open_cluster(self.options) as cluster:
            check_tasks(cluster, attempts, self._identity)


@pytest.mark.interop  # takes many seconds
@pytest.mark.timeout(400)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=st.integers(1, 6), after=st.integers(1, 6), stored=st.lists(st.integers(1, 24), max_size=6))
def test_rows_are_stored_once_or_the_write_fails(
    broker: Broker, client: Client, before: int, after: int, stored: list[int]
) -> None:
    query = Query(broker, client)
    query.die(before, stored)
    try:
        query.run(after)
    except PipelineError:
        assert before != after
        assert stored
    else:
        assert stored_values(broker, query.topic) == ROWS


def test_tasks_that_are_no_more_are_found(broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(broker, client)
    query.die(9, [0] * 8 + [1])
    for _ in range(2):
        with pytest.raises(PipelineError, match="more than the 3 tasks of this one: 1 others, from task 8 on"):
            query.run(3)
    monkeypatch.setattr(repeats, "EMPTY_TASKS", 4)  # and not beyond that
    query.run(3)


def test_they_are_looked_for_once_in_a_run(broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    query, looked = Query(broker, client), []
    more_tasks = repeats._more_tasks
    monkeypatch.setattr(repeats, "_more_tasks", lambda *given: looked.append(given) or more_tasks(*given))
    for run in "aab":
        query.run(2, run)
    assert len(looked) == 2

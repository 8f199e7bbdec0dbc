"""Random histories of transactional writes: attempts, deaths, aborts, timeouts, drivers that die between two commits.

After each step, readers of committed records see every earlier write exactly once, and of the current one

    nothing                          until the driver has decided to commit it
    each task's rows once or not     from then on
    all of its rows exactly once     when the driver's commit has succeeded

A write is repeated with any number of tasks.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.pipeline.sink.attempt import values
from tests.pipeline.sink.test_transactions import Query
from warmlog.client.blocking import Client
from warmlog.client.errors import WarmlogError
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.sink.rows import Rows
from warmlog.pipeline.sink.task import write_in_transaction
from warmlog.pipeline.sink.transactions import CompleteTask
from warmlog.testing import Broker

pytestmark = pytest.mark.interop  # takes minutes

MOST_TASKS = 4
ROWS = 12  # of a write, divided among its tasks
tasks = st.integers(0, MOST_TASKS - 1)
nothing = st.just(0)
steps = st.one_of(
    st.tuples(st.just("run"), tasks),
    st.tuples(st.just("run all"), nothing),
    st.tuples(st.just("restart"), st.integers(1, MOST_TASKS)),
    st.tuples(st.just("die"), tasks),
    st.tuples(st.just("time out"), tasks),
    st.tuples(st.just("abort"), nothing),
    st.tuples(st.just("commit"), nothing),
    st.tuples(st.just("commit and die"), st.integers(0, MOST_TASKS)),
)


class History:
    """One query, and what has become of its writes. `tasks`: how many a run of the present write has."""

    def __init__(self, broker: Broker, client: Client) -> None:
        self.query = Query(broker, client)
        self.client = client
        self.tasks = 2
        self.number = 0
        self.decided: list[Counter[bytes]] | None = None  # the rows of each task when the driver decided
        self.complete: dict[int, CompleteTask] = {}  # tasks whose last attempt the driver knows of
        self.stored: Counter[bytes] = Counter()  # by earlier writes

    def rows(self, task: int) -> tuple[bytes, ...]:
        return tuple(b"%d-%d" % (self.number, at) for at in range(task, ROWS, self.tasks))

    def run(self, task: int) -> None:
        if task < self.tasks:
            self.complete[task] = self.query.task(self.number, task, self.rows(task))

    def run_all(self) -> None:
        for task in range(self.tasks):
            self.run(task)

    def restart(self, tasks: int) -> None:
        """Begin another run of the write, with this number of tasks."""
        self.tasks = tasks
        self.complete.clear()

    def die(self, task: int) -> None:
        """Store some rows, and die without telling anybody."""
        if task >= self.tasks:
            return

        def dying() -> Iterator[Rows]:
            yield values(*self.rows(task)[:2])
            raise KeyboardInterrupt

        self.complete.pop(task, None)
        with suppress(KeyboardInterrupt):
            write_in_transaction(self.query.options, self.query.write(self.number), task, dying())

    def time_out(self, task: int) -> None:
        with suppress(WarmlogError):  # there may be nothing to abort
            self.client.abort_transaction(self.query.write(self.number).transactional_id(task))

    def abort(self) -> None:
        self.query.abort(self.number)
        self.complete.clear()

    def commit(self, ends: int | None = None) -> None:
        """Commit as the driver does once all tasks are complete; die after some transactions if `ends` is given."""
        if len(self.complete) < self.tasks:
            return
        complete = [self.complete[task] for task in range(self.tasks)]
        shares = [Counter(self.rows(task)) for task in range(self.tasks)]
        try:
            if ends is None:
                self.query.commit(complete)
            elif self.query.commit_and_die(complete, ends):
                self.decided = self.decided or shares
                self.complete.clear()
                return
        except PipelineError:
            self.complete.clear()  # Spark runs the tasks again
            return
        self.decided = self.decided or shares
        self.check(is_done=True)
        self.stored.update(row for task in range(self.tasks) for row in self.rows(task))
        self.number += 1
        self.decided = None
        self.complete.clear()

    def check(self, *, is_done: bool = False) -> None:
        seen = Counter(self.query.visible())
        for rows in self.decided or ():
            if is_done or seen & rows:
                assert seen & rows == rows
                seen -= rows
        assert seen == self.stored


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(steps, min_size=3, max_size=14))
def test_each_write_is_seen_once_and_only_when_it_was_decided(
    broker: Broker, client: Client, history: list[tuple[str, int]]
) -> None:
    run = History(broker, client)
    for step, number in history:
        match step:
            case "run":
                run.run(number)
            case "run all":
                run.run_all()
            case "restart":
                run.restart(number)
            case "die":
                run.die(number)
            case "time out":
                run.time_out(number)
            case "abort":
                run.abort()
            case "commit":
                run.commit()
            case "commit and die":
                run.commit(ends=number)
        run.check()
    run.run_all()
    run.commit()
    assert run.number > 0

"""Random histories of transactional writes: attempts, deaths, aborts, timeouts, drivers that die between two commits.

After each step, readers of committed records see every earlier write exactly once, and of the current one

    nothing                          until the driver has decided to commit it
    each task's rows once or not     from then on
    all of its rows exactly once     when the driver's commit has succeeded
"""

from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.pipeline.sink.attempt import values
from tests.pipeline.sink.test_transactions import Query
from warmlog.client.blocking import Client
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.sink import transactions
from warmlog.pipeline.sink.rows import Rows
from warmlog.pipeline.sink.task import write_in_transaction
from warmlog.pipeline.sink.transactions import OpenTransaction
from warmlog.testing import Broker

TASKS = 2
tasks = st.integers(0, TASKS - 1)
steps = st.one_of(
    st.tuples(st.just("run"), tasks),
    st.tuples(st.just("run all"), st.just(0)),
    st.tuples(st.just("die"), tasks),
    st.tuples(st.just("time out"), tasks),
    st.tuples(st.just("abort"), st.just(0)),
    st.tuples(st.just("commit"), st.just(0)),
    st.tuples(st.just("commit and die"), st.integers(0, TASKS)),
)


class History:
    """One query, and what has become of its writes."""

    def __init__(self, broker: Broker, client: Client) -> None:
        self.query = Query(broker, client)
        self.client = client
        self.number = 0
        self.is_decided = False
        self.complete: dict[int, OpenTransaction | None] = {}  # tasks whose last attempt the driver knows of
        self.stored: Counter[bytes] = Counter()  # by earlier writes

    def rows(self, task: int) -> tuple[bytes, ...]:
        return tuple(b"%d-%d-%d" % (self.number, task, at) for at in range(3))

    def run(self, task: int) -> None:
        self.complete[task] = self.query.task(self.number, task, self.rows(task))

    def run_all(self) -> None:
        for task in range(TASKS):
            self.run(task)

    def die(self, task: int) -> None:
        """Store some rows, and die without telling anybody."""

        def some() -> "list[Rows]":
            return [values(*self.rows(task)[:2])]

        def dying() -> "object":
            yield from some()
            raise KeyboardInterrupt

        self.complete.pop(task, None)
        with suppress(KeyboardInterrupt):
            write_in_transaction(self.query.options, self.query.write(self.number), task, dying())  # type: ignore[arg-type]

    def time_out(self, task: int) -> None:
        with suppress(Exception):  # there may be nothing to abort
            self.client.abort_transaction(self.query.write(self.number).transactional_id(task))

    def abort(self) -> None:
        self.query.abort(self.number)
        self.complete.clear()

    def commit(self, ends: int | None = None) -> None:
        """Commit as the driver does once all tasks are complete; die after some transactions if `ends` is given."""
        if len(self.complete) < TASKS:
            return
        left = [transaction for transaction in self.complete.values() if transaction is not None]
        with pytest.MonkeyPatch.context() as patched:
            if ends is not None:
                patched.setattr(transactions, "end", self._ending(ends))
            try:
                self.is_decided = self.is_decided or bool(left)
                self.query.commit(left)
            except (PipelineError, KeyboardInterrupt):
                self.complete.clear()  # Spark runs the tasks again
                return
        self.check(is_done=True)
        self.stored.update(row for task in range(TASKS) for row in self.rows(task))
        self.number += 1
        self.is_decided = False
        self.complete.clear()

    @staticmethod
    def _ending(ends: int) -> object:
        end, count = transactions.end, iter(range(ends))

        def end_some(*arguments: object, **keywords: object) -> None:
            if next(count, None) is None:
                raise KeyboardInterrupt
            end(*arguments, **keywords)  # type: ignore[arg-type]

        return end_some

    def check(self, *, is_done: bool = False) -> None:
        seen = Counter(self.query.visible())
        current = {task: Counter(self.rows(task)) for task in range(TASKS)}
        for rows in current.values():
            if is_done or (self.is_decided and seen & rows):
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

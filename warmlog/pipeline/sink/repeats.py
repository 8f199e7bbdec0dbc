"""Detect, after all tasks have written, that an earlier attempt at a write had more tasks.

A task skips records stored by earlier attempts at it, and fails at its end if those attempts have stored other records,
as happens if the write now has more tasks. If it has fewer tasks, no task checks the records of the former ones, and
other tasks have stored these rows again. So the driver checks for such records: once in each run of a query, for its
first micro-batch with rows, and in each job with a `writeId`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from warmlog.pipeline.cluster import ClusterConnection
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.sink.attempts import Identity, producer_positions
from warmlog.pipeline.sink.notes import Note, last_note, write_note

GROUP = "warmlog-sink-run"
EMPTY_TASKS = 256  # consecutive tasks without stored records after which the search ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The report of a task outside transactions to the driver. `run`: the query's run, None for a job.

    `topics`: topics that the task has written to.
    """

    name: str
    number: int
    run: str | None
    topics: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        """The group of the note that names the last run of the query to complete a micro-batch."""
        return f"{GROUP}-{self.name}"


def check_tasks(cluster: ClusterConnection, attempts: Sequence[Attempt], identity: Callable[[int], Identity]) -> None:
    """Raise PipelineError if tasks with higher numbers have stored rows of the same write.

    `identity`: returns the identity of a task by number.
    """
    topics = sorted({topic for attempt in attempts for topic in attempt.topics})
    if not topics:
        return
    write = attempts[0]
    if write.run is not None and last_note(cluster, write.group).metadata == write.run:
        return
    extra = _more_tasks(cluster, len(attempts), topics, identity)
    if extra:
        raise PipelineError(
            f"an earlier attempt at write {write.number} of {write.name} had more than the {len(attempts)} tasks of"
            f" this one: {len(extra)} others, from task {extra[0]} on, have stored rows that are now stored again"
            " (onChangedRows=send accepts that)"
        )
    if write.run is not None:
        write_note(cluster, write.group, Note(number=write.number, topic_partition=(topics[0], 0), metadata=write.run))


def _more_tasks(
    cluster: ClusterConnection, tasks: int, topics: Sequence[str], identity: Callable[[int], Identity]
) -> list[int]:
    """Return the numbers of further tasks with stored records."""
    extra: list[int] = []
    for task in count(tasks):
        if task - max([tasks, *extra[-1:]]) > EMPTY_TASKS:
            return extra
        producer = identity(task)
        positions = (position for topic in topics for position in producer_positions(cluster, producer, topic))
        if any(each.producer_epoch == producer.producer_epoch and each.last_sequence >= 0 for each in positions):
            extra.append(task)
    raise AssertionError("unreachable: the count is endless")

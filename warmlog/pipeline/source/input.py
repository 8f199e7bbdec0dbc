"""Plan and read a directory, a broker, or both, through the same interface.

Invariants:
1. An extent is valid only during the call it is passed to: it may belong to a connection, or to a directory whose
   segments a broker is about to replace.
2. If a broker's compaction or retention invalidates a plan during planning, planning starts over.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from warmlog.inspect.errors import MissingDirectoryError, SegmentGoneError
from warmlog.inspect.partition import StoredPartition
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.source.options import ReadOptions
from warmlog.pipeline.source.plan import TRIES, AnySplit, Choice, Plan, RemoteSplit
from warmlog.pipeline.source.planning import Split, plan_splits
from warmlog.pipeline.source.ranges import Bounds, Extent, check_named, key_of, resolve
from warmlog.pipeline.source.reading import (
    BatchHandler,
    NotInDirectoryError,
    ReadRules,
    SplitReader,
    Tally,
    checked,
)
from warmlog.pipeline.source.stored import selected_partitions

if TYPE_CHECKING:
    from warmlog.pipeline.cluster import ClusterConnection


_log = logging.getLogger(__name__)

T = TypeVar("T")


class Input(Protocol):
    """Partitions to read. Methods raise PipelineError, InspectError, OSError.

    `lenient`: omit named topics that do not exist instead of raising PipelineError.
    """

    def with_extents(self, see: Callable[[list[Extent]], T], *, lenient: bool = False) -> T:
        """Call a function with the extents of the partitions to read; return its result."""

    def plan(self, choose: Choice, *, lenient: bool = False) -> Plan:
        """Return splits of the offsets that `choose` returns."""

    def size(self, choose: Choice) -> int:
        """Return the size in bytes of the segments with the offsets that `choose` returns."""


def choose_input(options: ReadOptions, *, patient: bool = False) -> Input:
    """Return the input of a batch job: the directory if one is given, otherwise the broker.

    `patient`: whether to wait for a broker even when connecting.
    """
    if options.path is not None:
        return DirectoryInput(options)
    from warmlog.pipeline.source.remote import BrokerInput  # imports the client

    return BrokerInput(options, patient=patient)


def plan_batch(options: ReadOptions, bounds: Bounds) -> Plan:
    """Return the plan of a batch read. Raises PipelineError, InspectError, OSError."""
    return choose_input(options).plan(
        lambda extents: {
            key_of(extent): bounds.applied(extent, resolve(extent, options))
            for extent in extents
            if bounds.partitions is None or extent.partition in bounds.partitions
        }
    )


def size_of(options: ReadOptions) -> int:
    """Return the approximate size of a batch read in bytes. Raises PipelineError, InspectError, OSError."""
    return choose_input(options).size(lambda extents: {key_of(extent): resolve(extent, options) for extent in extents})


def rules_of(options: ReadOptions) -> ReadRules:
    """Return the rules that these options set for reading splits."""
    return ReadRules(
        on_corrupt=options.on_corrupt,
        fail_on_data_loss=options.fail_on_data_loss,
        committed_only=options.committed_only,
    )


class DirectoryInput:
    """Partitions in a data directory."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def with_extents(self, see: Callable[[list[Extent]], T], *, lenient: bool = False) -> T:
        """Call a function with the extents; return its result. Raises PipelineError, InspectError, OSError."""
        return self._with_partitions(lambda partitions: see(list(partitions)), lenient=lenient)

    def plan(self, choose: Choice, *, lenient: bool = False) -> Plan:
        """Return the splits of the chosen offsets. Raises PipelineError, InspectError, OSError."""
        return self._with_partitions(lambda partitions: self._plan(partitions, choose), lenient=lenient)

    def size(self, choose: Choice) -> int:
        """Return the size of the segments with the chosen offsets. Raises PipelineError, InspectError, OSError."""

        def add_up(partitions: list[StoredPartition]) -> int:
            ranges = choose(list(partitions))
            chosen = [(partition, ranges[key_of(partition)]) for partition in partitions if key_of(partition) in ranges]
            return sum(partition.bytes_between(wanted.start, wanted.end) for partition, wanted in chosen)

        return self._with_partitions(add_up, lenient=False)

    def _with_partitions(self, act: Callable[[list[StoredPartition]], T], *, lenient: bool) -> T:
        for _ in range(TRIES):
            with suppress(SegmentGoneError):
                return act(wanted_partitions(self._options, lenient=lenient))
        return act(wanted_partitions(self._options, lenient=lenient))

    def _plan(self, partitions: list[StoredPartition], choose: Choice) -> Plan:
        ranges = choose(list(partitions))
        chosen = [(partition, ranges[key_of(partition)]) for partition in partitions if key_of(partition) in ranges]
        splits = plan_splits(chosen, self._options)
        stored = sum(partition.readable_size(segment) for partition, _ in chosen for segment in partition.segments)
        read = sum(split.size for split in splits)
        return Plan(splits=list(splits), ranges=ranges, skipped_bytes=max(stored - read, 0))


def wanted_partitions(options: ReadOptions, *, lenient: bool = False) -> list[StoredPartition]:
    """Return the partitions that the options select.

    Raises PipelineError if a named topic or partition does not exist (unless `lenient`), InspectError, OSError.
    """
    partitions = selected_partitions(options)
    if lenient:
        return partitions
    missing = set(options.topics.names) - {partition.topic for partition in partitions}
    if missing:
        raise PipelineError(f"{options.path} has no topic {', '.join(sorted(missing))}")
    for topic, numbers in (options.topics.assigned or {}).items():
        existing = {partition.partition for partition in partitions if partition.topic == topic}
        if set(numbers) - existing:
            raise PipelineError(f"{options.path} has no partition {min(set(numbers) - existing)} of topic {topic}")
    check_named(partitions, options)
    return partitions


def read_batches(split: AnySplit, rules: ReadRules, handler: BatchHandler) -> tuple[Iterator[None], Tally]:
    """Return steps that each pass one batch with a valid CRC to the handler, and their tally. Runs in a worker."""
    tally = Tally()

    def steps() -> Iterator[None]:
        with Readers(rules) as readers:
            yield from readers.steps(split, handler, tally)

    return steps(), tally


class Readers:
    """Reads splits one after the other; splits of a cluster share connections. A context manager."""

    def __init__(self, rules: ReadRules) -> None:
        self._rules = rules
        self._cluster: ClusterConnection | None = None

    def steps(self, split: AnySplit, handler: BatchHandler, tally: Tally | None = None) -> Iterator[None]:
        """Return steps that each pass one batch with a valid CRC to the handler. Raises PipelineError, OSError."""
        tally = tally if tally is not None else Tally()
        if isinstance(split, Split):
            reader = SplitReader(split, self._rules, checked(handler), tally=tally)
            return reader.run() if split.brokers is None else self._with_fallback(reader, split, handler, tally)
        return self._remote(split, handler, tally)

    def _with_fallback(self, reader: SplitReader, split: Split, handler: BatchHandler, tally: Tally) -> Iterator[None]:
        """Read a split of a directory, and from the first offset that the directory lacks, from the brokers."""
        try:
            yield from reader.run()
        except (MissingDirectoryError, NotInDirectoryError) as error:
            _log.warning("%s; reading from the broker instead", error)
            from warmlog.pipeline.source.remote_reader import rest_of  # imports the client

            yield from self._remote(rest_of(split, reader.reached), handler, tally)

    def _remote(self, split: RemoteSplit, handler: BatchHandler, tally: Tally) -> Iterator[None]:
        from warmlog.pipeline.source.remote_reader import RemoteReader, connect  # as above

        if self._cluster is None:
            self._cluster = connect(split)
        return RemoteReader(split, self._rules, handler, cluster=self._cluster, tally=tally).run()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._cluster is not None:
            self._cluster.close()

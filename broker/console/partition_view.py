"""A topic with its partitions, a partition with the files of its log, and explanations of fetches."""

import os
from collections.abc import Sequence
from functools import partial
from mmap import PAGESIZE
from typing import TYPE_CHECKING, Final

from warmlog.broker.console.values import (
    ConfigForm,
    EpochForm,
    ExplanationForm,
    FileForm,
    PartitionForm,
    PartitionSummary,
    ReplicaForm,
    SegmentForm,
    TopicDetail,
)
from warmlog.broker.console.visit import ConsoleError, Visit, kafka_error, whole_number
from warmlog.broker.log.descriptions import LogDescription, SegmentFacts
from warmlog.broker.log.index.offset import OffsetIndex
from warmlog.broker.log.index.search import first_warm_slot
from warmlog.broker.log.index.time import TimeIndex
from warmlog.broker.log.io.directory_names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    encode_topic_id,
)
from warmlog.broker.log.io.observed_disk import UnknownResidencyError
from warmlog.broker.log.io.page_cache import Off
from warmlog.broker.log.io.survey import survey_pages
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.metadata.topic import INTERNAL_TOPICS, Topic
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.partitions.topics.catalog import PartitionInfo
from warmlog.broker.security.acls import Operation
from warmlog.broker.settings.topics import effective_settings
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.explanation import ExplainedRange, Explanation
from warmlog.protocol.native.explain import ExplainRequest

if TYPE_CHECKING:
    from warmlog.broker.replication.leading.leader import PartitionLeader  # a standalone broker does not need it

PAGE_SIZE: Final = 100
CELLS: Final = 64  # the cells of `log residency --json`
MAX_SEGMENTS: Final = 100  # the newest segments
INDEXES: Final = ((LOG_SUFFIX, None), (OFFSET_INDEX_SUFFIX, OffsetIndex), (TIME_INDEX_SUFFIX, TimeIndex))


# -- a topic -----------------------------------------------------------------------------------------------------------


async def describe_topic(visit: Visit, name: str) -> TopicDetail:
    """Return a topic with a page of its partitions."""
    visit.require_topic(Operation.DESCRIBE, name)
    topic = visit.tools.partitions.topic(name)
    assert topic is not None, "it was required"
    page = visit.number("page", 0, most=1 << 20)
    shown = range(topic.partitions)[page * PAGE_SIZE : (page + 1) * PAGE_SIZE]
    summaries = []
    for index in shown:
        summaries.append(_summary(visit, topic, index))
        await visit.context.checkpoint()
    return TopicDetail(
        name=name,
        topic_id=encode_topic_id(topic.id),
        internal=name in INTERNAL_TOPICS,
        partitions=tuple(summaries),
        total=topic.partitions,
        page=page,
        page_size=PAGE_SIZE,
        configs=_configs(visit, topic) if visit.may_topic(Operation.DESCRIBE_CONFIGS, name) else (),
    )


def _configs(visit: Visit, topic: Topic) -> tuple[ConfigForm, ...]:
    partitions = visit.tools.partitions
    replicas = partitions.catalog.replication_factor(topic)
    return tuple(
        ConfigForm(name=each.name, value=each.value or "", source=each.source)
        for each in effective_settings(topic.configs, partitions.live_settings, replicas=replicas)
    )


def _summary(visit: Visit, topic: Topic, index: int) -> PartitionSummary:
    partitions = visit.tools.partitions
    info, local = partitions.catalog.partition(topic, index), partitions.local(topic.name, index)
    log = None if local is None else local.log
    return PartitionSummary(
        partition=index,
        leader=_known(info.leader),
        replicas=info.replicas,
        in_sync=info.in_sync,
        log_start_offset=None if log is None else log.offsets.log_start_offset,
        flushed_offset=None if log is None else log.durability.recovery_point,
        high_watermark=None if log is None else log.offsets.high_watermark,
        log_end_offset=None if log is None else log.offsets.log_end_offset,
        size=None if log is None else log.size,
        failure=None if log is None else log.failure,
    )


def _known(number: int) -> int | None:
    return None if number < 0 else number


# -- a partition -------------------------------------------------------------------------------------------------------


async def describe_partition(visit: Visit, name: str, index: str) -> PartitionForm:
    """Return a partition, with the residency of its newest segments' files."""
    partition = visit.local_partition(name, whole_number("partition", index, most=1 << 31))
    topic = visit.tools.partitions.topic(name)
    assert topic is not None, "it has a partition"
    info = visit.tools.partitions.catalog.partition(topic, partition.index)
    with partition.inside():
        survey, files = await visit.in_thread(partial(_survey_log, partition.log))
    offsets = partition.log.offsets
    return PartitionForm(
        topic=name,
        partition=partition.index,
        leader=_known(info.leader),
        leader_epoch=survey.leader_epoch,
        replicas=_replicas(partition, info, visit.tools.node.id),
        log_start_offset=survey.log_start_offset,
        flushed_offset=survey.recovery_point,
        last_stable_offset=offsets.last_stable_offset,
        high_watermark=survey.high_watermark,
        log_end_offset=survey.log_end_offset,
        size=survey.size,
        failure=survey.failure,
        epochs=tuple(EpochForm(epoch=epoch, first_offset=first) for epoch, first in partition.log.epochs.entries),
        all_segments=len(survey.segments),
        segments=tuple(map(_segment, survey.segments[-MAX_SEGMENTS:])),
        files=tuple(files),
        page_size=PAGESIZE,
    )


def _survey_log(log: PartitionLog) -> tuple[LogDescription, list[FileForm]]:
    """Describe a log and survey its files. Call it in a thread. Raises LogError, OSError, ConsoleError."""
    described = log.reads.describe()
    try:
        return described, _survey_files(str(log.directory), described.segments[-MAX_SEGMENTS:])
    except UnknownResidencyError as error:
        raise ConsoleError(501, "UNKNOWN_RESIDENCY", f"cannot query the page cache: {error}") from error


def _survey_files(directory: str, segments: Sequence[SegmentFacts]) -> list[FileForm]:
    files = []
    for segment in segments:
        for suffix, index in INDEXES:
            name = f"{segment.base_offset:020}{suffix}"
            survey = survey_pages(os.path.join(directory, name), CELLS)
            if survey is None:
                continue
            warm_from = None
            if index is not None:
                entries = segment.offset_index_entries if index is OffsetIndex else segment.time_index_entries
                warm_from = first_warm_slot(index.key_column, entries) * index.key_column.stride if entries else None
            files.append(
                FileForm(
                    base_offset=segment.base_offset,
                    kind=suffix.removeprefix("."),
                    name=name,
                    size=survey.size,
                    pages=survey.pages,
                    resident_pages=survey.resident_pages,
                    cell_pages=survey.cell_pages,
                    resident_cells=survey.resident_cells,
                    warm_from=warm_from,
                )
            )
    return files


def _segment(facts: SegmentFacts) -> SegmentForm:
    return SegmentForm(
        base_offset=facts.base_offset,
        next_offset=facts.next_offset,
        size=facts.size,
        offset_index_entries=facts.offset_index_entries,
        time_index_entries=facts.time_index_entries,
        max_timestamp=facts.max_timestamp,
        modified_ms=facts.modified_ms,
        active=facts.active,
    )


def _replicas(partition: Partition, info: PartitionInfo, here: int) -> tuple[ReplicaForm, ...]:
    """Return the replicas, with the log end offsets that a leader on this broker knows."""
    end = partition.log.offsets.log_end_offset
    ends = {here: end} | _follower_ends(partition)
    return tuple(
        ReplicaForm(
            broker=broker,
            leads=broker == info.leader,
            in_sync=broker in info.in_sync,
            log_end_offset=ends.get(broker),
            lag=None if info.leader != here or broker not in ends else max(0, end - ends[broker]),
        )
        for broker in info.replicas
    )


def _follower_ends(partition: Partition) -> dict[int, int]:
    if partition.replication is None:
        return {}
    leader: PartitionLeader = partition.replication  # type: ignore[assignment]  # its only implementation
    return {broker: each.log_end for broker, each in leader.progress.followers.items() if each.log_end >= 0}


# -- explain -----------------------------------------------------------------------------------------------------------


async def explain(visit: Visit, name: str, index: str) -> ExplanationForm:
    """Explain how a fetch of an offset, or of the first record since a time, would be served."""
    offset, time = visit.text("offset"), visit.text("time")
    if bool(offset) == bool(time):
        raise ConsoleError(400, "INVALID_REQUEST", "give either offset=N or time=MILLISECONDS")
    number = whole_number("partition", index, most=1 << 31)
    visit.require_topic(Operation.DESCRIBE, name)
    request = ExplainRequest(
        topic=name,
        partition=number,
        offset=whole_number("offset", offset) if offset else None,
        timestamp=whole_number("time", time) if time else None,
        plain=visit.choice("search", ("both", "warm")) == "both",
    )
    explanation: Explanation = await visit.ask(request)
    if visit.tools.partitions.get(name, number) is None:
        raise kafka_error(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition was moved in the meantime")
    return ExplanationForm(
        topic=name,
        partition=number,
        explanation=explanation,
        gate_pages=_gate_pages(explanation),
        gate=not isinstance(visit.tools.reads.residency.method, Off),
        page_size=PAGESIZE,
    )


def _gate_pages(explanation: Explanation) -> int | None:
    """Return the pages that a fetch with the broker's own search would first read from the disk."""
    if explanation.asked is None:
        return None
    indexes = {
        each.index: len(each.missing or ()) for each in reversed(explanation.lookups)
    }  # the first search is the broker's
    ranges: list[ExplainedRange] = [
        each for each in (explanation.scan, explanation.batch and explanation.batch.place) if each
    ]
    pages = {page for each in ranges for run in each.missing or () for page in range(run.first, run.first + run.count)}
    return sum(indexes.values()) + len(pages)

"""The list of topics, filtered, sorted and paged by the broker, so that no answer grows with the number of topics."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from warmlog.broker.console.values import ResidencyForm, ResidencyList, TopicForm, TopicList, UnsyncedForm
from warmlog.broker.console.visit import ConsoleError, Visit
from warmlog.broker.log.io.directory_names import LOG_SUFFIX
from warmlog.broker.log.io.observed_disk import UnknownResidencyError
from warmlog.broker.log.io.survey import PageSurvey, survey_pages
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.metadata.topic import INTERNAL_TOPICS, Topic
from warmlog.broker.security.acls import Operation

PAGE_SIZE: Final = 100
SORTS: Final = ("name", "records", "size", "last_write", "partitions")
MAX_UNSYNCED: Final = 3
MAX_SURVEYED_TOPICS: Final = 50  # topics per request
MAX_SURVEYED_FILES: Final = 400  # the newest files of a topic that are surveyed
CELLS: Final = 64


async def list_topics(visit: Visit) -> TopicList:
    """Return a page of the topics that the sender may see, filtered by a substring of their names."""
    wanted, sort = visit.text("filter"), visit.choice("sort", SORTS)
    order = visit.choice("order", ("ascending", "descending"))
    hides_internal = not visit.flag("internal")
    page = visit.number("page", 0, most=1 << 20)
    topics: list[Topic] = []
    for topic in visit.tools.partitions.topics():
        is_wanted = wanted in topic.name and not (hides_internal and topic.name in INTERNAL_TOPICS)
        if is_wanted and visit.may_topic(Operation.DESCRIBE, topic.name):
            topics.append(topic)
        await visit.context.checkpoint()
    if sort not in {"name", "partitions"}:
        await _sort_by_content(visit, topics, sort)
    elif sort == "partitions":
        topics.sort(key=lambda topic: topic.partitions)
    if order == "descending":
        topics.reverse()
    shown = topics[page * PAGE_SIZE : (page + 1) * PAGE_SIZE]
    rows, logs = [], []
    for topic in shown:
        logs.append(await _logs_of(visit, topic))
        rows.append(_row(topic, logs[-1]))
    times = await visit.in_thread(partial(_last_writes, logs))
    return TopicList(
        topics=tuple(_with_time(row, time) for row, time in zip(rows, times, strict=True)),
        total=len(topics),
        page=page,
        page_size=PAGE_SIZE,
    )


async def _sort_by_content(visit: Visit, topics: list[Topic], sort: str) -> None:
    """Sort by a property of the topics' logs, all of which have to be examined."""
    keys: dict[str, int] = {}
    if sort == "last_write":
        logs = [await _logs_of(visit, topic) for topic in topics]
        times = await visit.in_thread(partial(_last_writes, logs))
        keys = {topic.name: time or 0 for topic, time in zip(topics, times, strict=True)}
    else:
        value: Callable[[PartitionLog], int] = _records if sort == "records" else (lambda log: log.size)
        for topic in topics:
            keys[topic.name] = sum(map(value, await _logs_of(visit, topic)))
    topics.sort(key=lambda topic: keys[topic.name])


async def _logs_of(visit: Visit, topic: Topic) -> list[PartitionLog]:
    """Return the logs of a topic on this broker."""
    local, logs = visit.tools.partitions.local, []
    for index in range(topic.partitions):
        partition = local(topic.name, index)
        if partition is not None:
            logs.append(partition.log)
        await visit.context.checkpoint()
    return logs


def _records(log: PartitionLog) -> int:
    return log.offsets.log_end_offset - log.offsets.log_start_offset


def _row(topic: Topic, logs: Sequence[PartitionLog]) -> dict[str, Any]:
    unsynced = [log for log in logs if log.durability.recovery_point < log.offsets.log_end_offset]
    return {
        "name": topic.name,
        "partitions": topic.partitions,
        "here": len(logs),
        "internal": topic.name in INTERNAL_TOPICS,
        "records": sum(map(_records, logs)),
        "size": sum(log.size for log in logs),
        "unsynced": tuple(
            UnsyncedForm(partition=log.partition, offset=log.durability.recovery_point)
            for log in unsynced[:MAX_UNSYNCED]
        ),
        "unsynced_partitions": len(unsynced),
    }


def _with_time(row: dict[str, Any], time: int | None) -> TopicForm:
    return TopicForm(**row, last_write_ms=time)


def _last_writes(topics: Sequence[Sequence[PartitionLog]]) -> list[int | None]:
    """Return when each topic was last written, None without any record. Call it in a thread."""
    return [max((time for log in logs if (time := _last_write(log)) is not None), default=None) for logs in topics]


def _last_write(log: PartitionLog) -> int | None:
    if not log.size:
        return None
    try:
        status = os.stat(os.path.join(log.directory, f"{log.active_base_offset:020}{LOG_SUFFIX}"))
    except OSError:  # rolled, moved or deleted in the meantime
        return None
    return status.st_mtime_ns // 1_000_000


# -- residency ---------------------------------------------------------------------------------------------------------


async def list_residency(visit: Visit) -> ResidencyList:
    """Return which parts of the logs of some topics are in the page cache."""
    names = list(dict.fromkeys(visit.query.get("topic", [])))
    if len(names) > MAX_SURVEYED_TOPICS:
        raise ConsoleError(400, "INVALID_REQUEST", f"topic: at most {MAX_SURVEYED_TOPICS} in a request")
    topics = []
    for name in names:
        topic = visit.tools.partitions.topic(name)
        if topic is None or not visit.may_topic(Operation.DESCRIBE, name):
            continue  # deleted since the list was sent
        paths = []
        for log in await _logs_of(visit, topic):
            directory = log.directory
            paths += [os.path.join(directory, f"{each:020}{LOG_SUFFIX}") for each in log.segment_base_offsets()]
            await visit.context.checkpoint()
        topics.append((name, paths))
    return ResidencyList(topics=tuple(await visit.in_thread(partial(_survey_topics, topics))))


def _survey_topics(topics: Sequence[tuple[str, list[str]]]) -> list[ResidencyForm]:
    return [survey_topic(name, paths) for name, paths in topics]


def survey_topic(name: str, paths: Sequence[str]) -> ResidencyForm:
    """Survey the newest of some log files as if they were one. Call it in a thread. Raises OSError."""
    surveys: list[PageSurvey] = []
    for path in paths[-MAX_SURVEYED_FILES:]:
        try:
            survey = survey_pages(path, CELLS)
        except UnknownResidencyError:
            continue
        if survey is not None:
            surveys.append(survey)
    pages = sum(each.pages for each in surveys)
    cell_pages = max(1, -(-pages // CELLS))
    return ResidencyForm(
        topic=name,
        pages=pages,
        resident_pages=sum(each.resident_pages for each in surveys),
        cell_pages=cell_pages,
        resident_cells=tuple(_joined(surveys, pages, cell_pages)),
        files=len(surveys),
        all_files=len(paths),
    )


def _joined(surveys: Sequence[PageSurvey], pages: int, cell_pages: int) -> list[int]:
    """Distribute the resident pages of all files over cells of equal size; exact for cells within one file."""
    cells = [0.0] * -(-pages // cell_pages)
    at = 0
    for survey in surveys:
        for number, resident in enumerate(survey.resident_cells):
            first = at + number * survey.cell_pages
            count = min(survey.cell_pages, survey.pages - number * survey.cell_pages)
            while count > 0:
                cell = first // cell_pages
                part = min(count, (cell + 1) * cell_pages - first)
                cells[cell] += resident * part / min(survey.cell_pages, survey.pages - number * survey.cell_pages)
                first, count = first + part, count - part
        at += survey.pages
    return [round(each) for each in cells]

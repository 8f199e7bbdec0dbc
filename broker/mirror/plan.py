"""Plan the changes that align mirrored topics with their source, without I/O.

A mirrored topic has the source's topic id, partition count and settings, so that offsets, epochs and retention are the
same. Topics that cannot be aligned without losing records, in either cluster, are left unchanged, and reported as
`RefusedTopic`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias
from uuid import UUID

from warmlog.broker.metadata.topic import (
    InvalidPartitionsError,
    InvalidTopicError,
    Mirror,
    Topic,
    check_name,
    check_partitions,
    is_internal,
)
from warmlog.broker.settings.settings import Settings
from warmlog.broker.settings.topics import check_topic_configs, check_topic_setting
from warmlog.broker.settings.types import SettingError
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTopic:
    """A topic of the source. `configs`: the settings of the topic itself, by Kafka's names.

    `topic_id` is NO_TOPIC_ID before Kafka 2.8.
    """

    name: str
    topic_id: bytes
    partitions: int
    configs: Mapping[str, str]


class Create(NamedTuple):
    """Create a topic that exists at the source only."""

    topic: Topic


class Grow(NamedTuple):
    """Add partitions, up to this number."""

    topic: str
    partitions: int


class Configure(NamedTuple):
    """Replace the settings of a topic."""

    topic: str
    configs: Mapping[str, str]


class Delete(NamedTuple):
    """Delete a topic that no longer exists at the source."""

    topic: str


class RefusedTopic(NamedTuple):
    """A topic that is not, or no longer, mirrored, and the reason."""

    topic: str
    problem: str


Action: TypeAlias = Create | Grow | Configure | Delete | RefusedTopic


class Usable(NamedTuple):
    """The settings of a source's topic that are valid here, and the problems of the others."""

    configs: dict[str, str]
    problems: list[str]


def usable_configs(configs: Mapping[str, str], settings: Settings) -> Usable:
    """Return the settings that are valid here; a newer or older Kafka may have others."""
    usable: dict[str, str] = {}
    problems: list[str] = []
    for name, text in sorted(configs.items()):
        try:
            usable[name] = check_topic_setting(name, text)
            check_topic_configs(usable, settings)
        except SettingError as error:
            usable.pop(name, None)
            problems.append(str(error))
    return Usable(usable, problems)


def plan(
    source: Iterable[SourceTopic], here: Mapping[str, Topic], *, cluster_id: str, deletes: bool
) -> Iterator[Action]:
    """Return the change for each topic that is selected for mirroring.

    `source`: the chosen topics of the cluster `cluster_id`, with settings that are valid here. `here`: all topics of
    this broker. `deletes`: whether topics are deleted here after they were deleted at the source.
    """
    names = set()
    for topic in source:
        names.add(topic.name)
        yield from _of_topic(topic, here.get(topic.name), cluster_id)
    for name, mirrored in here.items():
        if name not in names and _is_mirrored(mirrored, cluster_id):
            yield (
                Delete(name)
                if deletes
                else RefusedTopic(name, "it is no longer among the mirrored topics of the source")
            )


def _of_topic(topic: SourceTopic, here: Topic | None, cluster_id: str) -> Iterator[Action]:
    if here is None:
        yield _create(topic, cluster_id)
    elif here.mirror is None:
        yield RefusedTopic(topic.name, "a topic of this name exists here, and is not a mirror: delete or exclude it")
    elif here.mirror.is_promoted or here.mirror.is_promoting:
        return
    elif here.mirror.cluster_id != cluster_id:
        yield RefusedTopic(
            topic.name, f"it is a mirror of cluster {here.mirror.cluster_id}, and the source is {cluster_id}"
        )
    elif here.mirror.has_source_id and here.id.bytes != topic.topic_id:
        yield RefusedTopic(
            topic.name, "it was deleted and created again at the source: delete it here to mirror the new one"
        )
    elif here.partitions > topic.partitions:
        yield RefusedTopic(
            topic.name,
            f"it has {here.partitions} partitions here and {topic.partitions} at the source: created again there",
        )
    else:
        if here.partitions < topic.partitions:
            yield Grow(topic.name, topic.partitions)
        if dict(here.configs) != dict(topic.configs):
            yield Configure(topic.name, topic.configs)


def _create(topic: SourceTopic, cluster_id: str) -> Create | RefusedTopic:
    try:
        check_name(topic.name)
        check_partitions(topic.partitions)
    except (InvalidTopicError, InvalidPartitionsError) as error:
        return RefusedTopic(topic.name, str(error))
    has_source_id = topic.topic_id != NO_TOPIC_ID
    created = Topic(
        name=topic.name,
        partitions=topic.partitions,
        configs=dict(topic.configs),
        mirror=Mirror(cluster_id=cluster_id, has_source_id=has_source_id),
    )
    return Create(replace(created, id=UUID(bytes=topic.topic_id)) if has_source_id else created)


def _is_mirrored(topic: Topic, cluster_id: str) -> bool:
    mirror = topic.mirror
    return (
        mirror is not None
        and not (mirror.is_promoted or mirror.is_promoting)
        and mirror.cluster_id == cluster_id
        and not is_internal(topic.name)
    )

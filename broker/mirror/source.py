"""Query the topics, settings, groups and committed offsets of a source.

Each request names a bounded number of topics, partitions or groups. A refusal that concerns one topic or group is
logged when it first occurs, and the request is repeated the next time; a refusal by the cluster as a whole is a
PeerError.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from warmlog.broker.metadata.topic import is_internal
from warmlog.broker.mirror.plan import SourceTopic, usable_configs
from warmlog.broker.replication.peers.cluster_view import KnownTopic
from warmlog.broker.replication.peers.errors import PeerError, PeerUnavailableError
from warmlog.broker.replication.peers.peer import PeerCluster
from warmlog.broker.settings.settings import Settings
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import FetchedOffset, GroupType, ListGroupsRequest, OffsetFetchRequest
from warmlog.protocol.kafka.messages.cluster.configs import (
    ConfigQuery,
    ConfigResourceType,
    ConfigSource,
    DescribeConfigsRequest,
)
from warmlog.protocol.kafka.messages.groups.offsets import MemberOffsetFetchGroup
from warmlog.protocol.kafka.peer_apis import DESCRIBE_CONFIGS, LIST_GROUPS, OFFSET_FETCH

TOPICS_PER_REQUEST = 200
GROUPS_PER_REQUEST = 50
_SHARE_STATE = "__share_group_state"  # internal as well, of a kind of groups that this broker does not have
_WITH_OFFSETS = frozenset({GroupType.CLASSIC, GroupType.CONSUMER, GroupType.STREAMS})

logger = logging.getLogger(__name__)


class GroupOffsets(NamedTuple):
    """The committed offsets of a group."""

    group: str
    offsets: tuple[FetchedOffset, ...]


class SourceCluster:
    """The cluster whose topics are mirrored."""

    def __init__(self, cluster: PeerCluster, *, settings: Settings) -> None:
        """Use the topic settings that are valid under `settings`, the settings of this broker."""
        self._cluster = cluster
        self._settings = settings
        self._problems: dict[str, str] = {}  # by topic or group, as of the last time

    @property
    def cluster_id(self) -> str:
        """The id of the cluster."""
        return self._cluster.view.cluster_id

    async def topics(self, is_chosen: Callable[[str], bool]) -> list[SourceTopic]:
        """Return the chosen topics, none of them internal. Raises PeerError."""
        await self._cluster.refresh()
        known = {
            name: topic
            for name, topic in self._cluster.view.topics.items()
            if not is_internal(name) and name != _SHARE_STATE and is_chosen(name)
        }
        configs: dict[str, Mapping[str, str]] = {}
        for names in _portions(known, TOPICS_PER_REQUEST):
            configs |= await self._configs(names)
        return [self._topic(known[name], configs[name]) for name in sorted(configs) if _is_complete(known[name])]

    async def _configs(self, names: list[str]) -> dict[str, Mapping[str, str]]:
        """Return the settings of topics; topics whose settings are unavailable are omitted."""
        queries = tuple([ConfigQuery(resource_type=ConfigResourceType.TOPIC, name=name) for name in names])
        response = await self._cluster.ask_any(DESCRIBE_CONFIGS, DescribeConfigsRequest(resources=queries))
        configs: dict[str, Mapping[str, str]] = {}
        for resource in response.resources:
            if resource.error is not ErrorCode.NONE:
                self._tell(resource.name, f"topic {resource.name}: cannot get its settings: {resource.error.name}")
                continue
            entries = [entry for entry in resource.configs if entry.source is ConfigSource.TOPIC]
            configs[resource.name] = {entry.name: entry.value for entry in entries if entry.value is not None}
        return {name: configs[name] for name in names if name in configs}

    def _topic(self, known: KnownTopic, configs: Mapping[str, str]) -> SourceTopic:
        usable = usable_configs(configs, self._settings)
        problems = "; ".join(usable.problems)
        self._tell(known.name, problems and f"topic {known.name}: not mirrored with all its settings: {problems}")
        return SourceTopic(
            name=known.name, topic_id=known.topic_id, partitions=len(known.leaders), configs=usable.configs
        )

    async def groups(self, is_chosen: Callable[[str], bool]) -> list[str]:
        """Return the chosen groups that have committed offsets, of all brokers that answer. Raises PeerError."""
        groups: set[str] = set()
        failure: PeerError | None = None
        answered = 0
        for node_id in sorted(self._cluster.view.brokers):
            try:
                response = await self._cluster.ask(node_id, LIST_GROUPS, ListGroupsRequest())
            except PeerError as error:
                failure = error
                continue
            if response.error is not ErrorCode.NONE:
                failure = PeerUnavailableError(f"broker {node_id} does not list its groups: {response.error.name}")
                continue
            answered += 1
            groups.update(listed.group for listed in response.groups if listed.type in _WITH_OFFSETS)
        if failure is not None and not answered:
            raise failure
        return sorted(group for group in groups if group and is_chosen(group))

    async def committed(self, groups: Iterable[str]) -> list[GroupOffsets]:
        """Return the committed offsets of groups; groups whose offsets are unavailable or not stable are omitted.

        Offsets that an open transaction may still change are not stable. Raises PeerError.
        """
        by_coordinator: dict[int, list[str]] = {}
        for group in groups:
            by_coordinator.setdefault(await self._cluster.coordinator_of(group), []).append(group)
        committed: list[GroupOffsets] = []
        for node_id, there in by_coordinator.items():
            for names in _portions(there, GROUPS_PER_REQUEST):
                committed += await self._committed_at(node_id, names)
        return committed

    async def _committed_at(self, node_id: int, groups: list[str]) -> list[GroupOffsets]:
        requested = tuple([MemberOffsetFetchGroup(group=group) for group in groups])
        request = OffsetFetchRequest(groups=requested, require_stable=True)
        response = await self._cluster.ask(node_id, OFFSET_FETCH, request)
        committed: list[GroupOffsets] = []
        for answer in response.groups:
            codes = {answer.error, *[offset.error for offset in answer.partitions]} - {ErrorCode.NONE}
            if not codes:
                committed.append(GroupOffsets(answer.group, answer.partitions))
                self._tell(answer.group, "")
                continue
            self._cluster.forget_coordinator(answer.group)
            names = ", ".join(sorted(code.name for code in codes))
            self._tell(answer.group, f"group {answer.group}: cannot get its committed offsets: {names}")
        return [answer for answer in committed if answer.group in groups]

    def _tell(self, name: str, problem: str) -> None:
        """Log a problem of a topic or group, unless it is the last one logged for it."""
        if problem and self._problems.get(name) != problem:
            logger.warning("%s", problem)
        if problem:
            self._problems[name] = problem
        else:
            self._problems.pop(name, None)


def _is_complete(topic: KnownTopic) -> bool:
    """Return whether all partitions up to the last one are known."""
    return bool(topic.leaders) and max(topic.leaders) == len(topic.leaders) - 1


def _portions(names: Iterable[str], size: int) -> Iterator[list[str]]:
    """Split names into lists of at most `size`."""
    left = sorted(names)
    for start in range(0, len(left), size):
        yield left[start : start + size]

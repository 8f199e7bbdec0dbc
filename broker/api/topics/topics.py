"""Create, delete and alter topics, and add partitions.

Validates what `Partitions` does not know (broker assignments, duplicate names), in Kafka's order. Source:
org.apache.kafka.controller.ReplicationControlManager, kafka.server.ControllerApis.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeAlias

from msgspec import UNSET, UnsetType

from warmlog.broker.api.configs.config_entries import TopicEntries
from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import EXPECTED, RequestError, describe
from warmlog.broker.api.handler import Handler
from warmlog.broker.log.io.directory_names import encode_topic_id
from warmlog.broker.metadata.topic import AUDIT_TOPIC, MAX_PARTITIONS_PER_REQUEST, InvalidTopicError, Topic
from warmlog.broker.partitions.partitions import Partitions, UnknownTopicError
from warmlog.broker.partitions.topics.catalog import registered
from warmlog.broker.security.quotas.client_quotas import ClientQuotas
from warmlog.broker.settings.topics import check_setting_name
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.kafka.messages.common import UNKNOWN_TOPIC_NAME
from warmlog.protocol.kafka.messages.topics.changes import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    KafkaCreatedTopic,
    KafkaDeleteTopicsRequest,
    KafkaNewTopic,
    NewPartitions,
)
from warmlog.protocol.request import (
    AlterTopicsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    NewTopic,
    TopicAlteration,
)
from warmlog.protocol.response import (
    AlterTopicsResponse,
    CreatedTopic,
    CreateTopicsResponse,
    DeleteTopicsResponse,
    TopicResult,
)

# The metadata log of Kafka's controllers, and a topic that brokers create with settings of their own.
RESERVED = frozenset({"__cluster_metadata", AUDIT_TOPIC})
# Kafka answers when the topics are in its metadata, and creates or renames their directories later. This broker answers
# when that is done; with more partitions than this, it answers a creation after `ANSWER_AFTER_S` at the latest, and a
# deletion as soon as the topics are unavailable.
MANY_PARTITIONS = 200
ANSWER_AFTER_S = 0.25
_BROKER_CHOOSES = -1
# The first versions of CreateTopics, DeleteTopics and CreatePartitions whose clients know THROTTLING_QUOTA_EXCEEDED.
FIRST_STRICT_CREATION, FIRST_STRICT_DELETION, FIRST_STRICT_GROWTH = 6, 5, 3

Assignment: TypeAlias = Sequence[tuple[int, ...]]  # the replicas of each partition, preferred leader first


class TopicsApi:
    """Answers the requests that change topics, each topic on its own."""

    def __init__(self, partitions: Partitions, quotas: ClientQuotas) -> None:
        self._partitions = partitions
        self._quotas = quotas
        self._entries = TopicEntries(partitions.live_settings)

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {
            CreateTopicsRequest.api: self.create,
            DeleteTopicsRequest.api: self.delete,
            AlterTopicsRequest.api: self.alter,
            CreatePartitionsRequest.api: self.create_partitions,
        }

    # -- create --

    async def create(self, request: CreateTopicsRequest, context: Context) -> CreateTopicsResponse:
        """Create each topic independently; refuse repeated names."""
        twice = await context.repeated(topic.name for topic in request.topics)
        _limit_partitions(await context.map(self._partitions_of, request.topics))
        plans = []
        for topic in request.topics:
            plan = await self._plan(topic, twice, context)
            if isinstance(plan, Topic) and not self._may_mutate(plan.partitions, context, FIRST_STRICT_CREATION):
                plan = _throttled()
            plans.append(plan)
            await context.checkpoint()
        topics = [plan for plan in plans if isinstance(plan, Topic)]
        failures: Mapping[str, Exception] = {}
        if topics and not request.validate_only:
            is_large = sum(topic.partitions for topic in topics) > MANY_PARTITIONS
            wait_s = ANSWER_AFTER_S if is_large else math.inf
            failures = await context.wait(self._partitions.create_all(topics, answer_after_s=wait_s))
        created = await context.map(partial(self._created, failures=failures), request.topics, plans)
        await context.empty(plans)
        return CreateTopicsResponse(topics=created)

    def _partitions_of(self, requested: NewTopic) -> int:
        """Return the number of partitions of a new topic."""
        if isinstance(requested, KafkaNewTopic) and requested.assignments:
            return len(requested.assignments)
        return (
            self._partitions.settings.num_partitions
            if requested.partitions == _BROKER_CHOOSES
            else requested.partitions
        )

    async def _plan(self, requested: NewTopic, twice: set[str], context: Context) -> Topic | Exception:
        """Return the topic to create, or the error for the client."""
        try:
            _refuse_twice(requested.name, twice)
            if requested.name in RESERVED:
                raise RequestError(ErrorCode.INVALID_REQUEST, f"the topic name {requested.name} is reserved")
            plan = self._partitions.plan_topic
            if not isinstance(requested, KafkaNewTopic):
                if requested.replication_factor is UNSET:
                    return plan(requested.name, requested.partitions, requested.configs)
                factor = self._factor(requested.replication_factor)
                return plan(requested.name, requested.partitions, requested.configs, replication_factor=factor)
            planned = plan(
                requested.name, 1, requested.configs, replication_factor=1
            )  # name and settings are checked first
            if requested.null_configs:
                names = ", ".join(requested.null_configs)
                raise RequestError(ErrorCode.INVALID_CONFIG, f"settings without a value: {names}")
            if requested.assignments:
                assignment = await self._assignment(requested, context)
                return plan(requested.name, len(assignment), requested.configs, assignment=assignment)
            factor = self._factor(requested.replication_factor)
            if (requested.partitions, factor) == (1, 1):
                return planned
            return plan(requested.name, requested.partitions, requested.configs, replication_factor=factor)
        except EXPECTED as error:
            return error.with_traceback(None)  # the traceback refers to this frame: a cycle for each topic

    def _created(
        self, requested: NewTopic, plan: Topic | Exception, *, failures: Mapping[str, Exception]
    ) -> CreatedTopic:
        outcome = plan if isinstance(plan, Exception) else failures.get(plan.name, plan)
        if isinstance(outcome, Exception):
            code, message = describe(outcome)
            return CreatedTopic(name=requested.name, error=code, message=message)
        topic_id = encode_topic_id(outcome.id)
        if not isinstance(requested, KafkaNewTopic):
            return CreatedTopic(name=outcome.name, topic_id=topic_id, partitions=outcome.partitions)
        replicas = 1 if outcome.assignment is None else len(outcome.assignment[0])
        return KafkaCreatedTopic(
            name=outcome.name,
            topic_id=topic_id,
            partitions=outcome.partitions,
            configs=self._entries.of(outcome.configs, replicas),
            replication_factor=replicas,
        )

    def _factor(self, factor: int | UnsetType) -> int:
        """Return the replication factor of a new topic. Raises RequestError if it is impossible."""
        brokers = len(registered(self._partitions.catalog))
        chosen = _BROKER_CHOOSES if factor is UNSET else factor
        if chosen == _BROKER_CHOOSES:
            chosen = self._partitions.default_replication_factor
        if 1 <= chosen <= brokers:
            return chosen
        raise RequestError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {chosen}: must be {_BROKER_CHOOSES} (default), or 1 to the number of registered "
            f"brokers, {brokers}",
        )

    async def _assignment(self, requested: KafkaNewTopic, context: Context) -> Assignment:
        """Return the replicas of each partition, by number. Raises RequestError for impossible assignments."""
        if requested.replication_factor != _BROKER_CHOOSES or requested.partitions != _BROKER_CHOOSES:
            raise RequestError(
                ErrorCode.INVALID_REQUEST, "with assignments, partitions and replication factor must be -1"
            )
        by_index: dict[int, tuple[int, ...]] = {}
        for index, brokers in requested.assignments:
            by_index[index] = brokers
            await context.checkpoint()
        count = len(requested.assignments)
        if len(by_index) != count or min(by_index) != 0 or max(by_index) != count - 1:
            raise RequestError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "assignments must name each partition once, counting from 0 without gaps",
            )
        assignment = tuple([by_index[index] for index in range(count)])
        await self._check_assignment(assignment, context)
        await context.empty(by_index)
        return assignment

    async def _check_assignment(self, assignment: Assignment, context: Context) -> None:
        """Raise RequestError unless all partitions have equally many distinct registered brokers."""
        known = registered(self._partitions.catalog)
        for brokers in assignment:
            if len(brokers) != len(assignment[0]) or not brokers or len(set(brokers)) != len(brokers):
                raise RequestError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"a partition is assigned to {list(brokers)}: expected distinct brokers, equally many for each one",
                )
            unknown = next((broker for broker in brokers if broker not in known), None)
            if unknown is not None:
                there_are = ", ".join(map(str, sorted(known)))
                raise RequestError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"a partition is assigned to {list(brokers)}, but there is no broker {unknown}, only {there_are}",
                )
            await context.checkpoint()

    # -- delete --

    async def delete(self, request: DeleteTopicsRequest, context: Context) -> DeleteTopicsResponse:
        """Delete each topic independently; refuse one that is repeated, by name or by id."""
        if not self._partitions.settings.delete_topic_enable:
            raise RequestError(
                ErrorCode.TOPIC_DELETION_DISABLED, "topics cannot be deleted: delete.topic.enable is false"
            )
        twice = await context.repeated(name for name in request.topics if name != UNKNOWN_TOPIC_NAME)
        named, count, throttled = [], 0, set()
        kept = {AUDIT_TOPIC} if self._partitions.settings.warmlog_audit_topic else set()
        for name in request.topics:
            if name not in twice and name not in kept and name != UNKNOWN_TOPIC_NAME:
                topic = self._partitions.topic(name)
                size = topic.partitions if topic is not None else 0
                if size and not self._may_mutate(size, context, FIRST_STRICT_DELETION):
                    throttled.add(name)
                else:
                    named.append(name)
                    count += size
            await context.checkpoint()
        is_large = count > MANY_PARTITIONS
        ids = await _requested_ids(request, context)
        failures = await self._partitions.delete_all(named, context.checkpoint, answers_early=is_large, ids=ids)
        failures.update(dict.fromkeys(throttled, _throttled()))
        failures.update((name, InvalidTopicError(f"{name} is in use: set warmlog.audit.topic=false")) for name in kept)
        deleted = await context.map(partial(_deleted, twice=twice, failures=failures, ids=ids), request.topics)
        await context.empty(failures)
        return DeleteTopicsResponse(topics=deleted)

    # -- alter --

    async def alter(self, request: AlterTopicsRequest, context: Context) -> AlterTopicsResponse:
        """Change each topic independently."""
        altered = []
        for topic in request.topics:
            altered.append(await self._altered(topic, context))
            await context.checkpoint()
        return AlterTopicsResponse(topics=tuple(altered))

    async def _altered(self, requested: TopicAlteration, context: Context) -> TopicResult:
        def change(own: Mapping[str, str]) -> Mapping[str, str]:
            return {name: text for name, text in {**own, **requested.configs}.items() if text is not None}

        try:
            for name in requested.configs:
                check_setting_name(name)
            topic = self._partitions.topic(requested.name)
            if topic is not None and requested.partitions is not None:
                self._grow_within_quota(requested.partitions - topic.partitions, context)
            await context.wait(self._partitions.alter(requested.name, change, requested.partitions))
        except EXPECTED as error:
            return _failed(requested.name, error)
        return TopicResult(name=requested.name)

    async def create_partitions(self, request: CreatePartitionsRequest, context: Context) -> CreatePartitionsResponse:
        """Increase the partition count of each topic."""
        twice = await context.repeated(topic.name for topic in request.topics)
        _limit_partitions([topic.count for topic in request.topics])
        grown = []
        for topic in request.topics:
            grown.append(await self._grown(topic, twice, request.validate_only, context))
            await context.checkpoint()
        return CreatePartitionsResponse(topics=tuple(grown))

    async def _grown(
        self, requested: NewPartitions, twice: set[str], validate_only: bool, context: Context
    ) -> TopicResult:
        try:
            _refuse_twice(requested.name, twice)
            self._require(requested.name)
            alter = self._partitions.alter
            topic = await context.wait(alter(requested.name, partitions=requested.count, validate_only=True))
            await self._check_new_assignments(requested, requested.count - topic.partitions, context)
            self._grow_within_quota(requested.count - topic.partitions, context)
            if not validate_only:
                await context.wait(alter(requested.name, partitions=requested.count, assignment=requested.assignments))
        except EXPECTED as error:
            return _failed(requested.name, error)
        return TopicResult(name=requested.name)

    def _grow_within_quota(self, added: int, context: Context) -> None:
        """Record added partitions. Raises RequestError if the quota does not allow them."""
        if added > 0 and not self._may_mutate(added, context, FIRST_STRICT_GROWTH):
            raise _throttled()

    def _may_mutate(self, partitions: int, context: Context, first_strict: int) -> bool:
        """Record partitions to create or delete; return whether the quota allows it. Older clients only pause."""
        session = context.session
        is_strict = session.is_native or context.version >= first_strict
        return self._quotas.mutate(session, partitions, is_strict=is_strict)

    def _require(self, name: str) -> None:
        """Raise UnknownTopicError without waiting for the lock on topic changes: a request may have thousands."""
        if self._partitions.topic(name) is None:
            raise UnknownTopicError(f"no topic {name!r}")

    async def _check_new_assignments(self, requested: NewPartitions, added: int, context: Context) -> None:
        if requested.assignments is None:
            return
        if len(requested.assignments) != added:
            raise RequestError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{added} partitions are added, but assignments given for {len(requested.assignments)}",
            )
        await self._check_assignment(requested.assignments, context)


async def _requested_ids(request: DeleteTopicsRequest, context: Context) -> dict[str, bytes]:
    """Return the ids of the topics that were requested by id, by name."""
    ids: dict[str, bytes] = {}
    if isinstance(request, KafkaDeleteTopicsRequest):
        for name, topic_id in zip(request.topics, request.topic_ids, strict=True):
            if topic_id != NO_TOPIC_ID:
                ids[name] = topic_id
            await context.checkpoint()
    return ids


def _deleted(name: str, *, twice: set[str], failures: Mapping[str, Exception], ids: Mapping[str, bytes]) -> TopicResult:
    failure = failures.get(name)
    if name in twice:
        failure = _named_twice()
    elif name in ids and isinstance(failure, UnknownTopicError):
        return TopicResult(name=UNKNOWN_TOPIC_NAME, error=ErrorCode.UNKNOWN_TOPIC_ID)
    elif name == UNKNOWN_TOPIC_NAME:
        failure = UnknownTopicError(f"no topic {name!r}")
    return TopicResult(name=name) if failure is None else _failed(name, failure)


def _limit_partitions(counts: Sequence[int]) -> None:
    """Raise RequestError if all topics of a request together have too many partitions."""
    count = sum(max(0, each) for each in counts)
    if count > MAX_PARTITIONS_PER_REQUEST:
        raise RequestError(
            ErrorCode.POLICY_VIOLATION,
            f"{count:,} partitions in a request; at most {MAX_PARTITIONS_PER_REQUEST:,} are possible, send several",
        )


def _refuse_twice(name: str, twice: set[str]) -> None:
    if name in twice:
        raise _named_twice()


def _throttled() -> RequestError:
    return RequestError(
        ErrorCode.THROTTLING_QUOTA_EXCEEDED, "the quota controller_mutation_rate is used up; try again later"
    )


def _named_twice() -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, "the topic occurs twice in the request")


def _failed(name: str, error: Exception) -> TopicResult:
    code, message = describe(error)
    return TopicResult(name=name, error=code, message=message)

"""Check requests between the dispatcher and the handlers, and produce and fetch on their direct paths."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from warmlog.broker.api.access import Access, lacking
from warmlog.broker.api.authorization.parts import Check, CheckedCall
from warmlog.broker.api.authorization.table import ROWS
from warmlog.broker.api.authorization.topics import may_create
from warmlog.broker.api.context import Context, Session
from warmlog.broker.api.handler import Handler
from warmlog.broker.api.records.produce import ADMIN_CLIENT_ID
from warmlog.broker.metadata.topic import AUDIT_TOPIC, INTERNAL_TOPICS
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.security.acls import Operation, ResourceType
from warmlog.broker.security.authorizer import Authorizer
from warmlog.protocol.request import PartitionRecords, ProduceRequest
from warmlog.protocol.response import ProducedPartition

Refused = dict[int, ProducedPartition]  # by position in the request
NONE_REFUSED: Final[Refused] = {}


class Guard:
    """Checks requests by the rows of `table`."""

    def __init__(self, authorizer: Authorizer, partitions: Partitions) -> None:
        self._authorizer = authorizer
        self._partitions = partitions

    def access(self, session: Session) -> Access:
        """Return the current rights of a session."""
        return Access(self._authorizer, session)

    def guarded(self, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
        """Wrap handlers with their checks. Every API has a row."""
        return {api: self._guarded(_check_of(api), handler) for api, handler in handlers.items()}

    def _guarded(self, check: Check, handler: Handler) -> Handler:
        async def guarded(request: Any, context: Context) -> Any:
            return await check(CheckedCall(request, context, self.access(context.session), handler, self._partitions))

        return guarded

    def refused_produce(self, request: ProduceRequest, context: Context) -> Refused:
        """Return results for the partitions to which the sender may not write; usually there are none."""
        session, topics = context.session, self._partitions.by_name
        known = session.decisions
        if known is not None and request.transactional_id is None and self._authorizer.holds(known, session.principal):
            writable = known.writable
            for requested in request.partitions:
                topic = requested.topic
                if topic not in writable or topic not in topics:
                    break
            else:
                return NONE_REFUSED
        access = Access(self._authorizer, session)
        refused: Refused = {}
        is_open = self._may_begin(access, request)
        for number, requested in enumerate(request.partitions):
            if not is_open or not self._may_write(access, requested.topic, context):
                refused[number] = _refused(requested, is_open=is_open)
            elif requested.topic not in INTERNAL_TOPICS:
                access.note_writable(requested.topic)
        return refused

    async def refused_large_produce(self, request: ProduceRequest, context: Context) -> Refused:
        """Return the results of `refused_produce`, computed in pieces."""
        access, refused = self.access(context.session), dict[int, ProducedPartition]()
        is_open = self._may_begin(access, request)
        for number, requested in enumerate(request.partitions):
            if not is_open or not self._may_write(access, requested.topic, context):
                refused[number] = _refused(requested, is_open=is_open)
            await context.checkpoint()
        return refused

    def _may_begin(self, access: Access, request: ProduceRequest) -> bool:
        """Return whether the sender may use the request's transactional id, if there is one."""
        return not request.is_transactional or access.transactional_id(Operation.WRITE, str(request.transactional_id))

    def _may_write(self, access: Access, topic: str, context: Context) -> bool:
        if not topic:
            return True  # an unknown id, which the handler refuses
        if topic == AUDIT_TOPIC and self._partitions.catalog.is_peer(context.session.client_id):
            return access.cluster(Operation.CLUSTER_ACTION)
        if not access.topic(Operation.WRITE, topic):
            return False
        if topic in INTERNAL_TOPICS:
            return context.session.client_id != ADMIN_CLIENT_ID or access.cluster(Operation.ALTER)
        if self._partitions.has(topic) or not self._partitions.settings.auto_create_topics_enable:
            return True
        return may_create(access, topic)


def without(request: ProduceRequest, refused: Refused) -> ProduceRequest:
    """Return a request without the refused partitions."""
    left = [requested for number, requested in enumerate(request.partitions) if number not in refused]
    return replace(request, partitions=tuple(left))


def _refused(requested: PartitionRecords, *, is_open: bool) -> ProducedPartition:
    kind = ResourceType.TOPIC if is_open else ResourceType.TRANSACTIONAL_ID
    return ProducedPartition(topic=requested.topic, partition=requested.partition, **lacking(Operation.WRITE, kind))


def _check_of(api: str) -> Check:
    check = ROWS[api].check
    assert check is not None, "the dispatcher checks it"
    return check

"""Answer ShareFetch and ShareAcknowledge: validate them, update the session, acknowledge, acquire.

Source: kafka.server.KafkaApis (handleShareFetchRequest, handleShareAcknowledgeRequest).
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import trio
from msgspec.structs import replace

from warmlog.broker.api.access import Access
from warmlog.broker.api.context import Context, Session
from warmlog.broker.api.current_leaders import CurrentLeaders
from warmlog.broker.api.errors import RequestError, describe
from warmlog.broker.api.handler import Handler
from warmlog.broker.api.share.acknowledging import Acknowledged, acknowledge, is_acknowledged
from warmlog.broker.api.share.fetching import NOT_READABLE, FetchedShare, MayRead, ShareFetch, ShareFetching, in_turns
from warmlog.broker.groups.share.requests import MAX_MEMBER_ID
from warmlog.broker.security.acls import Operation
from warmlog.broker.security.authorizer import Authorizer
from warmlog.broker.share.persister import Outcome, PartitionById
from warmlog.broker.share.service import ShareService
from warmlog.broker.share.sessions import FINAL_EPOCH, INITIAL_EPOCH, STEP, ShareSession, ShareSessionError
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.share.fetch import (
    ForgottenSharePartitions,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    SharedPartition,
    ShareFetchRequest,
    ShareFetchResponse,
)
from warmlog.protocol.kafka.share_state_records import SharePartitionKey

R = TypeVar("R", ShareFetchResponse, ShareAcknowledgeResponse)
_LED_ELSEWHERE = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


class ShareFetchApi:
    """Answers the members of share groups that fetch from this broker."""

    def __init__(
        self,
        share: ShareService,
        fetching: ShareFetching,
        *,
        is_enabled: Callable[[], bool],
        authorizer: Authorizer | None,
        leaders: CurrentLeaders | None,
    ) -> None:
        """Serve fetches if the feature `share.version` enables them (`is_enabled`).

        `leaders`: in a cluster, for members that sent a request to the wrong broker. `authorizer`: None if every client
        may read every topic.
        """
        self._share = share
        self._fetching = fetching
        self._partitions = fetching.partitions
        self._is_enabled = is_enabled
        self._authorizer = authorizer
        self._leaders = leaders

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {ShareFetchRequest.api: self.fetch, ShareAcknowledgeRequest.api: self.acknowledge}

    # -- ShareFetch --

    async def fetch(self, request: ShareFetchRequest, context: Context) -> ShareFetchResponse:
        """Acknowledge records, then acquire others; wait if there are none."""
        self._check(request)
        if request.is_renewal:
            _check_renewal(request)
        try:
            session = await self._session_of(request, context)
        except ShareSessionError as error:
            if error.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED:  # the client would immediately retry
                with trio.move_on_after(request.max_wait_ms / 1000):
                    await context.wait(trio.Event().wait())
            raise
        acknowledged = await self._acknowledged(request, context)
        shares: list[FetchedShare] = []
        if request.epoch != FINAL_EPOCH and not request.is_renewal:
            shares = await self._shares_of(session, request, context)
            rights = partial(self._rights, request.group, context)
            await ShareFetch(self._fetching, request, session, shares, context, rights=rights).run()
        results: dict[PartitionById, SharedPartition] = {}
        for share in shares:
            if share.failure.error is not ErrorCode.NONE or share.acquired:
                results[share.topic_id, share.partition] = share.result()
            if share.failure.error is not ErrorCode.NONE:
                session.failed((share.topic_id, share.partition))
            await context.checkpoint()
        for result in await acknowledged.results(context):
            key = result.topic_id, result.partition
            known = results.get(key) or SharedPartition(topic_id=key[0], partition=key[1])
            results[key] = replace(known, acknowledge_error=result.error, acknowledge_message=result.message)
        if request.epoch == FINAL_EPOCH:
            self._share.sessions.close(session)
        response = ShareFetchResponse(
            lock_timeout_ms=self._share.deliveries.rules(request.group).lock_ms,
            partitions=tuple(sorted(results.values(), key=lambda each: each.topic_id)),
        )
        return self._with_leaders(response, context.session)

    async def _session_of(self, request: ShareFetchRequest, context: Context) -> ShareSession:
        """Return the session of a request after applying the request's changes. Raises ShareSessionError."""
        sessions = self._share.sessions
        if request.epoch == INITIAL_EPOCH:
            if any(is_acknowledged(each) for each in request.partitions):
                raise RequestError(ErrorCode.INVALID_REQUEST, "there is nothing to acknowledge in a new share session")
            session = sessions.create(request.group, request.member_id, context.session)
        else:
            session = sessions.find(request.group, request.member_id, request.epoch)
            if request.epoch == FINAL_EPOCH:
                return session
            session.advance()
        added = [(each.topic_id, each.partition) for each in request.partitions]
        for begin in range(0, len(added), STEP):
            sessions.update(session, added[begin : begin + STEP], ())
            await context.checkpoint()
        for key in _each(request.forgotten):
            sessions.update(session, (), (key,))
            await context.checkpoint()
        return session

    async def _shares_of(
        self, session: ShareSession, request: ShareFetchRequest, context: Context
    ) -> list[FetchedShare]:
        """Return the partitions of a session with their share-partitions, which may still be loading."""
        may_read = self._may_read(context)
        shares: list[FetchedShare] = []
        session.retry()
        for topic_id, index in list(session.partitions):
            share = FetchedShare(topic_id=topic_id, partition=index)
            shares.append(share)
            topic = self._partitions.topic_name(topic_id)
            if topic is None:
                share.failure = Outcome(ErrorCode.UNKNOWN_TOPIC_ID, "this broker knows no topic with this id")
            elif not may_read(topic):
                share.failure = NOT_READABLE
            elif (partition := self._partitions.get(topic, index)) is None:
                share.failure = Outcome(*describe(self._partitions.missing(topic, index)))
            else:
                key = SharePartitionKey(request.group, topic_id, index)
                share.delivery = self._share.deliveries.open(key, partition)
            await context.checkpoint()
        return in_turns(shares, request.epoch)

    # -- ShareAcknowledge --

    async def acknowledge(self, request: ShareAcknowledgeRequest, context: Context) -> ShareAcknowledgeResponse:
        """Acknowledge records, and wait until that is stored."""
        self._check(request)
        sessions = self._share.sessions
        if request.epoch == INITIAL_EPOCH:
            message = "a share session begins with a fetch, not with acknowledgements"
            raise ShareSessionError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, message)
        session = sessions.find(request.group, request.member_id, request.epoch)
        if request.epoch != FINAL_EPOCH:
            session.advance()
        acknowledged = await self._acknowledged(request, context)
        results = await acknowledged.results(context)
        if request.epoch == FINAL_EPOCH:
            sessions.close(session)
        response = ShareAcknowledgeResponse(
            lock_timeout_ms=self._share.deliveries.rules(request.group).lock_ms, partitions=tuple(results)
        )
        return self._with_leaders(response, context.session)

    # -- both --

    def _check(self, request: ShareFetchRequest | ShareAcknowledgeRequest) -> None:
        """Raise RequestError if share groups are not enabled, or the member id is impossible."""
        if not self._is_enabled():
            message = "share groups (KIP-932) need the feature share.version at level 1"
            raise RequestError(ErrorCode.UNSUPPORTED_VERSION, message)
        if not 0 < len(request.member_id) <= MAX_MEMBER_ID:
            raise RequestError(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")

    def _rights(self, group: str, context: Context) -> MayRead | None:
        """Return whether the sender may read a topic; None if it may not read the group any more."""
        if self._authorizer is not None and not Access(self._authorizer, context.session).group(Operation.READ, group):
            return None
        return self._may_read(context)

    def _may_read(self, context: Context) -> MayRead:
        """Return whether the sender may read a topic."""
        if self._authorizer is None:
            return lambda _: True
        access = Access(self._authorizer, context.session)
        return lambda topic: access.topic(Operation.READ, topic)

    async def _acknowledged(
        self, request: ShareFetchRequest | ShareAcknowledgeRequest, context: Context
    ) -> Acknowledged:
        deliveries = self._share.deliveries
        return await acknowledge(request, context, deliveries, self._partitions, self._may_read(context))

    def _with_leaders(self, response: R, session: Session) -> R:
        """Add the leaders of partitions that this broker does not lead to a response."""
        wrong = [each for each in response.partitions if each.error in _LED_ELSEWHERE]
        if self._leaders is None or not wrong:
            return response
        names = self._partitions.topic_name
        leaders = self._leaders.of([(names(each.topic_id) or "", each.partition) for each in wrong])
        named: Iterable[Any] = [
            each
            if (leader := leaders.get((names(each.topic_id) or "", each.partition))) is None
            else replace(each, leader_id=leader.leader, leader_epoch=leader.leader_epoch)
            for each in response.partitions
        ]
        nodes = self._leaders.nodes({leader.leader for leader in leaders.values()}, session)
        return replace(response, partitions=tuple(named), nodes=nodes)


def _check_renewal(request: ShareFetchRequest) -> None:
    """Raise RequestError if a request that renews locks also fetches, which could take longer than the locks."""
    limits = {
        "maxBytes": request.max_bytes,
        "minBytes": request.min_bytes,
        "maxRecords": request.max_records,
        "maxWaitMs": request.max_wait_ms,
    }
    wrong = [f"{name} must be set to 0, " for name, value in limits.items() if value != 0]
    if wrong:
        raise RequestError(ErrorCode.INVALID_REQUEST, "".join(wrong) + "if isRenewAck is true.")


def _each(forgotten: Iterable[ForgottenSharePartitions]) -> Iterable[PartitionById]:
    for topic in forgotten:
        for partition in topic.partitions:
            yield topic.topic_id, partition

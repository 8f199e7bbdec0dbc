"""Explain how a fetch would be served from the files of a log (native protocol). See `broker.log.reads.explain`."""

from collections.abc import Mapping

import trio

from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import RequestError
from warmlog.broker.api.handler import Handler
from warmlog.broker.log.errors import LogError
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.log.reads.explain import SEARCHES, LogSnapshot, explain_offset, explain_time
from warmlog.broker.partitions.partitions import Partitions
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.explanation import Explanation
from warmlog.protocol.native.explain import ExplainRequest

MAX_EXPLANATIONS = 1  # concurrent lookups: each may read a whole segment, and none is urgent
MAX_ATTEMPTS = 4  # attempts while segments are rolled or removed


class ExplainApi:
    """Answers explain in a worker thread, since it may read from disk."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._threads = trio.CapacityLimiter(MAX_EXPLANATIONS)

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handler by API."""
        return {ExplainRequest.api: self._explain}

    async def _explain(self, request: ExplainRequest, _: Context) -> Explanation:
        if (request.offset is None) == (request.timestamp is None):
            raise RequestError(ErrorCode.INVALID_REQUEST, "explain: give either an offset or a timestamp")
        if request.timestamp is not None and request.timestamp < 0:
            raise RequestError(ErrorCode.INVALID_REQUEST, "explain: the timestamp must not be negative")
        partition = self._partitions.require(request.topic, request.partition)
        return await self._answer(partition.log, request)

    async def _answer(self, log: PartitionLog, request: ExplainRequest) -> Explanation:
        """Explain from a snapshot of the log; retry if its segments change in the meantime."""
        for attempt in range(1, MAX_ATTEMPTS + 1):
            snapshot = log.reads.snapshot()
            try:
                explained = await trio.to_thread.run_sync(_explained, snapshot, request, limiter=self._threads)
            except (OSError, LogError):
                if attempt == MAX_ATTEMPTS or not log.reads.has_changed(snapshot):
                    raise
            else:
                if attempt == MAX_ATTEMPTS or not log.reads.has_changed(snapshot):
                    return explained
        raise AssertionError("the last attempt raises or returns")


def _explained(snapshot: LogSnapshot, request: ExplainRequest) -> Explanation:
    searches = SEARCHES if request.plain else ()
    if request.timestamp is not None:
        return explain_time(snapshot, request.timestamp, searches=searches)
    assert request.offset is not None, "one of the two is given"
    return explain_offset(snapshot, request.offset, searches=searches)

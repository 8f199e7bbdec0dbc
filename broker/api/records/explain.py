"""Explain: the way of a fetch through the files of a log (native protocol). See `broker.log.explain`."""

from collections.abc import Mapping

import msgspec
import trio

from broker.api.context import Context
from broker.api.errors import RequestError
from broker.api.handler import Handler
from broker.log.errors import LogError
from broker.log.explain import SEARCHES, LogSnapshot, explain_offset, explain_time
from broker.log.explanation import Explanation
from broker.log.partition_log import PartitionLog
from broker.partitions.partitions import Partitions
from protocol.errors import ErrorCode
from protocol.native.explain import ExplainRequest, ExplainResponse

MAX_EXPLANATIONS = 1  # at once: nobody is in a hurry, and each may read a whole segment
MAX_LOOKS = 4  # while segments come and go


class ExplainApi:
    """Answers explain, in a worker: it reads from the disk what is not in memory."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._threads = trio.CapacityLimiter(MAX_EXPLANATIONS)

    def handlers(self) -> Mapping[str, Handler]:
        """By API."""
        return {ExplainRequest.api: self._explain}

    async def _explain(self, request: ExplainRequest, _: Context) -> ExplainResponse:
        if (request.offset is None) == (request.timestamp is None):
            raise RequestError(ErrorCode.INVALID_REQUEST, "explain: an offset or a timestamp, one of the two")
        if request.timestamp is not None and request.timestamp < 0:
            raise RequestError(ErrorCode.INVALID_REQUEST, "explain: there is no record of a time before 1970")
        partition = self._partitions.require(request.topic, request.partition)
        found = await self._look(partition.log, request)
        return msgspec.convert(found, ExplainResponse, from_attributes=True)

    async def _look(self, log: PartitionLog, request: ExplainRequest) -> Explanation:
        """What is seen in the log as it is: where segments change under the look, it is another one's files."""
        for attempt in range(1, MAX_LOOKS + 1):
            snapshot = log.snapshot()
            try:
                found = await trio.to_thread.run_sync(_explained, snapshot, request, limiter=self._threads)
            except (OSError, LogError):
                if attempt == MAX_LOOKS or not log.has_changed(snapshot):
                    raise
            else:
                if attempt == MAX_LOOKS or not log.has_changed(snapshot):
                    return found
        raise AssertionError("the last look raises or returns")


def _explained(snapshot: LogSnapshot, request: ExplainRequest) -> Explanation:
    searches = SEARCHES if request.plain else ()
    if request.timestamp is not None:
        return explain_time(snapshot, request.timestamp, searches=searches)
    assert request.offset is not None, "one of the two is given"
    return explain_offset(snapshot, request.offset, searches=searches)

"""Explain how a fetch would be served from a log's files (native protocol only); the response is an `Explanation`."""

from typing import ClassVar

from warmlog.protocol.request import Int32, Int64, Value


class ExplainRequest(Value, frozen=True, kw_only=True, gc=False):
    """Explain how an offset, or the first record at or after a timestamp (ms), would be found. Set one of the two.

    `plain` also explains a plain binary search of the indexes.
    """

    api: ClassVar[str] = "explain"
    topic: str
    partition: Int32
    offset: Int64 | None = None
    timestamp: Int64 | None = None
    plain: bool = False

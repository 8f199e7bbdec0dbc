"""The client: produce to a broker and read from it, on asyncio, on trio, or blocking.

Stands on anyio and on `protocol`; knows nothing of the broker's own code. Where to read: `client` (what users see),
`producer` -> `batches` -> `sender` -> `lane` (records in), `stream` -> `fetching` (records out), both over `cluster`
(who leads what) and `connection` (requests and replies) -> `wire` (the socket). `group_stream` -> `membership` share
the partitions of a topic with the other members of a group. `blocking` and `blocking_group` put a blocking face on it.
"""

from warmlog.client.batches import Delivery, RecordMetadata
from warmlog.client.blocking import Client
from warmlog.client.client import AsyncClient, connect
from warmlog.client.errors import (
    BrokerError,
    BufferFullError,
    ClosedError,
    ConnectError,
    ConnectionLostError,
    GroupMovedOnError,
    GroupNotEmptyError,
    OffsetOutOfRangeError,
    RequestTimeoutError,
    TopicExistsError,
    UnknownGroupError,
    UnknownTopicError,
    WarmlogError,
)
from warmlog.client.group_stream import GroupBatchStream, GroupRecordStream
from warmlog.client.producer import Message, PartitionSummary, Summary
from warmlog.client.settings import Settings
from warmlog.client.stream import BatchStream, ConsumedRecord, RecordStream

__all__ = [
    "AsyncClient",
    "BatchStream",
    "BrokerError",
    "BufferFullError",
    "Client",
    "ClosedError",
    "ConnectError",
    "ConnectionLostError",
    "ConsumedRecord",
    "Delivery",
    "GroupBatchStream",
    "GroupMovedOnError",
    "GroupNotEmptyError",
    "GroupRecordStream",
    "Message",
    "OffsetOutOfRangeError",
    "PartitionSummary",
    "RecordMetadata",
    "RecordStream",
    "RequestTimeoutError",
    "Settings",
    "Summary",
    "TopicExistsError",
    "UnknownGroupError",
    "UnknownTopicError",
    "WarmlogError",
    "connect",
]

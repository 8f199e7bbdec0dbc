"""The Python client: produce, consume and administer over the native protocol; on asyncio, on trio, or blocking.

Start with `client` (what `connect` returns); `blocking` is the same from a plain thread. Below them: `producing`,
`consuming`, `groups`, `transactions`, and `connection` with cluster metadata. Depends on anyio and `protocol`, never
on `broker`.
"""

from warmlog.client.blocking import Client
from warmlog.client.client import AsyncClient, connect
from warmlog.client.consuming.stream import BatchStream, ConsumedRecord, RecordStream
from warmlog.client.errors import (
    BrokerError,
    BufferFullError,
    ClosedError,
    ConnectError,
    ConnectionLostError,
    GroupMovedOnError,
    GroupNotEmptyError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    RequestTimeoutError,
    TopicExistsError,
    UnknownGroupError,
    UnknownTopicError,
    WarmlogError,
)
from warmlog.client.groups.group_stream import GroupBatchStream, GroupRecordStream
from warmlog.client.producing.batches import Delivery, RecordMetadata
from warmlog.client.producing.producer import Message, PartitionSummary, Summary
from warmlog.client.settings import Settings
from warmlog.client.transactions.admin import OpenTransaction
from warmlog.client.transactions.blocking import BlockingTransaction
from warmlog.client.transactions.transaction import Transaction

__all__ = [
    "AsyncClient",
    "BatchStream",
    "BlockingTransaction",
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
    "OpenTransaction",
    "PartitionSummary",
    "ProducerFencedError",
    "RecordMetadata",
    "RecordStream",
    "RequestTimeoutError",
    "Settings",
    "Summary",
    "TopicExistsError",
    "Transaction",
    "UnknownGroupError",
    "UnknownTopicError",
    "WarmlogError",
    "connect",
]

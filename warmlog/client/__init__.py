"""The Python client: produce, consume and administer over the native protocol; on asyncio, on trio, or blocking.

Start with `client` (the object that `connect` returns); `blocking` offers the same to plain threads. They are built on
`producing`, `consuming`, `groups`, `transactions`, and `connection` with cluster metadata. This package depends on
anyio and `protocol`, never on `broker`.
"""

from warmlog.client.blocking import Client
from warmlog.client.client import AsyncClient, connect
from warmlog.client.connection.cluster import Topic
from warmlog.client.consuming.record_stream import RecordStream
from warmlog.client.consuming.stream import BatchStream, ConsumedRecord
from warmlog.client.consuming.subscription import IsolationName, OutOfRange, Start
from warmlog.client.errors import (
    BrokerError,
    BufferFullError,
    ClosedError,
    ConnectError,
    ConnectionLostError,
    GroupMovedOnError,
    GroupNotEmptyError,
    JobLostError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    RequestTimeoutError,
    TopicExistsError,
    UnknownGroupError,
    UnknownTopicError,
    WarmlogError,
)
from warmlog.client.formats import BYTES, JSON, TEXT, Format, Serializer, TypedRecord
from warmlog.client.groups.blocking_stream import BlockingGroupStream
from warmlog.client.groups.group_stream import GroupBatchStream, GroupRecordStream
from warmlog.client.groups.member_options import GroupProtocol, Topics
from warmlog.client.groups.rebalance_callbacks import RebalanceCallback
from warmlog.client.producing.batches import Delivery, RecordMetadata
from warmlog.client.producing.handoff import BlockingDelivery
from warmlog.client.producing.producer import Message, PartitionSummary, Producible, Summary
from warmlog.client.settings import Acks, Compression, Settings
from warmlog.client.share.blocking_stream import BlockingJob, BlockingReceipt, BlockingShareStream
from warmlog.client.share.job import Job, Receipt
from warmlog.client.share.options import ShareStart
from warmlog.client.share.stream import ShareStream
from warmlog.client.tokens import ClientCredentials, TokenFile
from warmlog.client.transactions.admin import OpenTransaction
from warmlog.client.transactions.blocking import BlockingTransaction
from warmlog.client.transactions.transaction import Transaction

__all__ = [
    "BYTES",
    "JSON",
    "TEXT",
    "Acks",
    "AsyncClient",
    "BatchStream",
    "BlockingDelivery",
    "BlockingGroupStream",
    "BlockingJob",
    "BlockingReceipt",
    "BlockingShareStream",
    "BlockingTransaction",
    "BrokerError",
    "BufferFullError",
    "Client",
    "ClientCredentials",
    "ClosedError",
    "Compression",
    "ConnectError",
    "ConnectionLostError",
    "ConsumedRecord",
    "Delivery",
    "Format",
    "GroupBatchStream",
    "GroupMovedOnError",
    "GroupNotEmptyError",
    "GroupProtocol",
    "GroupRecordStream",
    "IsolationName",
    "Job",
    "JobLostError",
    "Message",
    "OffsetOutOfRangeError",
    "OpenTransaction",
    "OutOfRange",
    "PartitionSummary",
    "ProducerFencedError",
    "Producible",
    "RebalanceCallback",
    "Receipt",
    "RecordMetadata",
    "RecordStream",
    "RequestTimeoutError",
    "Serializer",
    "Settings",
    "ShareStart",
    "ShareStream",
    "Start",
    "Summary",
    "TokenFile",
    "Topic",
    "TopicExistsError",
    "Topics",
    "Transaction",
    "TypedRecord",
    "UnknownGroupError",
    "UnknownTopicError",
    "WarmlogError",
    "connect",
]

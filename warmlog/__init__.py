"""warmlog: a log broker with Kafka's storage format, and its Python client.

    from warmlog import connect                       # on asyncio and on trio
    async with connect("127.0.0.1:9091") as client:
        await client.produce("orders", key=b"k", value=b"v")
        async for record in client.consume("orders", start="beginning"): ...

    from warmlog import Client                        # the same, blocking
    from warmlog.testing import Broker                # a real broker inside a test

Importing this package loads nothing else: each name below is loaded at its first use, because the command line and the
test fixture live in this package too and rarely need the client.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from warmlog import compilation

compilation.choose()

from warmlog.protocol.version import VERSION  # noqa: E402  what is imported from here on was chosen

if TYPE_CHECKING:
    from warmlog.client import (
        BYTES,
        JSON,
        TEXT,
        AsyncClient,
        BatchStream,
        BlockingDelivery,
        BlockingGroupStream,
        BlockingJob,
        BlockingReceipt,
        BlockingShareStream,
        BlockingTransaction,
        BrokerError,
        BufferFullError,
        Client,
        ClosedError,
        ConnectError,
        ConnectionLostError,
        ConsumedRecord,
        Delivery,
        Format,
        GroupBatchStream,
        GroupMovedOnError,
        GroupNotEmptyError,
        GroupRecordStream,
        Job,
        JobLostError,
        Message,
        OffsetOutOfRangeError,
        OpenTransaction,
        PartitionSummary,
        ProducerFencedError,
        Receipt,
        RecordMetadata,
        RecordStream,
        RequestTimeoutError,
        Serializer,
        Settings,
        ShareStream,
        Summary,
        Topic,
        TopicExistsError,
        Transaction,
        TypedRecord,
        UnknownGroupError,
        UnknownTopicError,
        WarmlogError,
        connect,
    )

__version__ = VERSION

__all__ = [
    "BYTES",
    "JSON",
    "TEXT",
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
    "ClosedError",
    "ConnectError",
    "ConnectionLostError",
    "ConsumedRecord",
    "Delivery",
    "Format",
    "GroupBatchStream",
    "GroupMovedOnError",
    "GroupNotEmptyError",
    "GroupRecordStream",
    "Job",
    "JobLostError",
    "Message",
    "OffsetOutOfRangeError",
    "OpenTransaction",
    "PartitionSummary",
    "ProducerFencedError",
    "Receipt",
    "RecordMetadata",
    "RecordStream",
    "RequestTimeoutError",
    "Serializer",
    "Settings",
    "ShareStream",
    "Summary",
    "Topic",
    "TopicExistsError",
    "Transaction",
    "TypedRecord",
    "UnknownGroupError",
    "UnknownTopicError",
    "WarmlogError",
    "__version__",
    "connect",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module("warmlog.client"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]

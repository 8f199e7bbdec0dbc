"""A transaction that ended while it was written: how a broker says so, and what to say."""

from warmlog.protocol.errors import ErrorCode

ENDED = "the transaction was open for longer than transactionTimeoutMs, or another attempt at the task has begun"
WRITTEN_AGAIN = "a query writes it again when it is started again"
ENDED_CODES = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)

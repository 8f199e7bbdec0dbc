"""Error codes and messages for a transaction that ended while its task was still writing."""

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

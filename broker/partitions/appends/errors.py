"""The errors of appends with acks=all. Not compiled: mypyc would make `code` an attribute of instances only."""

from warmlog.protocol.errors import ErrorCode, ProtocolError


class NotLeaderError(ProtocolError):
    """Another broker leads the partition, or none."""

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER


class EarlierBatchRefusedError(ProtocolError):
    """An earlier batch of an idempotent producer is missing, probably refused; the producer sends both again.

    OUT_OF_ORDER_SEQUENCE_NUMBER would make librdkafka begin a new epoch and repeat in it batches that may be stored.
    """

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER


class NotEnoughReplicasError(ProtocolError):
    """The ISR is smaller than `min.insync.replicas`: nothing is appended."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS


class NotEnoughReplicasAfterAppendError(ProtocolError):
    """The records were appended, but the ISR became smaller than `min.insync.replicas` before the replicas had them."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


class ReplicasTooSlowError(ProtocolError):
    """The records were appended, but not replicated in time."""

    code = ErrorCode.REQUEST_TIMED_OUT

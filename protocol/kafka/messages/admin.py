"""Messages that only tools send.

DescribeLogDirs (1 to 5), AlterReplicaLogDirs (1 and 2), DescribeProducers (0).
"""

from warmlog.protocol.groups import TopicPartition
from warmlog.protocol.kafka.admin_values import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    BegunMove,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    LogDirTarget,
)
from warmlog.protocol.kafka.codec.schema import BOOLEAN, INT32, INT64, STRING, Array, Field, Struct, array, flat
from warmlog.protocol.kafka.messages.common import (
    ERROR_CODE,
    OPTIONAL_FAILURE,
    THROTTLE_TIME,
    refused,
    refused_partitions,
    since,
)
from warmlog.protocol.response import ErrorResponse
from warmlog.protocol.transaction_requests import (
    DescribedProducers,
    DescribeProducersRequest,
    DescribeProducersResponse,
)

LOG_DIRS_REQUEST = Struct(
    Field(
        "topics",
        flat(
            Field("topic", STRING),
            Field("partitions", Array(INT32), attr="partition"),
            into=TopicPartition,
        ),
        nullable=0,
        attr="partitions",
    ),
    into=DescribeLogDirsRequest,
)
LOG_DIRS_RESPONSE = Struct(
    THROTTLE_TIME,
    since(3, ERROR_CODE),
    Field(
        "results",
        array(
            ERROR_CODE,
            Field("log_dir", STRING, attr="path"),
            Field(
                "topics",
                flat(
                    Field("name", STRING, attr="topic"),
                    Field(
                        "partitions",
                        array(
                            Field("partition_index", INT32, attr="partition"),
                            Field("partition_size", INT64, attr="size"),
                            Field("offset_lag", INT64),
                            Field("is_future_key", BOOLEAN, attr="is_future"),
                        ),
                    ),
                ),
                attr="partitions",
            ),
            Field("total_bytes", INT64, since=4, default=-1),
            Field("usable_bytes", INT64, since=4, default=-1),
            Field("is_cordoned", BOOLEAN, since=5),
        ),
        attr="log_dirs",
    ),
)
failed_log_dirs = refused(DescribeLogDirsResponse)  # before version 3 it can only be empty

ALTER_DIRS_REQUEST = Struct(
    Field(
        "dirs",
        array(
            Field("path", STRING),
            Field(
                "topics",
                flat(
                    Field("name", STRING, attr="topic"),
                    Field("partitions", Array(INT32), attr="partition"),
                    into=TopicPartition,
                ),
                attr="partitions",
            ),
            into=LogDirTarget,
        ),
        attr="targets",
    ),
    into=AlterReplicaLogDirsRequest,
)
ALTER_DIRS_RESPONSE = Struct(
    THROTTLE_TIME,
    Field(
        "results",
        flat(
            Field("topic_name", STRING, attr="topic"),
            Field("partitions", array(Field("partition_index", INT32, attr="partition"), ERROR_CODE)),
        ),
        attr="partitions",
    ),
)


def failed_alter_dirs(request: AlterReplicaLogDirsRequest, error: ErrorResponse) -> AlterReplicaLogDirsResponse:
    """Refuse each move."""
    return AlterReplicaLogDirsResponse(
        partitions=tuple(
            [
                BegunMove(topic=one.topic, partition=one.partition, error=error.error)
                for target in request.targets
                for one in target.partitions
            ]
        )
    )


PRODUCERS_REQUEST = Struct(
    Field(
        "topics",
        flat(
            Field("name", STRING, attr="topic"),
            Field("partition_indexes", Array(INT32), attr="partition"),
            into=TopicPartition,
        ),
        attr="partitions",
    ),
    into=DescribeProducersRequest,
)
PRODUCERS_RESPONSE = Struct(
    THROTTLE_TIME,
    Field(
        "topics",
        flat(
            Field("name", STRING, attr="topic"),
            Field(
                "partitions",
                array(
                    Field("partition_index", INT32, attr="partition"),
                    *OPTIONAL_FAILURE,
                    Field(
                        "active_producers",
                        array(
                            Field("producer_id", INT64),
                            Field("producer_epoch", INT32),
                            Field("last_sequence", INT32, default=-1),
                            Field("last_timestamp", INT64, default=-1),
                            Field("coordinator_epoch", INT32),
                            Field("current_txn_start_offset", INT64, default=-1, attr="transaction_start_offset"),
                        ),
                        attr="producers",
                    ),
                ),
            ),
        ),
        attr="partitions",
    ),
)
failed_producers = refused_partitions(DescribeProducersResponse, DescribedProducers)

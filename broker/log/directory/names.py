"""The names of entries of a data directory besides partitions, and messages about them."""

import os

from warmlog.broker.log.directory.accepted_loss import ACCEPT_LOSS
from warmlog.broker.log.directory.checkpoint import (
    CLEAN_MARKER,
    CLEANER_POINTS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
)
from warmlog.broker.log.directory.identity import LOCK_FILE, META_PROPERTIES
from warmlog.broker.log.directory.receipt import RECEIPT_PREFIX
from warmlog.broker.log.io.directory_names import PartitionName

RESERVE = ".reserve"
CLUSTER_STATE = "warmlog-cluster.json"  # of a broker in a cluster; see `broker.clustered`
RUNS = "warmlog-runs.json"  # see `runs`
PROBE = ".probe"
METADATA_TOPIC = "__cluster_metadata"  # the log of a KRaft node, named like a partition but without a topic

_KNOWN_FILES = {
    LOCK_FILE,
    META_PROPERTIES,
    CLEAN_MARKER,
    RECOVERY_POINTS,
    LOG_STARTS,
    HIGH_WATERMARKS,
    CLEANER_POINTS,
    PROBE,
    RESERVE,
    "lost+found",  # in the root of a file system
    CLUSTER_STATE,
    RUNS,
    ACCEPT_LOSS,
}
_KNOWN_PREFIXES = ("metadata.sqlite", RECEIPT_PREFIX, "audit.jsonl")  # and journals of SQLite, and older audit logs


def is_known_name(name: str) -> bool:
    """Return whether this broker or Kafka's log layer creates entries of this name in a data directory."""
    return name.removesuffix(".tmp") in _KNOWN_FILES or name.startswith(_KNOWN_PREFIXES)


def is_foreign_directory(parsed: PartitionName | None) -> bool:
    """Return whether a directory of this name is neither a partition's nor one that a partition had."""
    return parsed is None or parsed.topic == METADATA_TOPIC


def reason_of(error: OSError, path: str) -> str:
    """Return why a data directory cannot be used, with the file that the error is about."""
    reason = error.strerror or str(error)
    name = error.filename
    if not isinstance(name, str) or not name.startswith(f"{path}/") or not os.access(path, os.R_OK | os.X_OK):
        return reason
    return f"{reason}: {name}"

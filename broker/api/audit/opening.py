"""Open the configured audit log."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from warmlog.broker.api.audit.audit_log import AuditLog
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.settings.settings import Settings
from warmlog.broker.start_errors import StartError

if TYPE_CHECKING:
    from warmlog.broker.api.audit.topic_appends import Brokers


def open_audit_log(
    settings: Settings,
    metrics: Metrics,
    partitions: Partitions,
    *,
    write: Callable[[], None],
    brokers: "Brokers | None",
) -> AuditLog | None:
    """Open the audit log; return None if none is configured. Raises StartError.

    `write` writes queued appends; `brokers` are the other brokers of a cluster.
    """
    path, topic = settings.warmlog_audit_file, None
    if settings.warmlog_audit_topic:
        if not path:
            raise StartError("warmlog.audit.topic: set warmlog.audit.file, too; the topic is a copy of the file")
        from warmlog.broker.api.audit.topic import AuditTopic  # imported only with an audit log
        from warmlog.broker.api.audit.topic_appends import TopicAppends

        appends = TopicAppends(partitions, write, brokers, settings)
        topic = AuditTopic(appends, metrics, Random())  # noqa: S311  # jitter
    if not path:
        return None
    size, files = settings.warmlog_audit_file_bytes, settings.warmlog_audit_file_count
    try:
        return AuditLog(Path(path), max_bytes=size, files=files, metrics=metrics, broker=settings.node_id, topic=topic)
    except OSError as error:
        raise StartError(f"warmlog.audit.file: {path}: {error.strerror}") from None

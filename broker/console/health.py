"""An operator's overview: current conditions, stalls, recoveries, moves, mirrors and replicas.

Conditions have the names of the corresponding alerts in docs/alerts.md. Alerts that need a history of metrics are left
to Prometheus.
"""

import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.console.values import (
    AlertForm,
    BrokersForm,
    DiskForm,
    Health,
    MoveForm,
    PartitionCondition,
    StallForm,
)
from warmlog.broker.console.visit import ConsoleError, Visit
from warmlog.broker.log.directory.receipt import ReceiptError, read_receipts
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.metadata.topic import Topic
from warmlog.broker.security.acls import Operation
from warmlog.protocol.native.mirrors import DescribeMirrorRequest

MAX_CONDITIONS: Final = 100
MAX_RECEIPTS: Final = 20
SMALL_SHARE: Final = 0.1  # free share of a file system
RECENT_MS: Final = 300_000
CRITICAL: Final = "critical"
WARNING: Final = "warning"
OFFLINE: Final = "offline"
LEADERLESS: Final = "no leader"
UNDER_REPLICATED: Final = "under-replicated"
FAILED: Final = "log failed"
UNREADABLE: Final = "log unreadable"
_ALERTS: Final = {
    OFFLINE: ("WarmlogDirectoryOffline", CRITICAL, "partitions are in data directories that are offline"),
    LEADERLESS: ("WarmlogLeaderless", CRITICAL, "partitions have no leader"),
    FAILED: ("WarmlogLogFailed", CRITICAL, "logs have failed and reject appends"),
    UNREADABLE: ("WarmlogLogUnreadable", CRITICAL, "logs could not be read since startup"),
    UNDER_REPLICATED: ("WarmlogUnderReplicated", WARNING, "partitions lack in-sync replicas"),
}


async def health(visit: Visit) -> Health:
    """Return those parts of the broker's health that the sender may see."""
    tools = visit.tools
    conditions: list[PartitionCondition] = []
    counts: dict[str, int] = {}
    for topic in tools.partitions.topics():
        if visit.may_topic(Operation.DESCRIBE, topic.name):
            for each in _conditions(visit, topic):
                counts[each.condition] = counts.get(each.condition, 0) + 1
                if len(conditions) < MAX_CONDITIONS:
                    conditions.append(each)
        await visit.context.checkpoint()
    sees_cluster = visit.may_cluster(Operation.DESCRIBE)
    disks, receipts = (await visit.in_thread(partial(_measure, visit))) if sees_cluster else ((), None)
    stalls = tuple(tools.guard.recent) if sees_cluster else ()
    now = tools.clock_ms()
    alerts = [
        AlertForm(name=name, severity=severity, summary=f"{counts[condition]} {summary}")
        for condition, (name, severity, summary) in _ALERTS.items()
        if condition in counts
    ]
    alerts += [
        AlertForm(name="WarmlogDiskNearlyFull", severity=WARNING, summary=f"{each.path}: {each.free:,} bytes are free")
        for each in disks
        if each.free < SMALL_SHARE * each.size
    ]
    recent = [each for each in stalls if each.at_ms > now - RECENT_MS]
    if recent:
        longest = max(each.seconds for each in recent)
        text = f"{len(recent)} stalls in the last five minutes, the longest of {1000 * longest:.0f} ms"
        alerts.append(AlertForm(name="WarmlogLoopStalls", severity=WARNING, summary=text))
    return Health(
        alerts=tuple(alerts),
        stalls=tuple(
            StallForm(at_ms=each.at_ms, milliseconds=round(1000 * each.seconds, 1), api=each.api, stack=each.stack)
            for each in reversed(stalls)
        ),
        partitions=tuple(conditions),
        all_partitions=sum(counts.values()),
        receipts=receipts,
        moves=_moves(visit) if sees_cluster else None,
        mirror=await _mirror(visit) if sees_cluster else None,
        brokers=_brokers(visit) if sees_cluster else None,
    )


def _conditions(visit: Visit, topic: Topic) -> Iterator[PartitionCondition]:
    """Yield the conditions of a topic's partitions."""
    partitions, image = visit.tools.partitions, visit.tools.node.image
    condition = partial(PartitionCondition, topic=topic.name)
    for index in range(topic.partitions):
        if partitions.is_offline(topic.name, index):
            detail = str(partitions.missing(topic.name, index))
            yield condition(partition=index, condition=OFFLINE, detail=detail)
        local = partitions.local(topic.name, index)
        if local is not None and local.log.failed:
            yield condition(partition=index, condition=FAILED, detail=local.log.failure or "")
        if local is not None and local.is_unreadable:
            yield condition(partition=index, condition=UNREADABLE, detail="the broker's log says why")
        if not visit.tools.node.is_alone:
            yield from _replica_conditions(visit, image, topic, index)


def _replica_conditions(visit: Visit, image: ClusterImage, topic: Topic, index: int) -> Iterator[PartitionCondition]:
    info = visit.tools.partitions.catalog.partition(topic, index)
    condition = partial(PartitionCondition, topic=topic.name, partition=index)
    missing = [broker for broker in info.replicas if broker not in info.in_sync]
    if info.leader < 0:
        yield condition(condition=LEADERLESS, detail=f"replicas on {_listed(info.replicas)}")
    if missing:
        away = [broker for broker in missing if broker not in image.brokers]
        text = f"broker {_listed(missing)} of {_listed(info.replicas)} not in sync"
        yield condition(condition=UNDER_REPLICATED, detail=text + (f"; {_listed(away)} not registered" if away else ""))


def _listed(brokers: Sequence[int]) -> str:
    return ", ".join(map(str, brokers))


def _measure(visit: Visit) -> tuple[list[DiskForm], tuple[Any, ...]]:
    """Return the file systems, and the newest receipts, newest first. Call it in a thread. Raises OSError."""
    disks, receipts = [], list[Any]()
    for path in visit.tools.partitions.data_directories:
        usage = shutil.disk_usage(path)
        disks.append(DiskForm(path=path, size=usage.total, free=usage.free))
        for each in read_receipts(Disk(), path):
            if isinstance(each, ReceiptError):
                receipts.append({"started_at": "", "reason": str(each), "directory": path})
            else:
                receipts.append(msgspec.to_builtins(each) | {"directory": path})
    receipts.sort(key=lambda each: str(each["started_at"]), reverse=True)
    return disks, tuple(receipts[:MAX_RECEIPTS])


def _moves(visit: Visit) -> tuple[MoveForm, ...]:
    moves = visit.tools.moves
    return tuple(
        MoveForm(topic=each.partition.topic, partition=each.partition.index, to=str(directory.path), lag=each.lag)
        for directory in visit.tools.directories.live
        for each in moves.to(directory)
    )


async def _mirror(visit: Visit) -> Any:
    """Return the output of `warmlog mirror status --json`; None without a mirror."""
    try:
        mirror = await visit.ask(DescribeMirrorRequest())
    except ConsoleError:
        return None
    return msgspec.to_builtins(mirror) if mirror.source or mirror.topics else None


def _brokers(visit: Visit) -> BrokersForm:
    image = visit.tools.node.image
    changes = visit.tools.metrics.read("warmlog_replication_isr_changes_total")
    return BrokersForm(
        registered=tuple(sorted(image.brokers)),
        missing=tuple(sorted(set(image.known) - set(image.brokers))),
        controller=None if image.controller is None else image.controller.broker,
        isr_changes={labels[0]: int(count) for labels, count in changes},
    )

"""The status strip of the page, about the whole broker. All callers share an answer for a second."""

import shutil
from collections import Counter
from functools import partial

from warmlog.broker.console.values import DiskForm, HistogramForm, Status, TotalsForm
from warmlog.broker.console.visit import Tools, Visit
from warmlog.broker.metrics.families import SeriesHistogram
from warmlog.broker.security.acls import Operation
from warmlog.protocol.version import VERSION


async def status(visit: Visit) -> Status:
    """Return the status strip."""
    tools = visit.tools
    return Status(
        version=VERSION,
        cluster_id=tools.cluster_id,
        node_id=tools.node.id,
        brokers=len(tools.node.image.brokers),
        now_ms=tools.clock_ms(),
        user=str(visit.session.principal) if visit.may_write else None,
        may_write=visit.may_write,
        power_cut=_power_cut(tools) if visit.may_cluster(Operation.DESCRIBE_CONFIGS) else None,
        totals=await _totals(visit) if visit.may_cluster(Operation.DESCRIBE) else None,
    )


def _power_cut(tools: Tools) -> str:
    return tools.power_cut.removeprefix("power cut: ")


async def _totals(visit: Visit) -> TotalsForm:
    tools, metrics = visit.tools, visit.tools.metrics
    totals = tools.totals
    await totals.count(tools.partitions, tools.node, visit.context)
    disks, faults = await visit.in_thread(partial(_measure, tools, tools.partitions.data_directories))
    produces = [each for (api, _), each in metrics.request_seconds.children() if api == "produce"]
    return TotalsForm(
        topics=tools.partitions.topic_count,
        partitions=len(tools.partitions),
        log_bytes=totals.logs.log_bytes,
        unsynced_bytes=totals.logs.unflushed_bytes,
        under_replicated=totals.under_replicated,
        offline_partitions=tools.partitions.offline_count,
        failed_logs=totals.failed,
        cold_reads=sum(metrics.cold_read_seconds.counts),
        cold_read_bytes=int(metrics.cold_read_bytes.value),
        loop_faults=faults,
        loop_stalls=tools.guard.held,
        loop_delay=_form(metrics.loop_stall),
        produce=_form(*produces),
        disks=tuple(disks),
    )


def _measure(tools: Tools, paths: list[str]) -> tuple[list[DiskForm], dict[str, int]]:
    """Return the file systems, and the page faults of the event loop."""
    disks = []
    for path in paths:
        usage = shutil.disk_usage(path)
        disks.append(DiskForm(path=path, size=usage.total, free=usage.free))
    return disks, {f"{kind} {where}": count for (kind, where), count in tools.page_faults.rows()}


def _form(*histograms: SeriesHistogram) -> HistogramForm:
    """Return the sum of histograms with the same bounds."""
    if not histograms:
        return HistogramForm(bounds=(), counts=())
    sums = Counter[int]()
    for each in histograms:
        sums.update(dict(enumerate(each.counts)))
    bounds = tuple(histograms[0].bounds)
    return HistogramForm(bounds=bounds, counts=tuple(sums[index] for index in range(len(bounds) + 1)))

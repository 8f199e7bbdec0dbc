"""Plot an audit of a table: what became of the offsets of each partition.

A table's audit counts offsets by partition, so bars are partitions, where the audit of directories has hours.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from warmlog.pipeline.jobs.audit_plot import BAD, GOOD, MAX_ROWS, WIDTH_INCHES
from warmlog.pipeline.jobs.table_audit import TableAudit
from warmlog.pipeline.jobs.table_stretches import PartitionProof

SOUND = {
    "in_log": "tab:blue",
    "by_receipt": "tab:cyan",
    "earlier": "lightsteelblue",
    "superseded": "lightblue",
    "deletes": "rosybrown",
    "audited_before": "tab:olive",
    "dead_letters": "tab:brown",
    "damaged": "darkorange",
    "empty": "lightgray",
    "lost": "darkgray",
    "unaccounted": "dimgray",
    "behind": "palegreen",
}
FAULTS = {
    "missing": "tab:orange",
    "twice": "tab:purple",
    "altered": "tab:red",
    "foreign": "tab:pink",
    "stale": "tab:green",
    "undead": "black",
    "unproved": "gold",
}


def plot_table_audit(audit: TableAudit, path: Path) -> None:
    """Plot an audit to a file. Raises OSError."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    rows = audit.partitions[:MAX_ROWS]
    more = len(audit.partitions) - len(rows)
    has_faults = any(_count(row, name) for row in audit.partitions for name in FAULTS)
    panels = [("offsets", SOUND), *([("offsets with faults", FAULTS)] if has_faults else [])]
    height = 1.4 + 0.3 * len(rows)
    with mpl.rc_context({"svg.fonttype": "none"}):  # keep text selectable and searchable
        figure, axes = plt.subplots(
            len(panels), 1, figsize=(WIDTH_INCHES, 1.4 + height * len(panels)), layout="constrained", squeeze=False
        )
        for (axis,), (label, kinds) in zip(axes, panels, strict=True):
            _draw(axis, rows, kinds, f"{label}{f'; {more:,} more partitions are not drawn' if more else ''}")
        topics = sorted({partition.topic for partition in audit.partitions})
        figure.suptitle(f"Audit of {', '.join(topics[:5])}{' …' if len(topics) > 5 else ''} in {audit.table}")
        color = BAD if audit.findings else GOOD
        figure.supxlabel(verdict(audit), x=0.01, ha="left", color=color, fontsize=11)
        figure.savefig(path)
    plt.close(figure)


def verdict(audit: TableAudit) -> str:
    """Summarize the findings in one sentence."""
    rows = sum(partition.proved.rows for partition in audit.partitions)
    if not audit.findings:
        return f"Nothing wrong: {rows:,} rows"
    counts = [f"{count:,} {name}" for name in FAULTS if (count := sum(_count(each, name) for each in audit.partitions))]
    findings = f"{len(audit.findings):,} finding{'s' if len(audit.findings) > 1 else ''} in {rows:,} rows"
    return f"{findings}: {', '.join(counts)}" if counts else findings


def _draw(axis: Any, partitions: Sequence[PartitionProof], kinds: dict[str, str], label: str) -> None:
    """Draw a stacked bar for each partition."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    left = [0] * len(partitions)
    for name, color in kinds.items():
        sizes = [_count(partition, name) for partition in partitions]
        if any(sizes):
            axis.barh(range(len(partitions)), sizes, left=left, color=color, label=name.replace("_", " "))
        left = [before + size for before, size in zip(left, sizes, strict=True)]
    axis.set_yticks(range(len(partitions)), [f"{each.topic}-{each.partition}" for each in partitions])
    axis.set_ylim(len(partitions) - 0.4, -0.6)
    axis.set_xlim(0, max(left, default=0) * 1.05 or 1)
    axis.set_xlabel(label)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    if any(left):
        axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=5, frameon=False)


def _count(partition: PartitionProof, name: str) -> int:
    return int(getattr(partition.proved if name in partition.proved.COUNTS else partition, name))

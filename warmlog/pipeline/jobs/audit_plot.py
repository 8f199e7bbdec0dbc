"""An audit as a picture: records by hour, and where something is wrong.

Owns: the look of it. Must not know: how the numbers were found. Matplotlib draws it, which `warmlog[spark]` brings;
it is loaded when a plot is asked for.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.jobs.audit import PartitionAudit

FORMATS = (".svg", ".png")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
WIDTH_INCHES = 10.0
ROW_INCHES = 0.3
MAX_ROWS = 60  # more of them are no longer told apart


def check_plot(path: Path) -> None:
    """Raise PipelineError where a plot cannot be drawn into this file."""
    if path.suffix not in FORMATS:
        raise PipelineError(f"{path}: a plot is {' or '.join(FORMATS)}")
    try:
        import matplotlib as _  # noqa: F401, ICN001
    except ImportError:
        raise PipelineError("a plot needs matplotlib: pip install 'warmlog[spark]'") from None


def plot_audit(partitions: Sequence[PartitionAudit], path: Path) -> None:
    """Draw it. Raises OSError."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    rows = partitions[:MAX_ROWS]
    figure, (top, bottom) = plt.subplots(
        2,
        1,
        sharex=True,
        figsize=(WIDTH_INCHES, 4 + ROW_INCHES * len(rows)),
        height_ratios=(3, 1 + ROW_INCHES * len(rows)),
        layout="constrained",
    )
    _draw_hours(top, partitions)
    _draw_partitions(bottom, rows)
    figure.autofmt_xdate()
    figure.savefig(path)
    plt.close(figure)


def _draw_hours(axes: Any, partitions: Sequence[PartitionAudit]) -> None:
    """Above: a bar an hour, of records and of offsets that are none."""
    totals: dict[int, list[int]] = {}
    for number, hour in ((hour.hour, hour) for one in partitions for hour in one.hours if hour.hour is not None):
        bar = totals.setdefault(number, [0, 0, 0])
        bar[0] += hour.records
        bar[1] += hour.compacted
        bar[2] += hour.missing + hour.duplicates + hour.damaged
    times = [EPOCH + number * HOUR for number in sorted(totals)]
    below = [0] * len(times)
    for at, (label, color) in enumerate(
        (("records", "tab:blue"), ("compacted", "tab:gray"), ("missing, duplicate, damaged", "tab:red"))
    ):
        heights = [totals[number][at] for number in sorted(totals)]
        if any(heights) or not at:
            axes.bar(times, heights, width=HOUR * 0.9, align="edge", bottom=below, label=label, color=color)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    axes.set_ylabel("offsets an hour")
    axes.legend(loc="upper left")


def _draw_partitions(axes: Any, partitions: Sequence[PartitionAudit]) -> None:
    """Below: a row a partition; the darker an hour, the more records; a red cross where something is wrong."""
    most = max((hour.records for one in partitions for hour in one.hours), default=0) or 1
    for row, one in enumerate(partitions):
        for hour in one.hours:
            if hour.hour is None:
                continue
            begin = EPOCH + hour.hour * HOUR
            shade = 0.15 + 0.85 * hour.records / most
            axes.barh(row, HOUR, left=begin, height=0.8, color="tab:blue", alpha=shade, linewidth=0)
            if hour.faults:
                axes.plot([begin + HOUR / 2], [row], "x", color="tab:red", markersize=9, markeredgewidth=2)
    axes.set_yticks(range(len(partitions)), [f"{one.topic}-{one.partition}" for one in partitions])
    axes.invert_yaxis()
    axes.set_xlabel("time of the records (UTC)")

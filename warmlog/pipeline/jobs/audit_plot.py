"""Plot an audit: the content of the log over time, and its faults.

Matplotlib, which comes with `warmlog[spark]`, is imported when a plot is drawn.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.jobs.audit import Audit, PartitionAudit
from warmlog.pipeline.jobs.audit_segment import Hour
from warmlog.pipeline.session import check_libraries

FORMATS = (".svg", ".png")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
WIDTH_INCHES = 11.0
MAX_ROWS = 40  # maximum rows of partitions; more would be illegible
MAX_BARS = 100  # maximum bars; more would be only a pixel or two wide
BAR_HOURS = {1: "hour", 6: "6 hours", 24: "day", 24 * 7: "week", 24 * 30: "30 days", 24 * 365: "year"}
HELD = {"records": "tab:blue", "markers": "tab:cyan", "compacted": "lightgray"}
FAULTS = {"missing": "tab:orange", "duplicates": "tab:purple", "damaged": "tab:red"}
NAMES = {"duplicates": "duplicate"}
GOOD, BAD = "tab:green", "tab:red"


def check_plot(path: Path) -> None:
    """Raise PipelineError if a plot cannot be written to this file."""
    if path.suffix not in FORMATS:
        raise PipelineError(f"{path}: a plot is {' or '.join(FORMATS)}")
    check_libraries("matplotlib")


def plot_audit(audit: Audit, path: Path) -> None:
    """Plot an audit to a file. Raises OSError."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    rows = audit.partitions[:MAX_ROWS]
    totals = _totals(audit.partitions)
    timed = [hour for partition in audit.partitions for hour in partition.hours if hour.hour is not None]
    has_faults = any(hour.faults for hour in timed)
    heights = [3.0, *([1.8] if has_faults else []), 0.8 + 0.28 * len(rows)]
    with mpl.rc_context({"svg.fonttype": "none"}):  # keep text selectable and searchable
        figure, panels = plt.subplots(
            len(heights),
            1,
            sharex=True,
            figsize=(WIDTH_INCHES, 1.4 + sum(heights)),
            height_ratios=heights,
            layout="constrained",
            squeeze=False,
        )
        axes = [row[0] for row in panels]
        width = bar_hours([hour.hour for hour in timed if hour.hour is not None])
        _draw_bars(axes[0], timed, HELD, width, "offsets")
        if has_faults:
            _draw_bars(axes[1], timed, FAULTS, width, "offsets with faults")
        _draw_partitions(axes[-1], rows, width, more=len(audit.partitions) - len(rows))
        topics = sorted({partition.topic for partition in audit.partitions})
        figure.suptitle(f"Audit of {', '.join(topics[:5])}{' …' if len(topics) > 5 else ''}", fontsize=14)
        axes[0].set_title(verdict(audit, totals), color=BAD if audit.finding_count else GOOD, loc="left", fontsize=11)
        figure.autofmt_xdate()
        figure.savefig(path)
    plt.close(figure)


def verdict(audit: Audit, totals: Hour) -> str:
    """Summarize the findings in one sentence."""
    offsets = sum(max(partition.end_offset - partition.first_offset, 0) for partition in audit.partitions)
    if not audit.finding_count:
        return f"Nothing wrong: {offsets:,} offsets accounted for"
    counts = [f"{count:,} {NAMES.get(name, name)}" for name in FAULTS if (count := getattr(totals, name))]
    findings = f"{audit.finding_count:,} finding{'s' if audit.finding_count > 1 else ''}"
    unknown = sum(hour.faults for partition in audit.partitions for hour in partition.hours if hour.hour is None)
    where = f"; {unknown:,} of them at unknown times, not drawn" if unknown else ""
    if not counts:
        return f"{findings} in {offsets:,} offsets, all accounted for"
    return f"{findings}: of {offsets:,} offsets {', '.join(counts)}{where}"


def bar_hours(hours: Sequence[int]) -> int:
    """Return the number of hours per bar, for at most about MAX_BARS bars."""
    span = max(hours) - min(hours) + 1 if hours else 1
    return next((width for width in BAR_HOURS if span <= width * MAX_BARS), max(BAR_HOURS))


def _totals(partitions: Sequence[PartitionAudit]) -> Hour:
    whole = Hour(hour=None)
    for partition in partitions:
        whole.add(partition.total())
    return whole


def _bars(hours: Sequence[Hour], width: int) -> dict[int, Hour]:
    """Sum hours into bars of `width` hours, by the bar's number; counts without a known hour are omitted."""
    bars: dict[int, Hour] = {}
    for hour in hours:
        if hour.hour is not None:
            number = hour.hour // width
            bars.setdefault(number, Hour(hour=number)).add(hour)
    return bars


def _draw_bars(axes: Any, hours: Sequence[Hour], kinds: dict[str, str], width: int, label: str) -> None:
    """Draw stacked bars of these kinds of offsets."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    bars = _bars(hours, width)
    numbers = sorted(bars)
    begins = [EPOCH + number * width * HOUR for number in numbers]
    below = [0] * len(numbers)
    for kind, color in kinds.items():
        sizes = [getattr(bars[number], kind) for number in numbers]
        if any(sizes):
            name = NAMES.get(kind, kind)
            axes.bar(begins, sizes, width=width * HOUR * 0.92, align="edge", bottom=below, label=name, color=color)
        below = [low + size for low, size in zip(below, sizes, strict=True)]
    axes.set_ylabel(f"{label}\nper {BAR_HOURS[width]}")
    axes.set_ylim(0, max(below, default=0) * 1.1 or 1)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    if any(below):
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False)


def _draw_partitions(axes: Any, partitions: Sequence[PartitionAudit], width: int, *, more: int) -> None:
    """Draw a row for each partition: darker cells have more records, red crosses mark faults."""
    by_row = [_bars(partition.hours, width) for partition in partitions]
    most = max((bar.records for bars in by_row for bar in bars.values()), default=0) or 1
    faulty: list[tuple[Any, int]] = []
    for row, bars in enumerate(by_row):
        for number, bar in bars.items():
            begin = EPOCH + number * width * HOUR
            shade = 0.15 + 0.85 * bar.records / most
            axes.barh(row, width * HOUR, left=begin, height=0.8, color="tab:blue", alpha=shade, linewidth=0)
            if bar.faults:
                faulty.append((begin + width * HOUR / 2, row))
    if faulty:
        times, rows = zip(*faulty, strict=True)
        label = "missing, duplicate or damaged"
        axes.plot(times, rows, "x", color=BAD, markersize=10, markeredgewidth=2.5, label=label)
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False)
    names = [f"{partition.topic}-{partition.partition}" for partition in partitions]
    axes.set_yticks(range(len(partitions)), names)
    axes.set_ylim(len(partitions) - 0.4, -0.6)
    axes.set_xlabel(f"timestamps of records (UTC){f'; {more:,} more partitions are not drawn' if more else ''}")

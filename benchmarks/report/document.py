"""Report outcomes as a Markdown table, as in `docs/performance.md`, and as JSON."""

import os
import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.harness import Outcome, Plan, Spread, Target
from warmlog.protocol.records.codec import compiled

# The name of a figure in the table, and its significant decimals.
LABELS = {
    "clean_s": ("first reply after a clean stop, s", 2),
    "stop_s": ("clean stop, s", 2),
    "killed_s": ("first reply after a kill, s", 2),
    "killed_to_clean": ("after a kill / after a clean stop", 2),
    "share_of_crc_speed": ("recovery / CRC pass, MB/s", 2),
    "requests_per_s": ("requests/s", 0),
    "records_per_s": ("records/s", 0),
    "mb_per_s": ("MB/s", 0),
    "large_mb_per_s": ("MB/s of the others", 0),
    "server_share": ("share of a core", 4),
    "cpu_us_record": ("server, us of CPU a record", 3),
    "cpu_us": ("server, us of CPU a request", 1),
    "cpu_us_mb": ("server, us of CPU a MB", 0),
    "cpu_s": ("server, s of CPU until the first reply", 2),
    "killed_cpu_s": ("server, s of CPU until the first reply after a kill", 2),
    "produce_us": ("Produce 11, us of CPU a partition", 2),
    "produce_v7_us": ("Produce 7", 2),
    "list_offsets_us": ("ListOffsets", 2),
    "offset_commit_us": ("OffsetCommit", 2),
    "metadata_us": ("Metadata", 2),
    "fetch_us": ("without a session, nothing new, us of CPU a partition", 2),
    "fetch_active_us": ("without a session, 1 % active", 2),
    "session_us": ("in a session, nothing new", 3),
    "session_active_us": ("in a session, 1 % active", 3),
    "p50_ms": ("p50, ms", 3),
    "p99_ms": ("p99, ms", 3),
    "longest_ms": ("longest, ms", 1),
    "quiet_p50_ms": ("p50 before, ms", 2),
    "quiet_p99_ms": ("p99 before, ms", 2),
    "during_p50_ms": ("p50 during, ms", 2),
    "during_p99_ms": ("p99 during, ms", 2),
    "during_max_ms": ("longest during, ms", 1),
    "p50_times": ("p50, during / before", 2),
    "p99_times": ("p99, during / before", 2),
    "p99_of_allowed": ("p99 / the larger of 4 x before and 10 ms", 2),
    "disk_share": ("readers' share of the disk", 2),
    "major_mean": ("major faults, mean of all sizes", 2),
    "major_max": ("major faults, most", 0),
    "read_pages_mean": ("pages read, mean", 1),
    "lookup_us": ("lookup, us", 1),
    "on_us": ("with, us a request", 2),
    "off_us": ("without, us a request", 2),
    "cost": ("cost, share of a request", 4),
    "cost_low": ("the same, at least (95 %)", 4),
    "cost_high": ("the same, at most (95 %)", 4),
    "first_reply_s": ("first reply, s", 2),
    "first_reply_full_s": ("first reply, full directory, s", 2),
    "idle_mb": ("resident, idle, MB", 1),
    "partition_kb": ("resident, each partition, KB", 1),
}
BUSY = ("server_busy", "load_busy")  # shares of one core, in a separate column
CPU = {  # processor time of the server, in a separate column: the figure, its decimals, its unit
    "cpu_us_record": (3, "us/record"),
    "cpu_us": (1, "us/request"),
    "cpu_us_mb": (0, "us/MB"),
    "server_share": (4, "of a core"),
    "cpu_s": (2, "s"),
}
SATURATED = 0.9
BEGIN_MARK, END_MARK = "<!-- figures begin -->", "<!-- figures end -->"
HEADINGS = (
    *("workload", "figure", "contestant", "median", "min to max"),
    *("ratio", "min to max", "wanted", "server CPU", "busy"),
)


def table(outcomes: Sequence[Outcome]) -> str:
    """Return a Markdown table with a row for each figure of each contestant, with columns aligned as plain text."""
    rows = [HEADINGS, *(row for outcome in outcomes for row in _rows(outcome))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def put_figures(page: str, figures: str) -> str:
    """Return a Markdown page with new figures between its two marks. Raises ValueError if it has no marks."""
    before, begin, rest = page.partition(BEGIN_MARK)
    _, end, after = rest.partition(END_MARK)
    if not (begin and end):
        raise ValueError(f"no place for the figures: {BEGIN_MARK} and {END_MARK} are missing")
    return f"{before}{begin}\n\n{figures}\n\n{end}{after}"


def document(outcomes: Sequence[Outcome], plan: Plan) -> dict[str, Any]:
    """Return the figures of every round, and the machine."""
    return {
        "machine": machine(),
        "rounds": plan.rounds,
        "seconds": plan.seconds,
        "scale": plan.scale,
        "workloads": [_describe(outcome) for outcome in outcomes],
    }


def machine() -> dict[str, Any]:
    """Return the properties of the machine and the software that the figures depend on."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "trio": version("trio"),
        "compiled_codec": compiled,
    }


def machine_sentence(plan: Plan) -> str:
    """Describe the machine and the rounds in a sentence."""
    m = machine()
    codec = "compiled" if m["compiled_codec"] else "pure"
    return (
        f"{m['processor']}, {m['cores']} cores shared by server and load generator, {m['memory_gb']:.0f} GB; "
        f"Linux {m['kernel']}, Python {m['python']}, trio {m['trio']}, {codec} record codec; "
        f"rounds: {plan.rounds}, of {plan.seconds:g} s each."
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _rows(outcome: Outcome) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a workload: its title once, each figure once, with the contestants below each other."""
    title = outcome.workload.title
    for figure in outcome.workload.figures:
        label, decimals = LABELS[figure]
        for contestant in outcome.rounds:
            if figure in outcome.measured(contestant):
                yield (title, label, *_row(outcome, contestant, figure, decimals))
                title = label = ""


def _row(outcome: Outcome, contestant: str, figure: str, decimals: int) -> tuple[str, ...]:
    """Return a row: the subject's row has the target of the figure, other rows have the ratio and its target."""
    against = None if contestant == outcome.subject else contestant
    ratio = None if against is None else outcome.ratio(figure, against)
    return (
        contestant,
        *_spread(outcome.spread(contestant, figure), decimals),
        *(("", "") if ratio is None else _spread(ratio, 2)),
        _wanted(outcome, outcome.target(figure, against)),
        _processor_time(outcome, contestant),
        _busy(outcome, contestant),
    )


def _spread(spread: Spread, decimals: int) -> tuple[str, str]:
    middle, least, most = (f"{value:,.{decimals}f}" for value in (spread.median, spread.minimum, spread.maximum))
    return middle, f"{least} to {most}"


def _wanted(outcome: Outcome, target: Target | None) -> str:
    if target is None:
        return ""
    bound = f"≥ {target.at_least:,g}" if target.at_least is not None else f"≤ {target.at_most:,g}"
    always = ", always" if target.every_round else ""
    return f"{bound}{always}: {'yes' if outcome.judge(target) else 'NO'}"


def _processor_time(outcome: Outcome, contestant: str) -> str:
    """Return medians of the server's processor time in all units that were measured.

    MB only where the workload is about bytes: small requests would show a large number that says nothing more.
    """
    is_of_bytes = any("mb" in figure.split("_") for figure in outcome.workload.figures)
    units = [figure for figure in CPU if is_of_bytes or figure != "cpu_us_mb"]
    measured = [figure for figure in units if figure in outcome.measured(contestant)]
    medians = ((CPU[figure], outcome.spread(contestant, figure).median) for figure in measured)
    return ", ".join(f"{median:,.{decimals}f} {unit}" for (decimals, unit), median in medians)


def _busy(outcome: Outcome, contestant: str) -> str:
    """Return how busy each side was, marked if it was at its limit."""
    measured = [figure for figure in BUSY if figure in outcome.measured(contestant)]
    shares = {figure.partition("_")[0]: outcome.spread(contestant, figure).median for figure in measured}
    return ", ".join(f"{side} {share:.0%}{'!' if share >= SATURATED else ''}" for side, share in shares.items())


def _describe(outcome: Outcome) -> dict[str, Any]:
    return {
        "name": outcome.workload.name,
        "title": outcome.workload.title,
        "contestants": {
            name: {
                "rounds": [dict(figures) for figures in rounds],
                "median": {figure: outcome.spread(name, figure).median for figure in outcome.measured(name)},
                "ratios": _ratios(outcome, name),
            }
            for name, rounds in outcome.rounds.items()
        },
        "targets": [_describe_target(outcome, target) for target in outcome.workload.targets],
    }


def _ratios(outcome: Outcome, against: str) -> dict[str, float]:
    """Return the subject's figures divided by this contestant's."""
    if against == outcome.subject:
        return {}
    ratios = {figure: outcome.ratio(figure, against) for figure in outcome.measured(against)}
    return {figure: ratio.median for figure, ratio in ratios.items() if ratio is not None}


def _describe_target(outcome: Outcome, target: Target) -> dict[str, Any]:
    return {
        "figure": target.figure,
        "against": target.against,
        "at_least": target.at_least,
        "at_most": target.at_most,
        "every_round": target.every_round,
        "met": outcome.judge(target),
    }

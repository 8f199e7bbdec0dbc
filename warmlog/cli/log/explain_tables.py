"""Print an explanation of a fetch: a summary of the segment, a table of the steps, and the expected page faults."""

from collections.abc import Iterable, Iterator, Sequence

from warmlog.cli.output import Column, binary_size, counted, iso_time, print_line, print_table
from warmlog.protocol.explanation import ExplainedLookup, ExplainedRange, Explanation, PageRun

MAX_SHOWN = 12  # maximum runs of pages in a cell; further runs are only counted
UNKNOWN = "?"
COLUMNS = (
    Column("step"),
    Column("search"),
    Column("section"),
    Column("pages touched"),
    Column("not resident"),
    Column("faults", number=True),
    Column("found"),
)


def show_explanation(name: str, explanation: Explanation) -> None:
    """Print the explanation."""
    for line in header(name, explanation):
        print_line(line)
    if explanation.lookups or explanation.scan is not None:
        print_line()
        print_table(COLUMNS, rows(explanation))
        print_line()
    for line in summary(explanation):
        print_line(line)


def header(name: str, explanation: Explanation) -> Iterator[str]:
    """Yield lines about the target and its segment."""
    time = "" if explanation.timestamp is None else f" of {iso_time(explanation.timestamp)}"
    segment = explanation.segment
    what = (
        f"offset {explanation.offset}{time}"
        if explanation.batch
        else f"offset {explanation.offset}, the log end: a fetch waits here"
    )
    start, end = explanation.log_start_offset, explanation.log_end_offset
    yield f"{name}, {what}; log start offset {start}, log end offset {end}"
    kind = "active" if segment.active else "sealed"
    span = f"offsets {segment.base_offset} up to {segment.next_offset}"
    yield f"segment {segment.base_offset:020d}, {kind}: {span}, {binary_size(segment.size)}"
    if explanation.passed:
        yield f"searched before without a match: {counted(explanation.passed, 'segment')}"
    if explanation.index_fault is not None:
        yield (
            f"its indexes are invalid ({explanation.index_fault}): a broker rebuilds them from"
            f" {binary_size(segment.size)} of log at the first fetch; the explanation below ignores them"
        )


def rows(explanation: Explanation) -> Iterator[tuple[object, ...]]:
    """Yield a row per step."""
    for lookup in explanation.lookups:
        missing = UNKNOWN if lookup.missing is None else page_numbers(lookup.missing)
        faults = UNKNOWN if lookup.faults_expected is None else lookup.faults_expected
        pages = page_numbers(lookup.pages)
        yield f"{lookup.index} index", lookup.search, lookup.section, pages, missing, faults, entry(lookup)
    if explanation.scan is not None:
        scan = explanation.scan
        result = f"{counted(scan.size, 'byte')} from position {scan.position}"
        if explanation.known_by_heart:
            result = "none: the position of the batch is cached"
        yield "scan", None, None, *range_cells(scan), None, result
    if explanation.batch is not None:
        batch = explanation.batch
        result = f"{counted(batch.place.size, 'byte')} at {batch.place.position}"
        result += f": offsets {batch.base_offset} to {batch.last_offset}"
        yield "batch", None, None, *range_cells(batch.place), None, result


def entry(lookup: ExplainedLookup) -> str:
    """Format the matching entry of a lookup."""
    if lookup.slot is None:
        none = "no entries" if not lookup.entries else f"none of {lookup.entries} entries"
        return f"{none}: scan from the start"
    what = f"entry {lookup.slot} of {lookup.entries}: "
    if lookup.index == "time":
        return f"{what}largest timestamp {iso_time(lookup.timestamp)} up to offset {lookup.offset}"
    return f"{what}offset {lookup.offset} at {lookup.position}"


def page_numbers(pages: Iterable[int]) -> str:
    """Format pages in order of access."""
    return " ".join(map(str, pages)) or "none"


def range_cells(of: ExplainedRange) -> tuple[str, str]:
    """Format the pages of a range, and its non-resident pages."""
    return page_runs(of.pages), UNKNOWN if of.missing is None else page_runs(of.missing)


def page_runs(runs: Sequence[PageRun]) -> str:
    """Format runs of pages as `7 9..12`; if not all fit, append their total number."""
    shown = [str(run.first) if run.count == 1 else f"{run.first}..{run.first + run.count - 1}" for run in runs]
    if len(runs) > MAX_SHOWN:
        shown[MAX_SHOWN:] = [f"and more, {counted(sum(run.count for run in runs), 'page')} in total"]
    return " ".join(shown) or "none"


def summary(explanation: Explanation) -> Iterator[str]:
    """Yield the expected page faults and reads."""
    if explanation.asked is None:
        yield f"resident pages are unknown: {explanation.not_asked}"
        return
    if explanation.batch is None or explanation.scan is None:
        return
    used = explanation.lookups[0].search if explanation.lookups else "warm"
    expected = faults_expected(explanation.lookups, used)
    others = sorted({lookup.search for lookup in explanation.lookups} - {used})
    beside = "".join(f" ({other} search: {faults_expected(explanation.lookups, other)})" for other in others)
    yield f"major faults expected: {expected}{beside}"
    scan, batch = explanation.scan.missing_pages, explanation.batch.place.missing_pages
    yield f"pages of the log to read from disk: {scan} for the scan, {batch} for the batch"
    if expected or scan or batch:
        yield "a broker reads them in a worker thread first (warmlog.gate); other requests do not wait"


def faults_expected(lookups: Iterable[ExplainedLookup], search: str) -> int:
    """Count the index pages that one search touches and that are not resident."""
    return sum(lookup.faults_expected or 0 for lookup in lookups if lookup.search == search)

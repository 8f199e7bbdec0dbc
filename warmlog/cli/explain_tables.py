"""An explanation for people.

Owns: what is said in which words, and the table. Must not know: who explained.
"""

from collections.abc import Iterable, Iterator, Sequence

from protocol.native.explain import ExplainedLookup, ExplainedRange, ExplainResponse, PageRun
from warmlog.cli.output import Column, binary_size, counted, iso_time, print_line, print_table

MAX_SHOWN = 12  # runs of pages in a cell: what is scattered more than that is counted
UNKNOWN = "?"
COLUMNS = (
    Column("step"),
    Column("search"),
    Column("section"),
    Column("pages touched"),
    Column("not in memory"),
    Column("faults", number=True),
    Column("found"),
)


def show_explanation(name: str, found: ExplainResponse) -> None:
    """Print it."""
    for line in head(name, found):
        print_line(line)
    if found.lookups or found.scan is not None:
        print_line()
        print_table(COLUMNS, rows(found))
        print_line()
    for line in summary(found):
        print_line(line)


def head(name: str, found: ExplainResponse) -> Iterator[str]:
    """What was found, and where."""
    time = "" if found.timestamp is None else f" of {iso_time(found.timestamp)}"
    segment = found.segment
    what = f"offset {found.offset}{time}" if found.batch else f"offset {found.offset}, the end: a fetch waits here"
    yield f"{name}, {what}; the log holds offsets from {found.log_start_offset} up to {found.log_end_offset}"
    kind = "active" if segment.active else "sealed"
    span = f"offsets from {segment.base_offset} up to {segment.next_offset}"
    yield f"segment {segment.base_offset:020d}, {kind}: {span}, {binary_size(segment.size)}"
    if found.passed:
        yield f"looked at in vain before it: {counted(found.passed, 'segment')}"
    if found.index_fault is not None:
        yield (
            f"its indexes cannot be believed ({found.index_fault}): at the first fetch a broker makes them anew from"
            f" {binary_size(segment.size)} of log, and searches them then; what follows is the way without them"
        )


def rows(found: ExplainResponse) -> Iterator[tuple[object, ...]]:
    """A row for each step."""
    for lookup in found.lookups:
        missing = UNKNOWN if lookup.missing is None else page_numbers(lookup.missing)
        faults = UNKNOWN if lookup.faults_expected is None else lookup.faults_expected
        pages = page_numbers(lookup.pages)
        yield f"{lookup.index} index", lookup.search, lookup.section, pages, missing, faults, entry(lookup)
    if found.scan is not None:
        scan = found.scan
        told = f"{counted(scan.size, 'byte')} passed from {scan.position} on"
        if found.known_by_heart:
            told = "nothing is scanned: the log's end is known by heart"
        yield "scan", None, None, *range_cells(scan), None, told
    if found.batch is not None:
        batch = found.batch
        told = f"{counted(batch.place.size, 'byte')} at {batch.place.position}"
        told += f": offsets {batch.base_offset} to {batch.last_offset}"
        yield "batch", None, None, *range_cells(batch.place), None, told


def entry(lookup: ExplainedLookup) -> str:
    """The entry that a lookup finds."""
    if lookup.slot is None:
        none = "no entries" if not lookup.entries else f"none of {lookup.entries} entries"
        return f"{none}: from the start"
    what = f"entry {lookup.slot} of {lookup.entries}: "
    if lookup.index == "time":
        return f"{what}nothing later than {iso_time(lookup.timestamp)} up to offset {lookup.offset}"
    return f"{what}offset {lookup.offset} at {lookup.position}"


def page_numbers(pages: Iterable[int]) -> str:
    """Pages in their order."""
    return " ".join(map(str, pages)) or "none"


def range_cells(of: ExplainedRange) -> tuple[str, str]:
    """The pages of a range, and those that are not in memory."""
    return page_runs(of.pages), UNKNOWN if of.missing is None else page_runs(of.missing)


def page_runs(runs: Sequence[PageRun]) -> str:
    """Pages in increasing order: `7 9..12`; how many there are in all, where not all of them are shown."""
    shown = [str(run.first) if run.count == 1 else f"{run.first}..{run.first + run.count - 1}" for run in runs]
    if len(runs) > MAX_SHOWN:
        shown[MAX_SHOWN:] = [f"and more, {counted(sum(run.count for run in runs), 'page')} in all"]
    return " ".join(shown) or "none"


def summary(found: ExplainResponse) -> Iterator[str]:
    """What all that comes to."""
    if found.asked is None:
        yield f"what is in memory is not known: {found.not_asked}"
        return
    if found.batch is None or found.scan is None:
        return
    used = found.lookups[0].search if found.lookups else "warm"
    expected = faults_expected(found.lookups, used)
    others = sorted({lookup.search for lookup in found.lookups} - {used})
    beside = "".join(f" ({other} search: {faults_expected(found.lookups, other)})" for other in others)
    yield f"major faults expected: {expected}{beside}"
    scan, batch = found.scan.missing_pages, found.batch.place.missing_pages
    yield f"pages of the log to come from the disk: {scan} for the scan, {batch} for the batch"
    if expected or scan or batch:
        yield "a broker has them read by a thread first (warmlog.gate), and holds nobody up meanwhile"


def faults_expected(lookups: Iterable[ExplainedLookup], search: str) -> int:
    """Pages of indexes that are not in memory, by one search."""
    return sum(lookup.faults_expected or 0 for lookup in lookups if lookup.search == search)

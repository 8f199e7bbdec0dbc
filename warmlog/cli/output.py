"""Output of commands: tables for users, JSON for scripts, raw bytes.

1. On a terminal a table fits the terminal's width; in a pipe it is as wide as needed, one row per line, for awk. Cells
are never truncated.
2. Times are ISO 8601 in UTC: unambiguous, and accepted by `--from`.
3. Rich is imported only to print a table on a terminal.
"""

import errno
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Literal, NamedTuple, NoReturn

from warmlog.cli.failure import OutputClosedError

COLUMN_GAPS = (2, 1)  # gaps between columns; the smaller one is used if the larger does not fit
MIN_TEXT_WIDTH = 12  # minimum width of folded text columns
BINARY_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


class Column(NamedTuple):
    """A column's title. `number`: whether cells are aligned to the right."""

    title: str
    number: bool = False


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under titles; None is an empty cell."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        print_rich_table(columns, cells)
    else:
        print_plain_table(columns, cells)


def print_rich_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table for a terminal, with long texts folded to its width, and numbers always whole.

    If the numbers alone are wider than the terminal, print each row as a list of titles and cells.
    """
    from rich.box import SIMPLE_HEAD  # the import takes 40 ms
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout)
    by_column = zip(*([column.title for column in columns], *rows), strict=True)
    lengths = [[cell_len(cell) for cell in cells] for cells in by_column]
    for gap in COLUMN_GAPS:
        widths = fit_widths(columns, lengths, console.width - gap * (len(columns) - 1))
        if widths is not None:
            break
    else:
        print_rows_as_lists(columns, rows)
        return
    table = Table(box=SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    for column, width in zip(columns, widths, strict=True):
        justify: Literal["left", "right"] = "right" if column.number else "left"
        table.add_column(column.title, justify=justify, overflow="fold", width=width)
    for row in rows:
        table.add_row(*map(Text, row))
    with output_errors():
        console.print(table)


def fit_widths(columns: Sequence[Column], lengths: Sequence[Sequence[int]], total: int) -> list[int] | None:
    """Return column widths of at most `total` that do not break numbers and words of titles, or None if impossible.

    `lengths`: by column, the length of its title, then those of its cells.
    """
    wanted = [max(of_column) for of_column in lengths]
    widths = []
    for column, (_, *cells) in zip(columns, lengths, strict=True):
        longest = max(cells, default=0)
        widths.append(max(*map(len, column.title.split()), longest if column.number else min(longest, MIN_TEXT_WIDTH)))
    free = total - sum(widths)
    if free < 0:
        return None
    by_need = sorted(range(len(columns)), key=lambda index: wanted[index] - widths[index])
    for left, index in zip(range(len(columns), 0, -1), by_need, strict=True):
        more = min(wanted[index] - widths[index], free // left)
        widths[index] += more
        free -= more
    return widths


def print_rows_as_lists(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print each row as lines of title and cell, with an empty line between rows; the terminal breaks long lines."""
    width = max(len(column.title) for column in columns)
    for number, row in enumerate(rows):
        if number:
            print_line()
        for column, cell in zip(columns, row, strict=True):
            print_line(f"{column.title:{width}}  {cell}".rstrip())


def print_plain_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table for a pipe: one line per row, without truncation."""
    lines = [[column.title.replace(" ", "-") for column in columns], *rows]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    for line in lines:
        cells = zip(line, columns, widths, strict=True)
        print_line(
            "  ".join(f"{cell:{'>' if column.number else '<'}{width}}" for cell, column, width in cells).rstrip()
        )


def print_json(*values: object) -> None:
    """Print each value as one line of JSON."""
    import msgspec  # imported only for JSON

    for value in values:
        print_line(msgspec.json.encode(value).decode())


def print_line(text: str = "") -> None:
    """Print one line of text. Raises OutputClosedError."""
    try:
        sys.stdout.write(f"{text}\n")
    except OSError as error:
        raise_output_error(error)


def write_bytes(data: bytes) -> None:
    """Write to standard output and flush. Raises OutputClosedError."""
    with output_errors():
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


@contextmanager
def output_errors() -> Iterator[None]:
    """Raise OutputClosedError for a closed standard output, but not for other broken pipes."""
    try:
        yield
    except OSError as error:
        raise_output_error(error)


def raise_output_error(error: OSError) -> NoReturn:
    """Raise OutputClosedError for a closed pipe, otherwise the error itself."""
    if error.errno == errno.EPIPE:
        raise OutputClosedError from error
    raise error


def binary_size(size: int) -> str:
    """Format a size as `917 B` or `1.4 MiB`."""
    if size < 1024:
        return f"{size} B"
    amount, exponent = size / 1024, 0
    while amount >= 999.95 and exponent < len(BINARY_UNITS) - 1:  # 1000.0 after rounding uses the next unit
        amount, exponent = amount / 1024, exponent + 1
    return f"{amount:.1f} {BINARY_UNITS[exponent]}"


def counted(count: int, what: str) -> str:
    """Format a number with a noun: `1 partition`, `1,000 records`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def iso_time(timestamp_ms: int | None) -> str | None:
    """Format a time to the millisecond as `2026-11-20T10:00:00.000Z`; return None for None or a negative time."""
    if timestamp_ms is None or timestamp_ms < 0:
        return None
    try:
        time = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"  # after the year 9999: probably microseconds
    return f"{time:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03}Z"


class StreamedTable:
    """A table with fixed column widths whose rows are printed immediately, for output of any length.

    A cell that does not fit shifts the rest of its row to the right instead of being truncated.
    """

    def __init__(self, **widths: int) -> None:
        """`widths`: column widths by title; a negative width aligns to the left."""
        self._cells = [f"{'<' if width < 0 else '>'}{abs(width)}" for width in widths.values()]
        self._titles = list(widths)

    def header(self) -> None:
        """Print the titles."""
        line = self._line(self._titles)
        print_line(f"\x1b[1m{line}\x1b[0m" if sys.stdout.isatty() else line)

    def row(self, *cells: object) -> None:
        """Print one row; None is an empty cell."""
        print_line(self._line(["" if cell is None else str(cell) for cell in cells]))

    def _line(self, cells: Sequence[str]) -> str:
        return "  ".join(format(cell, how) for cell, how in zip(cells, self._cells, strict=True)).rstrip()

"""What commands print: tables for people, JSON for scripts, bytes as they are.

Owns: the look of tables, how sizes and times are written, and what happens when nobody reads any more. Must not know:
what the numbers mean.

1. A table on a terminal fits it; in a pipe it is as wide as it must be, a row a line, nothing cut, so that awk can
   read it.
2. Times are ISO 8601 in UTC: unambiguous, and `--from` takes them back.
3. Rich is imported when a terminal is shown a table, not before.
"""

import errno
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Literal, NamedTuple, NoReturn

from warmlog.cli.failure import OutputClosedError

BINARY_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


class Column(NamedTuple):
    """A column's title, and whether it holds numbers (set to the right)."""

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
    """For a terminal: as wide as it, long texts folded."""
    from rich.box import SIMPLE_HEAD  # 40 ms that only who looks at a table pays
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.number else "left"
        table.add_column(column.title, justify=justify, no_wrap=column.number, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    with output_errors():
        Console(file=sys.stdout).print(table)


def print_plain_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """For a pipe: as wide as it must be, a line a row."""
    lines = [[column.title.replace(" ", "-") for column in columns], *rows]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    for line in lines:
        cells = zip(line, columns, widths, strict=True)
        print_line(
            "  ".join(f"{cell:{'>' if column.number else '<'}{width}}" for cell, column, width in cells).rstrip()
        )


def print_json(*values: object) -> None:
    """Print each value as one line of JSON."""
    import msgspec  # what prints no JSON need not load it

    for value in values:
        print_line(msgspec.json.encode(value).decode())


def print_line(text: str = "") -> None:
    """Print one line of text. Raises OutputClosedError when nobody reads it."""
    try:
        sys.stdout.write(f"{text}\n")
    except OSError as error:
        raise_output_error(error)


def write_bytes(data: bytes) -> None:
    """Write to standard output and flush.

    Whoever follows sees it now. Raises OutputClosedError when its reader is gone.
    """
    with output_errors():
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


@contextmanager
def output_errors() -> Iterator[None]:
    """Around writing to standard output: a closed pipe is told apart from every other broken connection."""
    try:
        yield
    except OSError as error:
        raise_output_error(error)


def raise_output_error(error: OSError) -> NoReturn:
    """Raise OutputClosedError for a closed pipe, else the error itself."""
    if error.errno == errno.EPIPE:
        raise OutputClosedError from error
    raise error


def binary_size(size: int) -> str:
    """A size for people: `917 B`, `1.4 MiB`."""
    if size < 1024:
        return f"{size} B"
    amount, exponent = size / 1024, 0
    while amount >= 999.95 and exponent < len(BINARY_UNITS) - 1:  # what rounds to 1000.0 is told in the next unit
        amount, exponent = amount / 1024, exponent + 1
    return f"{amount:.1f} {BINARY_UNITS[exponent]}"


def counted(count: int, what: str) -> str:
    """`1 partition`, `1,000 records`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def iso_time(timestamp_ms: int | None) -> str | None:
    """A time for people, to the millisecond: `2026-11-20T10:00:00.000Z`; None for no time (None or negative)."""
    if timestamp_ms is None or timestamp_ms < 0:
        return None
    try:
        time = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"  # past the year 9999: somebody's microseconds
    return f"{time:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03}Z"


class StreamedTable:
    """A table whose rows are printed as they come, so that it may be as long as a log: columns have a fixed width.

    A cell that does not fit pushes the rest of its row to the right; nothing is cut.
    """

    def __init__(self, **widths: int) -> None:
        """Titles with their widths; a negative one sets its cells to the left."""
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

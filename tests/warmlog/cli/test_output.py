import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest

from warmlog.cli.cluster import PARTITION_COLUMNS as CLUSTER_COLUMNS
from warmlog.cli.group import POSITION_COLUMNS
from warmlog.cli.output import Column, binary_size, iso_time, print_json, print_table
from warmlog.cli.topic import PARTITION_COLUMNS, SEGMENT_COLUMNS


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        (1 << 30, "1.0 GiB"),
        (1 << 60, "1024.0 PiB"),
    ],
)
def test_sizes_use_the_largest_fitting_unit(size: int, text: str) -> None:
    assert binary_size(size) == text


@pytest.mark.parametrize(
    ("timestamp", "text"),
    [
        (None, None),
        (-1, None),
        (0, "1970-01-01T00:00:00.000Z"),
        (1_795_168_800_007, "2026-11-20T10:00:00.007Z"),
        (1_795_168_800_007_000_000, "1795168800007000000 ms"),
    ],
)
def test_times_are_utc_to_the_millisecond(timestamp: int | None, text: str) -> None:
    assert iso_time(timestamp) == text


def test_a_table_in_a_pipe_has_one_line_per_row_and_cuts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 500
    print_table([Column("name"), Column("size", number=True)], [[long, 1], ["[red]b", None]])
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["name", "size"]
    assert first.split() == [long, "1"]
    assert second.split() == ["[red]b"]


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Print a table on a terminal of some width; return its lines without styles."""

    def show(width: int, columns: Sequence[Column], rows: Sequence[Sequence[object]]) -> list[str]:
        controller, terminal = os.openpty()
        with open(terminal, "w") as stream, monkeypatch.context() as patch:
            patch.setenv("TERM", "xterm")
            patch.setenv("COLUMNS", str(width))
            patch.setattr(sys, "stdout", stream)
            print_table(columns, rows)
        shown = b""
        with suppress(OSError):  # EIO at the end
            while chunk := os.read(controller, 10_000):
                shown += chunk
        os.close(controller)
        return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in shown.decode().splitlines()]

    return show


def test_a_table_on_a_terminal_fits_its_width_and_cuts_nothing(on_terminal: Callable[..., list[str]]) -> None:
    columns = [Column("name"), Column("size", number=True)]
    lines = on_terminal(40, columns, [["x" * 50, 12345], ["[red]b", None]])
    shown = "\n".join(lines)
    assert max(map(len, lines)) <= 40
    assert shown.count("x") == 50
    assert "12345" in shown
    assert "[red]b" in shown


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("columns", [PARTITION_COLUMNS, SEGMENT_COLUMNS, POSITION_COLUMNS, CLUSTER_COLUMNS])
def test_no_number_is_cut_or_broken_on_a_terminal(
    on_terminal: Callable[..., list[str]], width: int, columns: Sequence[Column]
) -> None:
    numbers = ["12345678901" if column.number else "a-name-that-is-rather-long" for column in columns]
    shown = "\n".join(on_terminal(width, columns, [numbers]))
    assert shown.count("12345678901") == sum(column.number for column in columns)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_partition_with_millions_of_records_is_shown_right(on_terminal: Callable[..., list[str]], width: int) -> None:
    row = ["0", 0, 2_000_000, 2_000_000, 2_000_000, 0, "27.7 MiB", 1, 0]
    lines = on_terminal(width, PARTITION_COLUMNS, [row])
    words = " ".join(lines).split()
    assert words.count("2000000") == 3
    assert "27.7 MiB" in " ".join(lines)
    assert max(map(len, lines)) <= width


def test_rows_that_are_too_wide_for_the_terminal_become_lists(on_terminal: Callable[..., list[str]]) -> None:
    columns = [Column("start offset", number=True), Column("end", number=True)]
    assert on_terminal(20, columns, [[10**12, 10**13], [1, None]]) == [
        "start offset  1000000000000",
        "end           10000000000000",
        "",
        "start offset  1",
        "end",
    ]


def test_json_is_one_value_per_line(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    print_json({"a": "ä"}, [1])
    assert capfdbinary.readouterr().out == '{"a":"ä"}\n[1]\n'.encode()

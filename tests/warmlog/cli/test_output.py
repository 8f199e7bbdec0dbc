import os
import re
import sys

import pytest

from warmlog.cli.output import Column, binary_size, iso_time, print_json, print_table


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


def test_a_table_on_a_terminal_fits_its_width_and_cuts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, terminal = os.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    with open(terminal, "w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        print_table([Column("name"), Column("size", number=True)], [["x" * 50, 12345], ["[red]b", None]])
    shown = os.read(controller, 10_000).decode()
    os.close(controller)
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in shown.splitlines()]
    assert max(map(len, plain)) <= 40
    assert shown.count("x") == 50
    assert "12345" in shown
    assert "[red]b" in shown


def test_json_is_one_value_per_line(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    print_json({"a": "ä"}, [1])
    assert capfdbinary.readouterr().out == '{"a":"ä"}\n[1]\n'.encode()

from datetime import UTC, datetime

import click
import pytest

from warmlog.cli.options import address, assignment, start_position


@pytest.mark.parametrize("text", ["localhost:9091", "10.0.0.1:1", "[::1]:65535"])
def test_an_address_is_a_host_and_a_port(text: str) -> None:
    assert address(text) == text


@pytest.mark.parametrize("text", ["", "localhost", ":9091", "localhost:", "h:0", "h:65536", "h:9x", "h:-1", "h:\u0663"])
def test_anything_else_is_no_address(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not HOST:PORT"):
        address(text)


def test_an_assignment_is_cut_at_its_first_equal_sign() -> None:
    assert assignment("retention.ms=1=2") == ("retention.ms", "1=2")
    assert assignment("a=") == ("a", "")


@pytest.mark.parametrize("text", ["a", "=b", ""])
def test_an_assignment_needs_a_name_and_an_equal_sign(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not KEY=VALUE"):
        assignment(text)


def test_a_start_is_a_name_an_offset_or_a_time() -> None:
    assert start_position("beginning") == "beginning"
    assert start_position("end") == "end"
    assert start_position("500000") == 500000
    assert start_position("2026-11-20T10:00:00Z") == datetime(2026, 11, 20, 10, tzinfo=UTC)
    assert start_position("2026-11-20T10:00:00+02:00") == datetime(2026, 11, 20, 8, tzinfo=UTC)


def test_a_time_without_a_zone_is_local() -> None:
    assert start_position("2026-11-20 10:00") == datetime(2026, 11, 20, 10).astimezone()  # the point


@pytest.mark.parametrize("text", ["", "start", "-1", "1.5", "2026-13-01", "\u0663"])
def test_anything_else_is_no_start(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not beginning, end, an offset or a time"):
        start_position(text)

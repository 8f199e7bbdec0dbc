import click
import pytest

from warmlog.cli.options import assignment, bootstrap, separator, start_position


@pytest.mark.parametrize("text", ["localhost:9091", "10.0.0.1:1", "[::1]:65535", "localhost"])
def test_an_address_is_a_host_and_a_port(text: str) -> None:
    assert bootstrap(text) == text


@pytest.mark.parametrize("text", ["", ":9091", "h:0", "h:65536", "h:9x", "h:-1", "h:\u0663"])
def test_anything_else_is_rejected_as_an_address(text: str) -> None:
    with pytest.raises(click.BadParameter):
        bootstrap(text)


def test_an_assignment_is_split_at_its_first_equal_sign() -> None:
    assert assignment("retention.ms=1=2") == ("retention.ms", "1=2")
    assert assignment("a=") == ("a", "")


@pytest.mark.parametrize("text", ["a", "=b", ""])
def test_an_assignment_needs_a_name_and_an_equal_sign(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not KEY=VALUE"):
        assignment(text)


@pytest.mark.parametrize(
    "text", ["beginning", "end", "500000", "2026-11-20T10:00:00Z", "2026-11-20 10:00", "2026-11-20"]
)
def test_a_start_is_a_name_an_offset_or_a_time(text: str) -> None:
    assert start_position(text) == text


@pytest.mark.parametrize("text", ["", "start", "-1", "1.5", "2026-13-01", "\u0663"])
def test_anything_else_is_rejected_as_a_start(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not beginning, end, an offset or a time"):
        start_position(text)


def test_a_separator_can_be_written_as_an_escaped_tab() -> None:
    assert separator("\\t") == "\t"
    assert separator(": ") == ": "
    with pytest.raises(click.BadParameter, match="must not be empty"):
        separator("")

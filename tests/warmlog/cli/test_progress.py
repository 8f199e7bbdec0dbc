from io import StringIO
from itertools import count

from warmlog.cli.progress import Progress


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """A manual clock."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_line_is_drawn_on_a_terminal_and_erased_at_the_end() -> None:
    terminal, clock = Terminal(), Clock()
    with Progress("words", total_size=4096, stream=terminal, clock=clock) as progress:
        clock.now = 1.0
        progress.advance(1000, 1024)
        assert terminal.getvalue().endswith("words: 1,000 records, 1.0 KiB (25 %), 1,000 records/s")
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_the_line_is_not_redrawn_for_every_report() -> None:
    terminal, ticks = Terminal(), count()
    with Progress("words", stream=terminal, clock=lambda: next(ticks) / 1000) as progress:
        for _ in range(1000):
            progress.advance(1, 1)
    assert terminal.getvalue().count("words") <= 10


def test_a_pipe_sees_nothing() -> None:
    stream, clock = StringIO(), Clock()
    with Progress("words", stream=stream, clock=clock) as progress:
        clock.now = 10.0
        progress.advance(1, 1)
    assert stream.getvalue() == ""
    assert (progress.count, progress.size) == (1, 1)


def test_nothing_is_drawn_when_disabled() -> None:
    terminal, clock = Terminal(), Clock()
    with Progress("words", enabled=False, stream=terminal, clock=clock) as progress:
        clock.now = 10.0
        progress.advance(1, 1)
    assert terminal.getvalue() == ""

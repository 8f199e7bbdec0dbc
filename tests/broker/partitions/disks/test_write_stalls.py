"""When writes count as stalled by the kernel, so that threads make the large ones."""

import pytest

from warmlog.broker.partitions.disks.write_stalls import MEMORY_S, STALL_IN_THREAD_S, STALL_S, WriteStalls

SIZE = 100_000  # bytes, which may take 0.5 ms


class Writing:
    """A thread that writes: its clock, and the number of times it has slept."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.sleeps = 0
        self.stalls = WriteStalls(lambda: self.now_s, lambda: self.sleeps)

    def write(self, seconds: float, *, sleeps: bool, limit_s: float = STALL_S) -> bool:
        """Write, and return whether that stalled."""

        def write() -> None:
            self.now_s += seconds
            self.sleeps += sleeps

        self.stalls.measure(SIZE, write, limit_s)
        return self.stalls.are_recent


def test_a_slow_write_that_slept_has_stalled_for_a_while() -> None:
    writing = Writing()
    assert not writing.write(0.002, sleeps=True)
    assert writing.write(0.003, sleeps=True)
    writing.now_s += MEMORY_S
    assert not writing.stalls.are_recent


def test_a_writer_that_waited_for_a_core_has_not_stalled() -> None:
    assert not Writing().write(0.1, sleeps=False)


@pytest.mark.parametrize(("seconds", "has_stalled"), [(0.018, False), (0.03, True)])
def test_a_thread_that_waited_for_the_gil_has_not_stalled(seconds: float, *, has_stalled: bool) -> None:
    assert Writing().write(seconds, sleeps=True, limit_s=STALL_IN_THREAD_S) is has_stalled


def test_a_write_that_fails_may_have_stalled() -> None:
    writing = Writing()

    def fail() -> None:
        writing.now_s += 0.1
        writing.sleeps += 1
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        writing.stalls.measure(SIZE, fail)
    assert writing.stalls.are_recent

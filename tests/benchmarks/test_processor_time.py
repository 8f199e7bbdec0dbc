"""The processor time of servers with threads, children and replacements: real processes that compute."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.load.processor_time import ProcessorMeter, children, cpu_seconds, processor_seconds

USED_S = 0.1
# Each prints a line after it has used the time, and goes on when it reads one.
COMPUTE = f"""
import sys, time
def compute():
    until = time.thread_time() + {USED_S}
    while time.thread_time() < until:
        pass
"""
ALONE = f"{COMPUTE}\ncompute(); print(flush=True); sys.stdin.readline()"
THREAD = f"""{COMPUTE}
import threading
thread = threading.Thread(target=compute)
thread.start(); thread.join(); print(flush=True); sys.stdin.readline()
"""
CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline(); print(flush=True); sys.stdin.readline()
child.communicate(b"\\n"); print(flush=True); sys.stdin.readline()
"""


@contextmanager
def running(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a program until it has printed its first line."""
    command = [sys.executable, "-c", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            next_step(process)
            yield process
        finally:
            process.kill()


def next_step(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "\n"


def go_on(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_processor_time_of_a_process_is_what_the_process_itself_sees() -> None:
    before, seen, after = time.process_time(), cpu_seconds(os.getpid()), time.process_time()
    assert before <= seen <= after


def test_threads_count_after_their_end() -> None:
    with running(THREAD) as process:
        assert processor_seconds([process.pid]) >= USED_S


def test_a_child_counts_while_it_lives_and_once_after_its_end() -> None:
    with running(CHILD, ALONE) as process:
        (child,) = children(process.pid)
        alive_s = processor_seconds([process.pid])
        assert alive_s >= cpu_seconds(process.pid) + USED_S
        assert alive_s == pytest.approx(processor_seconds([process.pid, child]), abs=USED_S / 2)
        go_on(process)
        next_step(process)
        assert children(process.pid) == set()
        ended_s = processor_seconds([process.pid])
        assert alive_s - USED_S / 2 < ended_s  # cutime counts in steps of 10 ms
        assert ended_s - cpu_seconds(process.pid) < 2 * alive_s


def test_a_process_that_does_not_exist_is_an_error() -> None:
    with running(ALONE) as process:
        go_on(process)
        process.wait()
        with pytest.raises(OSError, match="Invalid argument"):
            processor_seconds([process.pid])


def test_a_meter_counts_from_its_creation() -> None:
    with running(ALONE) as process:
        meter = ProcessorMeter([process.pid])
        assert 0 <= meter.used_s() < USED_S <= cpu_seconds(process.pid)
        assert meter.us_per(0) == pytest.approx(meter.us_per(1), abs=1e4)


def test_a_meter_keeps_what_a_killed_process_used_and_counts_its_replacement_from_its_beginning() -> None:
    with running(ALONE) as survivor:
        with running(CHILD, ALONE) as victim:
            meter = ProcessorMeter([survivor.pid, victim.pid])
            meter.remove(victim.pid)
        before_s = meter.used_s()
        assert before_s >= 0
        with running(ALONE) as replacement:
            meter.add(replacement.pid)
            assert meter.used_s() >= before_s + USED_S

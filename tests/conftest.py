"""What every test may ask for: owns the Hypothesis settings and the way to the golden files."""

import gc
import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from warmlog.compilation import stale_modules

# No deadline: two cores shared with other work make single examples slow for no fault of theirs.
settings.register_profile("quick", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("deep", parent=settings.get_profile("quick"), max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

ROOT = Path(__file__).parent.parent
KAFKA_FIXTURES = Path(__file__).parent / "fixtures" / "kafka" / "4.3.1"


def pytest_configure() -> None:
    """Make the suite the same however it is started."""
    _obey_interrupts()
    _refuse_stale_libraries()
    gc.disable()  # until all tests are collected: nearly all that is allocated by then stays until the end


def _obey_interrupts() -> None:
    """Let child processes be interrupted: background jobs of a shell inherit that SIGINT is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _refuse_stale_libraries() -> None:
    """Exit where a module that has no source in Python changed since it was compiled: nothing else could run."""
    sources = {name: (ROOT / name.replace(".", "/")).with_suffix(".py") for name in sorted(stale_modules())}
    stale = [name for name, source in sources.items() if not source.exists()]
    if stale:
        pytest.exit(f"changed since they were compiled: {', '.join(stale)} (see `make setup`)", 2)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exempt the tests themselves from collections of garbage."""
    gc.freeze()
    gc.enable()


def pytest_report_header() -> str:
    """Say what is tested: the compiled modules or their sources."""
    stale = len(stale_modules())
    return f"compiled modules: {f'{stale} run as Python, changed since `make setup`' if stale else 'up to date'}"


@pytest.fixture(scope="session", autouse=True)
def _no_stalls_of_other_loops() -> None:
    """Drop what brokers in threads of their own log about their loops: a busy machine stalls them during any test."""
    main = threading.main_thread().ident
    logging.getLogger("warmlog.broker.metrics.loop_guard").addFilter(lambda record: record.thread == main)


@pytest.fixture(autouse=True)
def _log_level_as_it_was() -> Iterator[None]:
    """The command line and the admin API set levels for the process; the next test counts what is logged."""
    level = logging.root.level
    yield
    logging.root.setLevel(level)


@pytest.fixture(scope="session")
def kafka_fixtures() -> Path:
    """The directory of what Kafka 4.3.1 wrote; see its README. Read only: copy before opening for writing."""
    return KAFKA_FIXTURES

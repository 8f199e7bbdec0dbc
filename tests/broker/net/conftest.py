from typing import Any

import pytest

from tests.requires import lacks
from warmlog.broker.net.turns import send_thread


@pytest.fixture
def start_thread() -> Any:
    """Starts the thread that sends replies, however many processors there are."""
    if send_thread.thread_class is None:
        lacks("not compiled: broker/_io_threads.pyx (`make setup`, with a C compiler)")
    return send_thread.thread_class


@pytest.fixture(params=["inline", "beside"])
def sends(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies are sent in their turns, or all of them by a thread."""
    if request.param == "inline":
        monkeypatch.setattr(send_thread, "start", None)
        return
    monkeypatch.setattr(send_thread, "start", request.getfixturevalue("start_thread"))
    monkeypatch.setattr(send_thread, "MIN_REPLIES", 1)
    monkeypatch.setattr(send_thread, "MIN_TURN_S", -1.0)


@pytest.fixture
def started(start_thread: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The threads that were started."""
    threads: list[Any] = []

    def noted() -> Any:
        threads.append(start_thread())
        return threads[-1]

    monkeypatch.setattr(send_thread, "start", noted)
    return threads

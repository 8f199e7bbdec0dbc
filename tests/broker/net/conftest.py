from typing import Any

import pytest

from broker.net import send_thread


@pytest.fixture(params=["inline", "beside"])
def sends(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies are sent in their turns, or all of them by a thread."""
    if request.param == "inline":
        monkeypatch.setattr(send_thread, "start", None)
        return
    if send_thread.start is None:
        pytest.skip("the thread is not compiled, or there is one processor only")
    monkeypatch.setattr(send_thread, "MIN_REPLIES", 1)
    monkeypatch.setattr(send_thread, "MIN_TURN_S", -1.0)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The threads that were started."""
    threads: list[Any] = []
    start = send_thread.start
    if start is None:
        pytest.skip("the thread is not compiled, or there is one processor only")

    def noted() -> Any:
        threads.append(start())
        return threads[-1]

    monkeypatch.setattr(send_thread, "start", noted)
    return threads

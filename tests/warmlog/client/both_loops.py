"""Run a test on asyncio and on trio."""

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pytest


def on_both_loops(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Turn an async test into one that pytest runs on each event loop; its fixtures are passed on."""

    def run(loop: str, **fixtures: Any) -> None:
        anyio.run(partial(test, **fixtures), backend=loop, backend_options=OPTIONS[loop])

    parameters = [inspect.Parameter("loop", inspect.Parameter.KEYWORD_ONLY)]
    parameters += [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in inspect.signature(test).parameters.values()]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__name__ = test.__name__
    run.pytestmark = [*getattr(test, "pytestmark", [])]  # type: ignore[attr-defined]
    return pytest.mark.parametrize("loop", OPTIONS)(run)


OPTIONS: dict[str, dict[str, Any]] = {"asyncio": {"debug": True}, "trio": {}}

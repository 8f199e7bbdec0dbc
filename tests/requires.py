"""What a test does without a tool that it needs: fails in CI, where every tool is there, and skips elsewhere."""

from typing import NoReturn

import pytest

from interop.kafka_node import in_ci


def lacks(why: object) -> NoReturn:
    """End the test, since it lacks something: `why` says what, and how to get it."""
    if in_ci():
        pytest.fail(str(why))
    pytest.skip(str(why))

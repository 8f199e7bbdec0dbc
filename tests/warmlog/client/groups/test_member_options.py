from typing import Any

import pytest

from warmlog.client.consuming.subscription import make_subscription
from warmlog.client.groups.member_options import make_group_subscription


def test_options_and_their_defaults() -> None:
    subscription, options = make_group_subscription(
        "g", ["a", "b", "a"], "end", session_timeout_s=7, isolation="read_committed"
    )
    assert (subscription.topics, subscription.start, subscription.isolation) == (("a", "b"), "end", "read_committed")
    assert (options.group, options.topics, options.session_timeout_s) == ("g", ("a", "b"), 7)
    assert (options.auto_commit, options.commit_interval_s, options.rebalance_timeout_s) == (True, 5, 300)
    assert options.auto_create


@pytest.mark.parametrize(("start", "instead"), [("end", "end"), ("beginning", "beginning"), (17, "beginning")])
def test_a_missing_committed_offset_is_an_error_only_on_request(start: Any, instead: str) -> None:
    assert make_group_subscription("g", "t", start)[0].out_of_range == instead
    assert make_group_subscription("g", "t", start, out_of_range="error")[0].out_of_range == "error"


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (("", "t", "end"), {}, ValueError),
        (("g", "t", "soon"), {}, ValueError),
        (("g", "t", {0: 5}), {}, TypeError),
        (("g", "t", "end"), {"session_timeout_s": 0}, ValueError),
        (("g", "t", "end"), {"commit_interval_s": -1}, ValueError),
        (("g", "t", "end"), {"out_of_range": "nowhere"}, ValueError),
        (("g", "t", "end"), {"partitions": [0]}, TypeError),
        (("g", "t", "end"), {"sesion_timeout_s": 5}, TypeError),
    ],
)
def test_invalid_options_are_rejected(arguments: Any, options: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        make_group_subscription(*arguments, **options)


def test_group_options_without_a_group_are_rejected() -> None:
    with pytest.raises(TypeError, match="auto_commit"):
        make_subscription("t", "end", auto_commit=False)  # type: ignore[arg-type]

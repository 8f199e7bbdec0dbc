"""Regular expressions of subscriptions, with the descriptions of RE2/J 1.8, which Kafka 4.4 uses."""

from collections.abc import Collection, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.broker.groups.consumer.regexes import check, matches
from warmlog.broker.settings.patterns import MAX_PATTERN_LENGTH

INVALID = {
    "(": "missing closing )",
    "[a": "missing closing ]",
    "[z-a]": "invalid character class range",
    "\\": "trailing backslash at end of expression",
    r"\q": "invalid escape sequence",
    r"(a)\1": "invalid escape sequence",
    "*": "missing argument to repetition operator",
    "a**": "invalid nested repetition operator",
    "a{1001}": "invalid repeat count",
    "(?!a)b": "invalid or unsupported Perl syntax",
    "(?P<n": "invalid named capture",
    r"\p{Foo}": "invalid character class range",
    "((a{100}){100}){100}": "invalid repeat count",  # Kafka's allows this, a million instructions
}
VALID = ["orders", "orders-.*", "(?i)ORDERS", r"\Qa.b\E", "[^a]+|b{2,5}", r"\p{Lu}.*", "(?:a|b)*?c", ".{0,300}", ""]


def matched(patterns: Iterable[str], names: Collection[str]) -> tuple[dict[str, tuple[str, ...]], int]:
    """Return the names by pattern, and the number of yields."""
    steps, yields = matches(patterns, names), 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, yields
        yields += 1


@pytest.mark.parametrize(("pattern", "description"), INVALID.items())
def test_an_invalid_pattern_is_refused_with_kafkas_message(pattern: str, description: str) -> None:
    assert check(pattern) == (f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {description}.")


@pytest.mark.parametrize("pattern", VALID)
def test_valid_patterns_are_accepted(pattern: str) -> None:
    assert check(pattern) is None


@pytest.mark.parametrize("pattern", ["a" * 10_000_000, "(" * 10_000_000, "a|" * 20_000])
def test_a_pattern_that_is_too_long_is_refused_with_a_short_message(pattern: str) -> None:
    message = check(pattern)
    assert message is not None
    assert message.endswith(f"...` is not a valid regular expression: longer than {MAX_PATTERN_LENGTH} characters.")
    assert len(message) < 250


@pytest.mark.parametrize("pattern", [r"[\p{L}\p{N}]{0,900}", r"(\p{L}{900}){1}", ".{900}" * 10])
def test_a_pattern_that_expands_too_much_is_refused(pattern: str) -> None:
    assert (check(pattern) or "").endswith("is not a valid regular expression: pattern too large.")


def test_whole_names_are_matched_and_sorted() -> None:
    names = ["orders-2", "orders", "my-orders-1", "orders-1", "payments"]
    expected = {"orders": ("orders",), "orders-.*": ("orders-1", "orders-2"), "a|orders": ("orders",), "": (), "(": ()}
    assert matched(expected, names)[0] == expected


def test_names_that_change_meanwhile_do_not_count() -> None:
    names = {f"t{number}": None for number in range(2000)}
    steps = matches([".*"], names.keys())
    next(steps)
    names["another"] = None
    del names["t7"]
    result: dict[str, tuple[str, ...]] = {}
    while not result:
        try:
            next(steps)
        except StopIteration as end:
            result = end.value
    assert result[".*"] == tuple(sorted(f"t{number}" for number in range(2000)))


@given(st.lists(st.text(max_size=5), max_size=1000))
def test_names_come_out_sorted(names: list[str]) -> None:
    assert matched(["(?s).*"], names)[0] == {"(?s).*": tuple(sorted(names))}


@pytest.mark.parametrize(("pattern", "names_at_once"), [("t.*", 100), (r"([ab]?){900}c|([ab]*){900}e", 1)])
def test_matching_yields_the_more_often_the_larger_the_pattern_is(pattern: str, names_at_once: int) -> None:
    names = [f"{number:04}" * 60 for number in range(1000)]
    _, yields = matched([pattern], names)
    assert yields >= len(names) // names_at_once


def test_each_pattern_yields() -> None:
    assert matched([f"t{number}" for number in range(100)], ["t"])[1] >= 99

"""Regular expressions of subscriptions: RE2's, matched with whole topic names.

Kafka uses RE2/J, which has the same syntax, and limits neither the length nor the expansion of a pattern; here
`compile_pattern` does. With the largest allowed pattern, and names for which no state of its automaton is reused, a
name takes 5 ms; an ordinary pattern takes 3 us.

Source: org.apache.kafka.coordinator.group.Utils.throwIfRegularExpressionIsInvalid,
GroupMetadataManager.refreshRegularExpressions.
"""

from collections.abc import Generator, Iterable
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING

from warmlog.broker.groups.modern.pace import Pace
from warmlog.broker.settings.patterns import MAX_PATTERN_LENGTH, PatternError, compile_pattern

if TYPE_CHECKING:
    import re2

_SHOWN = 100  # characters shown of a pattern that is too long for a message
_RUN = 200  # names sorted in one step
_COMPILE_UNITS = 500  # compiling a pattern that is not trivial, or refusing it, takes about a millisecond
_STEPS = 300  # states of RE2's automaton per unit of work: at worst one per instruction and byte
_DESCRIPTIONS = {  # RE2's causes as RE2/J describes them
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "trailing \\": "trailing backslash at end of expression",
    "no argument for repetition operator": "missing argument to repetition operator",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid repetition size": "invalid repeat count",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid named capture group": "invalid named capture",
    "pattern too large - compile failed": "pattern too large",
}


def check(pattern: str) -> str | None:
    """Return the message of an InvalidRegularExpression error for a pattern; None if it is valid.

    Takes 2 ms at most.
    """
    try:
        compile_pattern(pattern)
    except PatternError as error:
        cause = str(error).partition(": ")[0]
        shown = pattern if len(pattern) <= MAX_PATTERN_LENGTH else f"{pattern[:_SHOWN]}..."
        return f"SubscribedTopicRegex `{shown}` is not a valid regular expression: {_DESCRIPTIONS.get(cause, cause)}."
    return None


def matches(patterns: Iterable[str], names: Iterable[str]) -> Generator[None, None, dict[str, tuple[str, ...]]]:
    """Return for each pattern the sorted names that it matches as a whole; none for an invalid one.

    Yields at least every millisecond, unless a single name takes longer. `names` may change in between.
    """
    pace = Pace()
    in_order = yield from _sorted(list(names), pace)
    matched: dict[str, tuple[str, ...]] = {}
    for pattern in list(patterns):
        if pattern in matched:
            continue
        try:
            compiled = compile_pattern(pattern)
        except PatternError:
            matched[pattern] = ()
        else:
            matched[pattern] = yield from _matching(compiled, in_order, pace)
        if pace.due(_COMPILE_UNITS):
            yield
    return matched


def _matching(compiled: "re2._Regexp[str]", names: list[str], pace: Pace) -> Generator[None, None, tuple[str, ...]]:
    matching = []
    size, fits = compiled.programsize, compiled.fullmatch
    for name in names:
        if fits(name) is not None:
            matching.append(name)
        if pace.due(5 + size * len(name) // _STEPS):
            yield
    return tuple(matching)


def _sorted(names: list[str], pace: Pace) -> Generator[None, None, list[str]]:
    runs = []
    for start in range(0, len(names), _RUN):
        runs.append(sorted(names[start : start + _RUN]))
        if pace.due(_RUN // 2):
            yield
    if len(runs) == 1:
        return runs[0]
    merged, in_order = merge(*runs), []
    while piece := list(islice(merged, _RUN)):
        in_order += piece
        if pace.due(2 * _RUN):
            yield
    return in_order

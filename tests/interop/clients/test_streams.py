"""Kafka Streams counts words with `exactly_once_v2`, killed and restarted: every count is there once."""

from collections import Counter
from pathlib import Path

import pytest

from interop.kafka_node import JVM_OPTIONS, build
from tests.interop.clients.exactly_once import create, fill, members, records, wait_for

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

NAME = "words"
LINES = 450
THIRD = LINES // 3
WORDS = 5  # of a line
#: So many counts are committed before the kill: fewer than those of the first third.
SEEN = 50


def line(number: int) -> bytes:
    """Five words of twenty-three, some of them much more often than others."""
    return b" ".join(b"w%d" % (number * factor % 23) for factor in range(WORDS))


def test_words_are_counted_exactly_once_by_streams_killed_and_restarted(
    bootstrap: str, java_tools: None, tmp_path: Path
) -> None:
    source, target = f"{NAME}-in", f"{NAME}-out"
    create(bootstrap, source, target)
    lines = [line(number) for number in range(LINES)]
    fill(bootstrap, source, lines[:THIRD])
    main = ["java", *JVM_OPTIONS, "-cp", build(), "warmlog.interop.WordCount", bootstrap, NAME, str(tmp_path)]
    with members(lambda: main) as start:
        first = start()
        wait_for(bootstrap, target, SEEN)
        fill(bootstrap, source, lines[THIRD : 2 * THIRD])
        first.kill()
        fill(bootstrap, source, lines[2 * THIRD :])
        second = start()
        wait_for(bootstrap, target, LINES * WORDS)
        second.stop()
    assert "failed" not in first.lines + second.lines
    counted: Counter[bytes | None] = Counter()
    for word, count in records(bootstrap, target):
        counted[word] += 1
        assert int(count) == counted[word], f"count {count!r} of {word!r} came as number {counted[word]}"
    assert counted == Counter(word for each in lines for word in each.split())

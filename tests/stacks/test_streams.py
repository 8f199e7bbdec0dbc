"""Kafka Streams counts words with `exactly_once_v2` while its broker is killed: every count is there once."""

from collections import Counter
from pathlib import Path

import pytest

from interop.kafka_node import launch
from interop.warmlog_nodes import WarmlogNode
from tests.interop.clients.exactly_once import create, fill, members, records, wait_for
from tests.stacks.conftest import killed

pytestmark = [pytest.mark.stacks, pytest.mark.timeout(300)]

NAME = "words"
LINES = 3000
PIECE = 100
WORDS = 5  # of a line


def line(number: int) -> bytes:
    return b" ".join(b"w%d" % (number * factor % 23) for factor in range(WORDS))


def test_words_are_counted_exactly_once_while_the_broker_is_killed(
    node: WarmlogNode, java_tools: None, tmp_path: Path
) -> None:
    source, target = f"{NAME}-in", f"{NAME}-out"
    create(node.bootstrap, source, target)
    lines = [line(number) for number in range(LINES)]
    main = [*launch(), "warmlog.interop.WordCount", node.bootstrap, NAME, str(tmp_path)]
    with members(lambda: main) as start:
        streams = start()
        streams.wait_for('{"state":"RUNNING"}')
        with killed(node) as is_over:
            for at in range(0, LINES, PIECE):
                fill(node.bootstrap, source, lines[at : at + PIECE], idempotent=True)
                is_over.wait(0.5)
            assert is_over.wait(120)
        wait_for(node.bootstrap, target, LINES * WORDS)
        streams.stop()
    assert '{"state":"ERROR"}' not in streams.lines
    counted: Counter[bytes | None] = Counter()
    for word, count in records(node.bootstrap, target):
        counted[word] += 1
        assert int(count) == counted[word], f"count {count!r} of {word!r} came as number {counted[word]}"
    assert counted == Counter(word for each in lines for word in each.split())

"""A listener container of Spring copies a topic in transactions while its broker is killed."""

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

import interop.kafka_node
from interop.kafka_node import JVM_OPTIONS
from interop.warmlog_nodes import WarmlogNode
from tests.interop.clients.exactly_once import create, fill, members, records, wait_for
from tests.requires import lacks
from tests.stacks.conftest import killed

pytestmark = [pytest.mark.stacks, pytest.mark.timeout(300)]

PROJECT = Path(interop.kafka_node.__file__).parent / "spring"
NAME = "chain"
VALUES = 3000
PIECE = 100
POISON_EVERY = 500


@pytest.fixture(scope="module")
def chain() -> list[str]:
    """The command of the program, without its arguments."""
    if shutil.which("mvn") is None:
        lacks("not installed: mvn (Debian: maven)")
    subprocess.run(["mvn", "--batch-mode", "--quiet", "-Dstyle.color=never", "package"], cwd=PROJECT, check=True)
    target = PROJECT / "target"
    return ["java", *JVM_OPTIONS, "-cp", f"{target / 'classes'}:{target / 'lib'}/*", "warmlog.spring.Chain"]


def test_values_are_copied_exactly_once_and_poisonous_ones_set_aside_while_the_broker_is_killed(
    node: WarmlogNode, chain: list[str], java_tools: None
) -> None:
    source, target, aside = f"{NAME}-in", f"{NAME}-out", f"{NAME}-in-dlt"
    create(node.bootstrap, source, target, aside)
    values = [b"poison %d" % at if at % POISON_EVERY == 7 else b"value %d" % at for at in range(VALUES)]
    good = [value for value in values if not value.startswith(b"poison")]
    with members(lambda: [*chain, node.bootstrap, NAME]) as start:
        copying = start()
        copying.wait_for("running")
        with killed(node) as is_over:
            for at in range(0, VALUES, PIECE):
                fill(node.bootstrap, source, values[at : at + PIECE], idempotent=True)
                is_over.wait(0.5)
            assert is_over.wait(120)
        wait_for(node.bootstrap, target, len(good))
        wait_for(node.bootstrap, aside, VALUES - len(good))
        copying.stop()
    assert Counter(value for _, value in records(node.bootstrap, target)) == Counter(good)
    assert Counter(value for _, value in records(node.bootstrap, aside)) == Counter(set(values) - set(good))

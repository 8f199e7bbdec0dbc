"""Groups of Go clients copy a topic in transactions, some aborted and one killed: every record exactly once."""

import subprocess
from pathlib import Path

import pytest

import interop.kafka_node
from interop.kafka_node import MissingToolError
from tests.interop.clients.exactly_once import create, fill, members, values, wait_for
from tests.interop.clients.programs import GO_DIRECTORY, program
from tests.requires import lacks

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

PROJECT = Path(interop.kafka_node.__file__).parent / "go"
#: Fewer for sarama, whose members leave and join the group again after an abort.
COUNTS = {"franz": 600, "sarama": 300}


@pytest.fixture(scope="session")
def transformers() -> Path:
    """The directory of the built Go programs."""
    try:
        go = program("go", "golang-go", also=GO_DIRECTORY)
    except MissingToolError as error:
        lacks(error)
    built = PROJECT / "target" / "transform"
    built.mkdir(parents=True, exist_ok=True)
    subprocess.run([go, "build", "-o", f"{built}/", "./transform/franz", "./transform/sarama"], cwd=PROJECT, check=True)
    return built


@pytest.mark.parametrize("client", COUNTS)
def test_records_are_copied_exactly_once_past_aborts_and_a_killed_member(
    bootstrap: str, transformers: Path, client: str
) -> None:
    name = f"transform-{client}"
    source, target = f"{name}-in", f"{name}-out"
    create(bootstrap, source, target)
    count = COUNTS[client]
    records = [b"%06d" % number for number in range(count)]
    fill(bootstrap, source, records[: count // 2])
    with members(lambda *arguments: [str(transformers / client), bootstrap, name, *arguments]) as start:
        killed = start(f"{name}-killed", "stall")
        killed.wait_for("stalled")
        killed.kill()  # its transaction is open, and only a successor or the timeout ends it
        alone = start(f"{name}-killed")
        alone.wait_for("committed")
        other = start(f"{name}-other")
        other.wait_for("committed")
        fill(bootstrap, source, records[count // 2 :])
        wait_for(bootstrap, target, count)
        alone.stop()
        other.stop()
    assert values(bootstrap, target) == records
    assert len(values(bootstrap, target, "read_uncommitted")) > count
    assert "aborted" in alone.lines

"""A worker of Kafka Connect copies a growing file exactly once, killed within a transaction and after one."""

from pathlib import Path

import pytest

from interop.kafka_node import launch
from tests.interop.clients.exactly_once import create, members, values, wait_for

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

NAME = "lines"
COUNT = 900
THIRD = COUNT // 3


def test_lines_are_copied_exactly_once_by_a_connector_killed_and_restarted(
    bootstrap: str, java_tools: None, tmp_path: Path
) -> None:
    target, file = f"{NAME}-out", tmp_path / "lines"
    create(bootstrap, target)
    records = [b"%06d" % number for number in range(COUNT)]

    def write(number: int) -> None:
        with file.open("ab") as output:
            output.writelines(record + b"\n" for record in records[number * THIRD : (number + 1) * THIRD])

    main = [*launch(), "warmlog.interop.FileSource", bootstrap, NAME, str(file)]
    write(0)
    with members(lambda boundary: [*main, boundary]) as start:
        never_commits = start("never")
        wait_for(bootstrap, target, THIRD, "read_uncommitted")
        never_commits.kill()
        assert values(bootstrap, target) == []
        write(1)
        second = start("poll")
        wait_for(bootstrap, target, 2 * THIRD)
        second.kill()
        write(2)
        third = start("poll")
        wait_for(bootstrap, target, COUNT)
        third.stop()
    assert values(bootstrap, target) == records
    assert len(values(bootstrap, target, "read_uncommitted")) >= COUNT + THIRD

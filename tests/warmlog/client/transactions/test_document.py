"""Run the programs of docs/transactions.md."""

import os
import re
import subprocess
import sys
from pathlib import Path

from warmlog import Client
from warmlog.testing import Broker

ROOT = Path(__file__).parents[4]


def test_the_programs_run_one_after_the_other(warmlog_broker: Broker, tmp_path: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "docs/transactions.md").read_text(), re.DOTALL)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    outputs = []
    for number, program in enumerate(programs):
        path = tmp_path / f"program{number}.py"
        path.write_text(program.replace("127.0.0.1:9091", warmlog_broker.native))
        outputs.append(subprocess.check_output([sys.executable, path], env=environment, text=True))
    assert outputs == ["b'alice' b'-10'\nb'bob' b'+10'\n", ""]
    with Client(warmlog_broker.native) as client:
        audited = [record.value for record in client.consume("audited", until_end=True, isolation="read_committed")]
        (group,) = client.describe_groups("audit")
    assert audited == [b"-10", b"+10"]
    assert [position.offset for position in group.positions] == [2 + 1]  # the marker counts

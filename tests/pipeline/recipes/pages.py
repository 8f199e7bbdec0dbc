"""Blocks of docs/pipeline, as programs of a user: in processes of their own, with other addresses and directories."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyspark

from tests.documents import ROOT
from tests.pipeline.session import program_environment

PATIENCE_S = 300.0


def block(page: str, title: str) -> str:
    """Return the block of a page that opens with ``` and a title, such as `python alarms.py`."""
    text = (ROOT / "docs" / "pipeline" / f"{page}.md").read_text()
    (found,) = re.findall(rf"^```{re.escape(title)}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return str(found)


def changed(text: str, changes: Mapping[str, str]) -> str:
    """Return a text with others instead of some, each of which must be in it."""
    for before, after in changes.items():
        assert before in text, before
        text = text.replace(before, after)
    return text


def environment() -> dict[str, str]:
    """Return an environment in which Spark's commands and `python` are those of this process."""
    spark = Path(pyspark.__file__).parent
    path = os.pathsep.join([str(Path(sys.executable).parent), str(spark / "bin"), os.environ["PATH"]])
    return {**program_environment(), "PATH": path, "SPARK_HOME": str(spark), "SPARK_LOCAL_IP": "127.0.0.1"}


def run(command: Sequence[str], directory: Path) -> str:
    """Run a command, and return what it has printed; fail if it fails."""
    done = subprocess.run(
        command,
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout

"""docs/pipeline.md: its tutorial runs as it stands, but for addresses and directories, and its table is the code's."""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from warmlog.cli.root import root
from warmlog.pipeline.source.options import READ_TABLE
from warmlog.testing import Broker

DOCUMENT = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)


def run_shell(line: str, broker: Broker) -> None:
    """A line of the tutorial in a shell in which `warmlog` is the one of this checkout."""
    environment = {**os.environ, "WARMLOG_NATIVE": broker.native}
    command = f'warmlog() {{ "{sys.executable}" -m warmlog "$@"; }}; {line}'
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def run_job(line: str, directory: Path) -> str:
    """A `warmlog pipeline` command in this process, on the Spark that is there."""
    words = [word.replace("lake/", f"{directory}/lake/") for word in shlex.split(line)[1:]]
    result = CliRunner().invoke(root, [*words, "--path", str(directory / "data")], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def run_python(code: str, broker: Broker, directory: Path, names: dict[str, Any]) -> str:
    code = code.replace("127.0.0.1:9091", broker.native).replace('"data"', f'"{directory}/data"')
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(code.replace('"lake/', f'"{directory}/lake/'), names)
    return said.getvalue()


def test_the_tutorial_runs(on_this_spark: None, tmp_path: Path) -> None:
    prepare, jobs = (block.strip().splitlines() for block in blocks("sh"))
    table, both, stream = blocks("python")
    names: dict[str, Any] = {}
    with Broker(data_dir=tmp_path / "data") as broker:
        for line in prepare:
            run_shell(line, broker)
        count, archive, audit = (run_job(line, tmp_path) for line in jobs)
        assert "3,000 records" in count
        assert "3,000 records in " in archive
        assert "3 partitions, 3,000 records: nothing wrong" in audit
        assert (tmp_path / "lake" / "audit.svg").exists()
        chart = run_python(table, broker, tmp_path, names).splitlines()
        assert [line.split()[0] for line in chart] == ["sensor-0", "sensor-1", "sensor-2"]
        assert all(line.split()[1] == "#" * round(float(line.split()[2])) for line in chart)
        assert run_python(both, broker, tmp_path, names) == "3000 3000\n"
        assert run_python(stream, broker, tmp_path, names) == "3000\n"


def test_the_table_of_options_is_the_codes() -> None:
    section = DOCUMENT.split("## Options")[1].split("\n## ")[0]
    told = [name for row in re.findall(r"^\| ([\w, ]+) \|", section, re.MULTILINE) for name in row.split(", ")]
    assert sorted(told[1:]) == sorted(READ_TABLE)

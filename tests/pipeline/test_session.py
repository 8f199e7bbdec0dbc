"""What is said where Spark cannot run, and that nobody else pays for the pipeline."""

import importlib
import subprocess
import sys
from pathlib import Path
from pkgutil import iter_modules
from types import SimpleNamespace

import pytest
from pyspark import SparkContext

from warmlog.pipeline import WarmlogDataSource, data_source
from warmlog.pipeline import session as availability
from warmlog.pipeline.errors import PipelineError

HEAVY = ("pyspark", "pyarrow", "warmlog.broker", "warmlog.protocol.records.record")


def java(directory: Path, says: str) -> None:
    (directory / "bin").mkdir()
    program = directory / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)


def test_importing_the_pipeline_loads_nothing_heavy() -> None:
    program = f"import sys, warmlog.pipeline; print([name for name in {HEAVY} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"[]\n"


def test_without_the_libraries_the_extra_is_named() -> None:
    program = "import sys; sys.modules['pyspark'] = None; from warmlog.pipeline import WarmlogDataSource"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, text=True).stderr
    assert "the pipeline needs pyspark: install warmlog with its extra `spark`" in said


def test_without_java_that_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PipelineError, match="Java 17 or newer: no `java` on the path, and JAVA_HOME is not set"):
        availability.check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PipelineError, match=f"JAVA_HOME, {tmp_path}, has no bin/java"):
        availability.check_java()


@pytest.mark.parametrize(("master", "remote"), [("sc://h:15002", None), (None, "sc://h:15002")])
def test_jobs_through_spark_connect_are_refused(
    monkeypatch: pytest.MonkeyPatch, master: str | None, remote: str | None
) -> None:
    if remote is not None:
        monkeypatch.setenv("SPARK_REMOTE", remote)
    with (
        pytest.raises(PipelineError, match="jobs do not run through Spark Connect"),
        availability.spark_session("count", master),
    ):
        pass


def test_definitions_of_a_declarative_pipeline_must_not_register(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = SimpleNamespace(get_active_graph_element_registry=lambda: None)
    monkeypatch.setitem(sys.modules, "pyspark.pipelines.graph_element_registry", registry)
    with pytest.raises(PipelineError, match="leave out `register`"):
        data_source.register(None)


@pytest.mark.parametrize("says", ['openjdk version "11.0.2"', 'java version "1.8.0_392"', "nothing"])
def test_an_old_java_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str) -> None:
    java(tmp_path, says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PipelineError, match=r"Java 17 or newer: .* is (version 11|version 8|of unknown version)"):
        availability.check_java()


def test_a_new_java_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java(tmp_path, 'openjdk version "21.0.1" 2023-10-17')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    availability.check_java()


@pytest.mark.parametrize(
    ("master", "given", "expected"),
    [
        ("local[2]", None, sys.executable),
        ("local[2]", "/opt/python", "python3"),
        ("spark://host:7077", None, "python3"),
    ],
)
def test_local_workers_run_this_python_unless_another_is_named(
    monkeypatch: pytest.MonkeyPatch, master: str, given: str | None, expected: str
) -> None:
    if given is None:
        monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    else:
        monkeypatch.setenv("PYSPARK_PYTHON", given)
    context = SimpleNamespace(master=master, pythonExec="python3")
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    monkeypatch.setattr(data_source, "pin_stream_partitions", lambda: None)
    assert WarmlogDataSource.name() == "warmlog"
    assert context.pythonExec == expected


def test_spark_finds_the_source_without_being_told() -> None:
    """By the rule of its lookup: a package called pyspark_*, and a DefaultSource in it."""
    found = {info.name for info in iter_modules() if info.name.startswith("pyspark_")}
    assert "pyspark_warmlog" in found
    assert importlib.import_module("pyspark_warmlog").DefaultSource is WarmlogDataSource

"""The Spark session of the tests: small, quiet, without anything that waits."""

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.documents import ROOT
from warmlog.pipeline import register

takes_limits = pytest.mark.skipif(
    find_spec("pyspark.sql.streaming.datasource") is None,
    reason="Spark tells no limit before 4.2: Trigger.AvailableNow is one micro-batch",
)
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.task.maxFailures": "1",
}


def python_path() -> str:
    """PYTHONPATH of programs: the code under test, and before it the version of Spark that `make sparks` lays there."""
    return os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)])


def program_environment() -> dict[str, str]:
    """The environment of programs that start a Spark of their own."""
    return {**os.environ, "PYTHONPATH": python_path(), "PYSPARK_PYTHON": sys.executable}


def spark_session(directory: Path, more: Mapping[str, str] | None = None) -> Any:
    """A session that keeps its files in a directory. `more`: settings of Spark."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable  # else its workers are whatever python3 is on the path
    builder = SparkSession.builder.master("local[2]").appName("tests").config("spark.local.dir", str(directory))
    builder = builder.config("spark.sql.warehouse.dir", str(directory / "warehouse"))
    for name, value in {**SETTINGS, **(more or {})}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    register(session)
    return session
